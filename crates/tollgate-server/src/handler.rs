//! HTTP requests that do not arrive over a connection, such as the events of a function URL on AWS Lambda.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::http;
use http_body_util::{BodyExt as _, Full};
use tokio::task::JoinHandle;
use tollgate::Timestamp;
use tollgate_protocol::json::Problem;

use crate::app::App;
use crate::bounds::OVERRIDES_EVERY;
use crate::http::HttpService;

/// A request to an [`HttpHandler`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpRequest {
    /// Such as `POST`.
    pub method: String,
    /// The path and the query, percent-encoded, such as `/v1/standing?policy=api&subject=a`.
    pub target: String,
    /// Names and values of header fields.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// A response of an [`HttpHandler`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpResponse {
    /// Such as 200.
    pub status: u16,
    /// Names and values of header fields.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// The HTTP API of an [`App`] without a listener.
///
/// Nothing depends on background tasks: overrides are read before a request if the last read is [`OVERRIDES_EVERY`] ago,
/// and [`flush`](Self::flush) waits for the audit.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use tollgate::clock::SystemClock;
/// use tollgate::policy::Policies;
/// use tollgate::Memory;
/// use tollgate_server::{App, HttpHandler, HttpRequest};
///
/// let gate = Arc::new(Memory::new());
/// let app = App::new(gate, Policies::new([])?, [7; 32], Arc::new(SystemClock))?;
/// let handler = HttpHandler::new(Arc::new(app));
/// let fields = vec![("host".to_owned(), "localhost".to_owned())];
/// let request = HttpRequest { method: "GET".into(), target: "/healthz".into(), fields, body: Vec::new() };
/// assert_eq!(handler.handle(request).await.status, 200);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct HttpHandler {
    app: Arc<App>,
    service: Arc<HttpService>,
    overrides_read_at: Mutex<Timestamp>,
    audit_writer: JoinHandle<()>,
}

impl HttpHandler {
    /// Creates a handler for `app`, whose overrides were just read. Must be called in a tokio runtime.
    #[must_use]
    pub fn new(app: Arc<App>) -> Self {
        let audit_writer = tokio::spawn({
            let app = Arc::clone(&app);
            async move { app.auditor().write(app.clock()).await }
        });
        let service = Arc::new(HttpService::new(Arc::clone(&app)));
        Self { service, overrides_read_at: Mutex::new(app.now()), app, audit_writer }
    }

    /// Returns the response to `request`; status 400 if it is not HTTP.
    pub async fn handle(&self, request: HttpRequest) -> HttpResponse {
        self.refresh_overrides().await;
        let mut head = http::Request::builder().method(&*request.method).uri(&*request.target);
        for (name, value) in &request.fields {
            head = head.header(name, value);
        }
        let request = match head.body(Full::new(Bytes::from(request.body))) {
            Ok(request) => request,
            Err(error) => return not_http(&error),
        };
        let (head, body) = self.service.answer(request, None).await.into_parts();
        let text =
            |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let fields = head.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
        let fields = fields.collect();
        match body.collect().await {
            Ok(body) => {
                HttpResponse { status: head.status.as_u16(), fields, body: body.to_bytes().into() }
            }
            Err(error) => not_http(&error),
        }
    }

    /// Waits until the audit records so far are written.
    pub async fn flush(&self) {
        self.app.auditor().flush(self.app.clock()).await;
    }

    async fn refresh_overrides(&self) {
        let now = self.app.now();
        {
            let mut overrides_read_at =
                self.overrides_read_at.lock().unwrap_or_else(PoisonError::into_inner);
            if now.since(*overrides_read_at) < OVERRIDES_EVERY && *overrides_read_at <= now {
                return;
            }
            *overrides_read_at = now;
        }
        if let Err(error) = self.app.refresh_overrides().await {
            tracing::warn!(%error, "the overrides cannot be read; those that are known stay in force");
        }
    }
}

impl Drop for HttpHandler {
    fn drop(&mut self) {
        self.audit_writer.abort();
    }
}

fn not_http(error: &dyn std::fmt::Display) -> HttpResponse {
    let detail = format!("the request is not HTTP: {error}");
    let problem = Problem::new(400, "invalid", detail);
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let fields = vec![("content-type".to_owned(), "application/problem+json".to_owned())];
    HttpResponse { status: 400, fields, body }
}
