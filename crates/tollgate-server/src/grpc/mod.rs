//! gRPC: `tollgate.v1.Gate`, Envoy's rate limit service, health and reflection.
//!
//! Connections are hyper's, like those of HTTP, with the same limits and graceful shutdown; tonic only reads and writes
//! messages.

mod authorize;
mod batching_executor;
mod connection;
mod deadline;
pub(crate) mod envoy;
mod gate;
mod health;
mod status;

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use axum::{BoxError, Router};
use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tollgate_protocol::protobuf::DESCRIPTORS;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_service_server::{
    self, RateLimitServiceServer,
};
use tollgate_protocol::protobuf::tollgate::v1::gate_server::{self, GateServer};
use tonic::Status;
use tonic::body::Body as Message;
use tonic::codegen::{BoxFuture, Service as _};
use tonic::server::NamedService;

use crate::access::Certificate;
use crate::app::App;
use crate::bounds::BODY_BYTES_MAX;
use crate::http::RequestId;
use crate::server::Protocol;
use envoy::RateLimitHandler;
use gate::GateHandler;
use health::{HealthHandler, HealthServer};

/// Serves gRPC; shared by all connections. The services on the path of every request are found by name, the others by a
/// router.
pub(crate) struct GrpcService {
    app: Arc<App>,
    gate: GateServer<GateHandler>,
    rate_limits: RateLimitServiceServer<RateLimitHandler>,
    router: Router,
}

impl GrpcService {
    pub(crate) fn new(app: Arc<App>) -> Self {
        let gate = GateServer::new(GateHandler::new(Arc::clone(&app)));
        let rate_limits = RateLimitServiceServer::new(RateLimitHandler::new(Arc::clone(&app)));
        Self {
            gate: gate.max_decoding_message_size(BODY_BYTES_MAX),
            rate_limits: rate_limits.max_decoding_message_size(BODY_BYTES_MAX),
            router: router(&app),
            app,
        }
    }

    /// Returns the response to `request`.
    pub(crate) fn answer<B>(
        &self,
        mut request: Request<B>,
    ) -> impl Future<Output = Response<Message>> + Send + use<B>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + Send,
    {
        let (app, id) = (Arc::clone(&self.app), RequestId::from_request(&request));
        let allowed = authorize::check(&app, &mut request);
        let timeout = allowed.and_then(|()| deadline::timeout(request.headers()));
        let answer = timeout.map(|timeout| (timeout, self.call(request)));
        id.instrument(async move {
            let answered = match answer {
                Ok((timeout, answer)) => deadline::run(&app, timeout, answer).await,
                Err(status) => Err(status),
            };
            let Ok(mut response) = answered.unwrap_or_else(|status| Ok(status.into_http()));
            status::correct_decode_error(&mut response);
            response
        })
    }

    fn call<B>(&self, request: Request<B>) -> BoxFuture<Response<Message>, Infallible>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + Send,
    {
        match service_of(request.uri().path()) {
            gate_server::SERVICE_NAME if !self.app.serves_only_rate_limits() => {
                self.gate.clone().call(request)
            }
            rate_limit_service_server::SERVICE_NAME => self.rate_limits.clone().call(request),
            _ => {
                let answer = self.router.clone().call(request.map(Body::new));
                Box::pin(answer.map(|done| done.map(|response| response.map(Message::new))))
            }
        }
    }
}

/// Returns the service in `path`.
fn service_of(path: &str) -> &str {
    path.trim_start_matches('/').split('/').next().unwrap_or_default()
}

impl Protocol for GrpcService {
    async fn serve<S>(
        self: Arc<Self>,
        stream: S,
        certificate: Option<Arc<Certificate>>,
        shutdown: tollgate::gate::BoxFuture<'static, ()>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        connection::serve(stream, certificate, self, shutdown).await;
    }
}

/// Returns the router of health and reflection.
fn router(app: &Arc<App>) -> Router {
    let health = HealthServer::new(HealthHandler::new(Arc::clone(app)))
        .max_decoding_message_size(BODY_BYTES_MAX);
    with_reflection(Router::new()).route_service(&path_of(&health), health).fallback(async || {
        let text = "there is no such method; reflection lists the methods";
        Status::unimplemented(text).into_http::<Body>()
    })
}

/// Adds both versions of reflection: older clients use v1alpha.
fn with_reflection(router: Router) -> Router {
    let built = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = built().build_v1().expect("the generator wrote the descriptors");
    let v1alpha = built().build_v1alpha().expect("the generator wrote the descriptors");
    router
        .route_service(&path_of(&v1), v1.max_decoding_message_size(BODY_BYTES_MAX))
        .route_service(&path_of(&v1alpha), v1alpha.max_decoding_message_size(BODY_BYTES_MAX))
}

fn path_of<S: NamedService>(_: &S) -> String {
    format!("/{}/{{*method}}", S::NAME)
}
