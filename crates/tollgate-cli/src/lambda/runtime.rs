//! The runtime interface of AWS Lambda, which a custom runtime asks for events and tells the answers.

use std::sync::Arc;

use tokio::sync::oneshot;
use tollgate::ErrorKind;
use tollgate::edge::environment;

use crate::failure::Failure;

/// Where Lambda says its runtime interface is.
const RUNTIME: &str = "AWS_LAMBDA_RUNTIME_API";

/// The runtime interface. Clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    at: Arc<str>,
}

/// What is to be answered.
#[derive(Debug)]
pub(crate) struct Event {
    /// The id of its request.
    pub(crate) request: String,
    pub(crate) body: Vec<u8>,
}

impl Runtime {
    /// The interface that the environment names.
    pub(crate) fn from_environment() -> Result<Self, Failure> {
        let none = || invalid(format!("{RUNTIME} is not set; this command is for AWS Lambda"));
        let at = environment(RUNTIME).ok_or_else(none)?;
        Ok(Self { at: format!("http://{at}/2018-06-01/runtime/invocation").into() })
    }

    /// Waits for an event.
    pub(crate) async fn next(&self) -> Result<Event, Failure> {
        let at = Arc::clone(&self.at);
        blocking(move || {
            let mut reply = ureq::get(format!("{at}/next")).call().map_err(|error| lost(&error))?;
            let request = reply.headers().get("lambda-runtime-aws-request-id");
            let request = request.and_then(|id| id.to_str().ok()).map(str::to_owned);
            let request = request.ok_or_else(|| invalid("the event has no id of a request"))?;
            let body = reply.body_mut().read_to_vec().map_err(|error| lost(&error))?;
            Ok(Event { request, body })
        })
        .await
    }

    /// Answers the event of `request`: with what `answer` is as JSON, or with its error.
    pub(crate) async fn tell<T: serde::Serialize>(
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
        let url = format!("{}/{request}/{path}", self.at);
        blocking(move || {
            let told = ureq::post(url).content_type("application/json").send(&body);
            told.map(drop).map_err(|error| lost(&error))
        })
        .await
    }
}

fn invalid(text: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Invalid, text)
}

fn lost(error: &ureq::Error) -> Failure {
    let text = format!("the runtime interface of Lambda cannot be used: {error}");
    Failure::new(ErrorKind::Unavailable, text)
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let (done, answer) = oneshot::channel();
    // A thread of its own, since one of the runtime would be waited for at the end, and an event may never come.
    std::thread::spawn(move || drop(done.send(act())));
    answer.await.map_err(|error| {
        Failure::new(ErrorKind::Unavailable, format!("a call ended unexpectedly: {error}"))
    })?
}
