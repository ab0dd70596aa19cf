//! The runtime interface of AWS Lambda: a custom runtime polls it for events and posts the responses.

use std::sync::Arc;

use hyper::body::Bytes;
use hyper::{Request, Response};
use tollgate::ErrorKind;
use tollgate::internal::edge::environment;
use tollgate_transport::http::{HttpClient, root_cause};

use tollgate_terminal::Failure;

/// The variable with the address of the interface.
const RUNTIME: &str = "AWS_LAMBDA_RUNTIME_API";

/// The largest event, in bytes; Lambda's own limit is 6 MB.
const EVENT_BYTES_MAX: usize = 16 << 20;

/// The runtime interface. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    base: Arc<str>,
    http: HttpClient,
}

/// An event to respond to.
#[derive(Debug)]
pub(crate) struct Event {
    /// The id of its request.
    pub(crate) request: String,
    pub(crate) body: Vec<u8>,
}

impl Runtime {
    /// Returns the interface that the environment names.
    pub(crate) fn from_environment() -> Result<Self, Failure> {
        let none = || invalid(format!("{RUNTIME} is not set; this command is for AWS Lambda"));
        let address = environment(RUNTIME).ok_or_else(none)?;
        let base = format!("http://{address}/2018-06-01/runtime/invocation").into();
        Ok(Self { base, http: HttpClient::new(None, None, EVENT_BYTES_MAX) })
    }

    /// Waits for the next event.
    pub(crate) async fn next(&self) -> Result<Event, Failure> {
        let request = Request::get(format!("{}/next", self.base)).body(Bytes::new());
        let response = self.send(request).await?;
        let id = response.headers().get("lambda-runtime-aws-request-id");
        let id = id.and_then(|id| id.to_str().ok()).map(str::to_owned);
        let request = id.ok_or_else(|| invalid("the event has no request id"))?;
        Ok(Event { request, body: response.into_body().to_vec() })
    }

    /// Posts the response to the event of `request`: `answer` as JSON, or its error.
    pub(crate) async fn post_result<T: serde::Serialize>(
        &self,
        request: String,
        answer: Result<T, Failure>,
    ) -> Result<(), Failure> {
        let (path, body) = match answer {
            Ok(answer) => ("response", serde_json::to_vec(&answer)),
            Err(failure) => {
                let problem = failure.problem();
                let error = serde_json::json!({ "errorType": problem.kind, "errorMessage": problem.detail });
                ("error", serde_json::to_vec(&error))
            }
        };
        let body = body.map_err(|error| invalid(format!("the answer cannot be sent: {error}")))?;
        let request = Request::post(format!("{}/{request}/{path}", self.base))
            .header("content-type", "application/json")
            .body(body.into());
        self.send(request).await.map(drop)
    }

    async fn send(
        &self,
        request: Result<Request<Bytes>, hyper::http::Error>,
    ) -> Result<Response<Bytes>, Failure> {
        let request = request.map_err(|error| unusable(&error.to_string()))?;
        let response = self.http.send(request).await;
        let response = response.map_err(|error| unusable(&root_cause(&error).to_string()))?;
        if !response.status().is_success() {
            return Err(unusable(&format!("status {}", response.status())));
        }
        Ok(response)
    }
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Invalid, text)
}

fn unusable(reason: &str) -> Failure {
    let text = format!("the runtime interface of Lambda cannot be used: {reason}");
    Failure::new(ErrorKind::Unavailable, text)
}
