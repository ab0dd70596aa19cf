//! From the head of a request to its response.
//!
//! `POST /v1/acquire` bypasses the router: finding a route and passing its layers takes longer than deciding. For the same
//! reason the future of a response is kept small, and rare paths are boxed.
//!
//! Mutating requests run to completion even if the client disconnects: they start before hyper notices.
//!
//! A [`RequestId`] connects a response with log lines of the server and the client. The client's `x-request-id` is kept if
//! it is short and plain, as a proxy sends it; otherwise one is generated.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::header::ALLOW;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, Request, Uri, Version};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use futures_util::FutureExt as _;
use http_body_util::Either;
use tokio::io::{AsyncRead, AsyncWrite};
use tollgate::gate::BoxFuture;
use tollgate::internal::edge::random;
use tollgate_protocol::json::Problem;
use tonic::codegen::Service as _;
use tracing::{Instrument as _, Span};

use super::authorize::{self, Requirement};
use super::connection::{self, Peer};
use super::endpoints::ENDPOINTS;
use super::endpoints::acquire::{ACQUIRE, AcquireReply, acquire};
use super::input::{DrainedBody, RequestBody};
use super::reply;
use crate::access::Certificate;
use crate::app::App;
use crate::bounds::{HEAD_BYTES_MAX, REQUEST_ID_BYTES_MAX};
use crate::dashboard;
use crate::grpc::envoy;
use crate::keys::Scope;
use crate::server::Protocol;

/// Serves the HTTP API; shared by all connections.
#[derive(Debug)]
pub(crate) struct HttpService {
    pub(super) app: Arc<App>,
    router: Router,
}

impl HttpService {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self { router: router(Arc::clone(&app)), app }
    }

    /// Returns the response to `request`.
    pub(crate) fn answer<B: RequestBody>(
        self: &Arc<Self>,
        request: Request<B>,
        peer: Option<&Arc<dyn Peer>>,
    ) -> impl Future<Output = AcquireReply> + Send + use<B> {
        let (service, id) = (Arc::clone(self), RequestId::from_request(&request));
        let (head, body) = request.into_parts();
        let body = DrainedBody::new(body, head.version, &self.app);
        let refused = if HEAD_BYTES_MAX < head_bytes(&head) {
            Some(head_too_large())
        } else {
            authorize::check_host(&self.app, &head).err()
        };
        let peer = peer.filter(|_| head.version < Version::HTTP_2).cloned();
        let is_broker = !self.app.serves_only_metrics() && !self.app.serves_only_rate_limits();
        let is_acquire = head.uri.path() == ACQUIRE.path && is_broker;
        if !is_acquire && !head.method.is_safe() && refused.is_none() {
            let request = Request::from_parts(head, Body::new(body));
            let answer =
                id.enter(|| self.app.run_to_completion(service.router.clone().call(request)));
            let answer = answer.map(|Ok(response)| response.map(Either::Right));
            return id.instrument(answer).left_future();
        }
        id.instrument(async move {
            if let Some(problem) = refused {
                return reply::problem(&problem).map(Either::Right);
            }
            match (is_acquire, &head.method) {
                (true, &Method::POST) => acquire(&service.app, &head, body, peer.as_ref()).await,
                (true, _) => {
                    let mut response = method_not_allowed(head.method, head.uri).await;
                    response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
                    response.map(Either::Right)
                }
                (false, _) => {
                    let request = Request::from_parts(head, Body::new(body));
                    let Ok(response) = Box::pin(service.router.clone().call(request)).await;
                    response.map(Either::Right)
                }
            }
        })
        .right_future()
    }
}

impl Protocol for HttpService {
    async fn serve<S>(
        self: Arc<Self>,
        stream: S,
        certificate: Option<Arc<Certificate>>,
        shutdown: BoxFuture<'static, ()>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        connection::serve(stream, certificate, self, shutdown).await;
    }
}

