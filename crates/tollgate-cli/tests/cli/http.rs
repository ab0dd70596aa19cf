//! HTTP requests of the tests, sent by the client that the binary uses.

use hyper::body::Bytes;
use hyper::{Request, Response};
use tokio::runtime::{Builder, Runtime};
use tollgate::Span;
use tollgate::clock::SystemClock;
use tollgate::internal::timeout;
use tollgate_transport::http::HttpClient;

/// A request without a response by then has failed.
const TIMEOUT: Span = Span::from_secs(60);

/// A blocking client with a connection pool of its own.
pub(crate) struct Http {
    runtime: Runtime,
    client: HttpClient,
}

impl Http {
    pub(crate) fn new() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let client = HttpClient::new(None, None, usize::MAX);
        Self { runtime: runtime.expect("a runtime starts"), client }
    }

    /// Sends `request` and returns the response, whatever its status.
    pub(crate) fn send(&self, request: Request<impl Into<Bytes>>) -> Response<String> {
        self.try_send(request).expect("the server responds")
    }

    /// Sends `request`; `None` without a complete response.
    pub(crate) fn try_send(&self, request: Request<impl Into<Bytes>>) -> Option<Response<String>> {
        let sent = self.client.send(request.map(Into::into));
        let response = self.runtime.block_on(timeout(&SystemClock, TIMEOUT, sent))?.ok()?;
        Some(response.map(|body| String::from_utf8(body.to_vec()).expect("text")))
    }
}

/// A request that posts `body` as JSON, with `key` if it is not empty.
pub(crate) fn post_json(url: &str, key: &str, body: impl Into<String>) -> Request<String> {
    let mut request = Request::post(url).header("content-type", "application/json");
    if !key.is_empty() {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    request.body(body.into()).expect("a request")
}
