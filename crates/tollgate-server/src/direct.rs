//! Answering HTTP requests that did not come over a connection, such as the events of a function URL on AWS Lambda.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::http;
use http_body_util::{BodyExt as _, Full};
use tokio::task::JoinHandle;
use tollgate::Timestamp;

use crate::app::App;
use crate::bounds::OVERRIDES_EVERY;
use crate::http::Calls;

/// A request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Such as `POST`.
    pub method: String,
    /// The path and the query, percent-encoded, such as `/v1/standing?policy=api&subject=a`.
    pub target: String,
    /// Names and values of header fields.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// The answer to a [`Request`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Such as 200.
    pub status: u16,
    /// Names and values of header fields.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// The HTTP calls of an [`App`] without a listener.
///
/// Nothing is left to a background task: overrides are read again before a request if the last look is
/// [`OVERRIDES_EVERY`] ago, and [`flush`](Self::flush) waits for the audit.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use tollgate::{Atomic, Memory, Policies, SystemClock};
/// use tollgate_server::{App, Direct, Request};
///
/// let gate = Arc::new(Atomic::new(Memory::new()));
/// let app = App::new(gate, Policies::new([])?, [7; 32], Arc::new(SystemClock))?;
/// let direct = Direct::new(Arc::new(app));
/// let fields = vec![("host".to_owned(), "localhost".to_owned())];
/// let request = Request { method: "GET".into(), target: "/healthz".into(), fields, body: Vec::new() };
/// assert_eq!(direct.answer(request).await.status, 200);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Direct {
    app: Arc<App>,
    calls: Arc<Calls>,
    looked_at: Mutex<Timestamp>,
    writing: JoinHandle<()>,
}

impl Direct {
    /// Answers for `app`, whose overrides were just read. Must be called in a tokio runtime.
    #[must_use]
    pub fn new(app: Arc<App>) -> Self {
        let writing = tokio::spawn({
            let app = Arc::clone(&app);
            async move { app.auditor().write(app.clock()).await }
        });
        let calls = Arc::new(Calls::new(Arc::clone(&app)));
        Self { calls, looked_at: Mutex::new(app.now()), app, writing }
    }

    /// The answer to `request`. A request that is not HTTP is answered 400.
    pub async fn answer(&self, request: Request) -> Reply {
        self.follow_overrides().await;
        let mut head = http::Request::builder().method(&*request.method).uri(&*request.target);
        for (name, value) in &request.fields {
            head = head.header(name, value);
        }
        let request = match head.body(Full::new(Bytes::from(request.body))) {
            Ok(request) => request,
            Err(error) => return not_http(&error),
        };
        let (head, body) = self.calls.answer(request, None).await.into_parts();
        let text =
            |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let fields = head.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
        let fields = fields.collect();
        match body.collect().await {
            Ok(body) => {
                Reply { status: head.status.as_u16(), fields, body: body.to_bytes().into() }
            }
            Err(error) => not_http(&error),
        }
    }

    /// Waits until what the audit was told is written.
    pub async fn flush(&self) {
        self.app.auditor().flush(self.app.clock()).await;
    }

    async fn follow_overrides(&self) {
        let now = self.app.now();
        {
            let mut looked_at = self.looked_at.lock().unwrap_or_else(PoisonError::into_inner);
            if now.since(*looked_at) < OVERRIDES_EVERY && *looked_at <= now {
                return;
            }
            *looked_at = now;
        }
        if let Err(error) = self.app.refresh_overrides().await {
            tracing::warn!(%error, "the overrides cannot be read; those that are known stay in force");
        }
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.writing.abort();
    }
}

fn not_http(error: &dyn std::fmt::Display) -> Reply {
    let detail = format!("the request is not HTTP: {error}");
    let problem = crate::wire::Problem::new(400, "invalid", detail);
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let fields = vec![("content-type".to_owned(), "application/problem+json".to_owned())];
    Reply { status: 400, fields, body }
}
