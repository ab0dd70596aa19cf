//! The calls over gRPC: `tollgate.v1.Gate`, Envoy's rate limit service, health and reflection.
//!
//! Connections are hyper's, as those of HTTP are, so that limits and draining are the same; tonic only reads and writes
//! messages.

mod connection;
mod convert;
mod deadline;
pub(crate) mod envoy;
mod gate;
mod guard;
mod health;
mod status;

use std::sync::Arc;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::Response;
use tonic::Status;
use tonic::server::NamedService;

use crate::app::App;
use crate::bounds::BODY_BYTES_MAX;
use crate::http::request_id;
use crate::proto::DESCRIPTORS;
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use crate::proto::tollgate::v1::gate_server::GateServer;

pub(crate) use connection::serve;
use envoy::RateLimits;
use gate::GateCalls;
use health::{HealthCalls, HealthServer};

/// Every call that `app` answers.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let gate =
        GateServer::new(GateCalls::new(Arc::clone(app))).max_decoding_message_size(BODY_BYTES_MAX);
    let limits = RateLimitServiceServer::new(RateLimits::new(Arc::clone(app)))
        .max_decoding_message_size(BODY_BYTES_MAX);
    let health = HealthServer::new(HealthCalls::new(Arc::clone(app)))
        .max_decoding_message_size(BODY_BYTES_MAX);
    let calls =
        Router::new().route_service(&path_of(&gate), gate).route_service(&path_of(&limits), limits);
    with_reflection(calls)
        .route_layer(from_fn_with_state(Arc::clone(app), guard::guard))
        // Whoever runs the server asks it, and learns nothing but that it runs.
        .route_service(&path_of(&health), health)
        .fallback(async || -> Response {
            let text = "there is no such method; reflection lists what there is";
            Status::unimplemented(text).into_http()
        })
        .layer(from_fn_with_state(Arc::clone(app), deadline::keep))
        .layer(from_fn(request_id::name))
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
