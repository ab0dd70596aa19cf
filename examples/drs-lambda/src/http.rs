//! Requests and answers as an HTTP API of API Gateway passes them (payload format 2.0), and the status of each error.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tollgate_aws::Error;
use tollgate_aws::throttle::Settings;

/// A request; what is not read here is left out.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// The path.
    pub raw_path: String,
    /// About the request.
    pub request_context: Context,
    /// The body, if there is one.
    pub body: Option<String>,
    /// Whether the body is in base64.
    #[serde(default)]
    pub is_base64_encoded: bool,
}

/// About a request.
#[derive(Clone, Debug, Deserialize)]
pub struct Context {
    /// What HTTP says about it.
    pub http: Http,
}

/// What HTTP says about a request.
#[derive(Clone, Debug, Deserialize)]
pub struct Http {
    /// The method.
    pub method: String,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// The status of HTTP.
    pub status_code: u16,
    /// Its headers.
    pub headers: BTreeMap<&'static str, String>,
    /// Its body, which is JSON.
    pub body: String,
}

impl Request {
    /// The body as text.
    pub(crate) fn text(&self) -> Result<&str, Error> {
        if self.is_base64_encoded {
            let text = "the body came as bytes; send it with content-type application/json";
            return Err(Error::Invalid(text.to_owned()));
        }
        Ok(self.body.as_deref().unwrap_or_default())
    }
}

impl Answer {
    pub(crate) fn new(status_code: u16, body: &Value) -> Self {
        let headers = [("content-type", "application/json".to_owned())].into();
        Self { status_code, headers, body: body.to_string() }
    }
}

/// The answer to whoever gets nothing because of `error`.
pub(crate) fn refusal(error: &Error, settings: &Settings) -> Answer {
    let status = match error {
        Error::JobCapacityTimeout(timeout) => {
            let full = timeout.to_answer();
            let mut answer = Answer::new(full.status, &full.body);
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
        // Whoever asks again with the same request id finds the job, if there is one.
        _ => 502,
    };
    Answer::new(status, &json!({ "error": error.code(), "message": error.to_string() }))
}
