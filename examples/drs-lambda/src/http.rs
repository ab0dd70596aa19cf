//! Requests and responses of API Gateway (payload format 2.0), and the status of each error.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tollgate_drs::Error;
use tollgate_drs::throttle::ThrottleOptions;

/// A request, without the fields that are not used.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The path.
    pub raw_path: String,
    /// The context.
    pub request_context: Context,
    /// The body, if there is one.
    pub body: Option<String>,
    /// Whether the body is in base64.
    #[serde(default)]
    pub is_base64_encoded: bool,
}

/// The context of a request.
#[derive(Clone, Debug, Deserialize)]
pub struct Context {
    /// The HTTP part.
    pub http: Http,
}

/// The HTTP part of a context.
#[derive(Clone, Debug, Deserialize)]
pub struct Http {
    /// The method.
    pub method: String,
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Response {
    /// The status.
    pub status_code: u16,
    /// The headers.
    pub headers: BTreeMap<&'static str, String>,
    /// The body, as JSON.
    pub body: String,
}

impl Request {
    /// Returns the body as text.
    pub(crate) fn text(&self) -> Result<&str, Error> {
        if self.is_base64_encoded {
            let text = "the body came as bytes; send it with content-type application/json";
            return Err(Error::Invalid(text.to_owned()));
        }
        Ok(self.body.as_deref().unwrap_or_default())
    }
}

impl Response {
    pub(crate) fn new(status_code: u16, body: &Value) -> Self {
        let headers = [("content-type", "application/json".to_owned())].into();
        Self { status_code, headers, body: body.to_string() }
    }
}

/// Returns the response for `error`.
pub(crate) fn refusal(error: &Error, settings: &ThrottleOptions) -> Response {
    let status = match error {
        Error::JobCapacityTimeout(timeout) => {
            let full = timeout.to_http_response();
            let mut answer = Response::new(full.status, &full.body);
            let pause = settings.poll_interval.as_secs_ceil().to_string();
            answer.headers.insert("retry-after", pause);
            return answer;
        }
        Error::RateLimitTimeout(_) => 429,
        Error::Invalid(_) => 400,
        Error::Refused(_) => match error.code() {
            "ValidationException" => 400,
            "ResourceNotFoundException" => 404,
            "ConflictException" => 409,
            _ => 502,
        },
        Error::RetryExhausted(_) | Error::Gate(_) => 503,
        // A retry with the same request id finds the job, if it was started.
        _ => 502,
    };
    Response::new(status, &json!({ "error": error.code(), "message": error.to_string() }))
}
