//! The calls over gRPC: `tollgate.v1.Gate`, Envoy's rate limit service, health and reflection.
//!
//! Connections are hyper's, as those of HTTP are, so that limits and draining are the same; tonic only reads and writes
//! messages.

mod connection;
mod convert;
mod deadline;
pub(crate) mod envoy;
mod executor;
mod gate;
mod guard;
mod health;
mod status;

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response};
use axum::{BoxError, Router};
use futures_util::FutureExt as _;
use tonic::Status;
use tonic::body::Body as Message;
use tonic::codegen::{BoxFuture, Service as _};
use tonic::server::NamedService;

use crate::app::App;
use crate::bounds::BODY_BYTES_MAX;
use crate::http::request_id::Name;
use crate::proto::DESCRIPTORS;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::{
    self, RateLimitServiceServer,
};
use crate::proto::tollgate::v1::gate_server::{self, GateServer};

pub(crate) use connection::serve;
use envoy::RateLimits;
use gate::GateCalls;
use health::{HealthCalls, HealthServer};

/// Every call that an app answers. What stands in the path of every request is found by its name alone, and the rest by a
/// router.
pub(crate) struct Calls {
    app: Arc<App>,
    gate: GateServer<GateCalls>,
    limits: RateLimitServiceServer<RateLimits>,
    others: Router,
}

impl Calls {
    pub(crate) fn new(app: &Arc<App>) -> Self {
        let gate = GateServer::new(GateCalls::new(Arc::clone(app)));
        let limits = RateLimitServiceServer::new(RateLimits::new(Arc::clone(app)));
        Self {
            app: Arc::clone(app),
            gate: gate.max_decoding_message_size(BODY_BYTES_MAX),
            limits: limits.max_decoding_message_size(BODY_BYTES_MAX),
            others: others(app),
        }
    }

    /// The answer to `request`.
    pub(crate) fn answer<B>(
        &self,
        mut request: Request<B>,
    ) -> impl Future<Output = Response<Message>> + Send + use<B>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + Send,
    {
        let (app, name) = (Arc::clone(&self.app), Name::of(&request));
        let allowed = guard::check(&app, &mut request);
        let timeout = allowed.and_then(|()| deadline::of(request.headers()));
        let answer = timeout.map(|timeout| (timeout, self.call(request)));
        name.on(async move {
            let answered = match answer {
                Ok((timeout, answer)) => deadline::keep(&app, timeout, answer).await,
                Err(status) => Err(status),
            };
            let Ok(mut response) = answered.unwrap_or_else(|status| Ok(status.into_http()));
            status::blame_caller(&mut response);
            response
        })
    }

    fn call<B>(&self, request: Request<B>) -> BoxFuture<Response<Message>, Infallible>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError> + Send,
    {
        match service_of(request.uri().path()) {
            gate_server::SERVICE_NAME => self.gate.clone().call(request),
            rate_limit_service_server::SERVICE_NAME => self.limits.clone().call(request),
            _ => {
                let answer = self.others.clone().call(request.map(Body::new));
                Box::pin(answer.map(|done| done.map(|response| response.map(Message::new))))
            }
        }
    }
}

/// The service whose method `path` is.
fn service_of(path: &str) -> &str {
    path.trim_start_matches('/').split('/').next().unwrap_or_default()
}

/// Health and reflection.
fn others(app: &Arc<App>) -> Router {
    let health = HealthServer::new(HealthCalls::new(Arc::clone(app)))
        .max_decoding_message_size(BODY_BYTES_MAX);
    with_reflection(Router::new()).route_service(&path_of(&health), health).fallback(async || {
        let text = "there is no such method; reflection lists what there is";
        Status::unimplemented(text).into_http::<Body>()
    })
}

/// Clients of two ages ask for reflection under two names.
fn with_reflection(router: Router) -> Router {
    let built = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = built().build_v1().expect("the descriptors are those of the generator");
    let v1alpha = built().build_v1alpha().expect("the descriptors are those of the generator");
    router
        .route_service(&path_of(&v1), v1.max_decoding_message_size(BODY_BYTES_MAX))
        .route_service(&path_of(&v1alpha), v1alpha.max_decoding_message_size(BODY_BYTES_MAX))
}

fn path_of<S: NamedService>(_: &S) -> String {
    format!("/{}/{{*method}}", S::NAME)
}