/// Returns the router of all endpoints but [`ACQUIRE`].
fn router(app: Arc<App>) -> Router {
    if app.serves_only_rate_limits() {
        let router = envoy::service().fallback(only_rate_limits);
        return router.method_not_allowed_fallback(method_not_allowed).with_state(app);
    }
    let only_metrics = app.serves_only_metrics();
    let mut router = Router::new();
    for endpoint in ENDPOINTS {
        let Some(handler) = endpoint.handler else { continue };
        if only_metrics && !["/healthz", "/metrics"].contains(&endpoint.path) {
            continue;
        }
        let handler = match endpoint.scope {
            None => handler(),
            Some(scope) => {
                let (app, is_unbound) = (Arc::clone(&app), endpoint.is_unbound);
                let requirement = Requirement { app, scope, is_unbound };
                handler().route_layer(from_fn_with_state(requirement, authorize::require))
            }
        };
        router = router.route(endpoint.path, handler);
    }
    if only_metrics {
        router = router.fallback(not_a_broker);
    } else {
        let (app, scope, is_unbound) = (Arc::clone(&app), Scope::Inspect, true);
        let requirement = Requirement { app, scope, is_unbound };
        let pages = dashboard::routes();
        let pages = pages.route_layer(from_fn_with_state(requirement, authorize::require));
        router = router.merge(pages).fallback(unknown_path);
    }
    router.method_not_allowed_fallback(method_not_allowed).with_state(app)
}

pub(super) async fn unknown_path(uri: Uri) -> Response {
    let detail = format!("there is nothing at {:?}; /openapi.json lists the calls", uri.path());
    reply::problem(&Problem::new(404, "not-found", detail))
}

async fn only_rate_limits(uri: Uri) -> Response {
    let detail =
        format!("there is nothing at {:?}; this serves /healthcheck and /json", uri.path());
    reply::problem(&Problem::new(404, "not-found", detail))
}

async fn not_a_broker(uri: Uri) -> Response {
    let detail = format!(
        "there is nothing at {:?}; this is not a broker, and serves /metrics and /healthz",
        uri.path()
    );
    reply::problem(&Problem::new(404, "not-found", detail))
}

async fn method_not_allowed(method: Method, uri: Uri) -> Response {
    let detail =
        format!("{:?} does not take {method}; the header Allow lists what it takes", uri.path());
    reply::problem(&Problem::new(405, "method-not-allowed", detail))
}

/// Returns the length of the target and of all headers.
fn head_bytes(head: &Parts) -> usize {
    let target = head.uri.path_and_query().map_or(0, |target| target.as_str().len());
    let headers = head.headers.iter();
    target + headers.map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>()
}

fn head_too_large() -> Problem {
    let detail = format!("the head of a request has at most {HEAD_BYTES_MAX} bytes; send less");
    Problem::new(431, "head-too-large", detail)
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of a request, and its span in the log.
pub(crate) struct RequestId {
    id: HeaderValue,
    span: Span,
}

impl RequestId {
    pub(crate) fn from_request<B>(request: &Request<B>) -> Self {
        let given = request.headers().get(&REQUEST_ID).filter(|value| is_plain(value)).cloned();
        let id = given.unwrap_or_else(generate_request_id);
        let (text, path) = (id.to_str().unwrap_or_default(), request.uri().path());
        let method = request.method();
        let span = tracing::info_span!("request", request_id = text, %method, path);
        Self { id, span }
    }

    /// Runs `work` in the span of the request.
    pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        self.span.in_scope(work)
    }

    /// Runs `answer` in the span of the request, and adds the id to the response.
    pub(crate) fn instrument<R>(
        self,
        answer: impl Future<Output = Response<R>>,
    ) -> impl Future<Output = Response<R>> {
        let Self { id, span } = self;
        answer.instrument(span).map(move |mut response| {
            response.headers_mut().insert(REQUEST_ID, id);
            response
        })
    }
}

/// Returns whether `value` is safe to log.
fn is_plain(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(byte);
    (1..=REQUEST_ID_BYTES_MAX).contains(&bytes.len()) && bytes.iter().all(is_plain)
}

/// Returns a new request id.
#[must_use]
pub fn generate_request_id() -> HeaderValue {
    let number = u64::from(random()) << 32 | u64::from(random());
    let digit = |index: usize| b"0123456789abcdef"[(number >> (60 - 4 * index) & 0xf) as usize];
    let digits: [u8; 16] = std::array::from_fn(digit);
    HeaderValue::from_bytes(&digits).unwrap_or(HeaderValue::from_static("none"))
}
