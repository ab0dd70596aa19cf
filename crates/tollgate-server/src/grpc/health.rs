//! `grpc.health.v1`: readiness, for load balancers that speak gRPC.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use tollgate_protocol::protobuf::tollgate::v1::gate_server::GateServer;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

pub(super) use tonic_health::pb::health_server::HealthServer;

use super::envoy::RateLimitHandler;
use super::gate::GateHandler;
use crate::app::App;
use crate::bounds::{HEALTH_EVERY, WATCHERS_MAX};

/// The services whose health is known; the empty name is the server.
const NAMES: [&str; 3] =
    ["", GateServer::<GateHandler>::NAME, RateLimitServiceServer::<RateLimitHandler>::NAME];

pub(super) struct HealthHandler {
    app: Arc<App>,
    watchers: Arc<Semaphore>,
}

impl HealthHandler {
    pub(super) fn new(app: Arc<App>) -> Self {
        Self { app, watchers: Arc::new(Semaphore::new(WATCHERS_MAX)) }
    }
}

fn serving(is_serving: bool) -> HealthCheckResponse {
    let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    HealthCheckResponse { status: status.into() }
}

fn check_name(name: &str) -> Result<(), Status> {
    if NAMES.contains(&name) {
        return Ok(());
    }
    Err(Status::not_found(format!("unknown service {name:?}; leave it out, or use reflection")))
}

#[tonic::async_trait]
impl Health for HealthHandler {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        check_name(&request.into_inner().service)?;
        Ok(Response::new(serving(self.app.ready().await.is_ok())))
    }

    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    /// Streams the status now, on every change, and when the server stops.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        check_name(&request.into_inner().service)?;
        let slot = Arc::clone(&self.watchers).try_acquire_owned().map_err(|_| {
            let text = format!("there are {WATCHERS_MAX} watchers already; call Check instead");
            Status::resource_exhausted(text)
        })?;
        let (sender, receiver) = tokio::sync::mpsc::channel(2);
        let app = Arc::clone(&self.app);
        tokio::spawn(async move {
            let _slot = slot;
            let mut stopping = app.stopping();
            let mut sent = None;
            loop {
                let is_stopping = *stopping.borrow();
                let is_serving = app.ready().await.is_ok();
                if sent != Some(is_serving) && sender.send(Ok(serving(is_serving))).await.is_err() {
                    return;
                }
                sent = Some(is_serving);
                if is_stopping {
                    return;
                }
                tokio::select! {
                    // An error means that the server is gone, and so stopped.
                    _ = stopping.wait_for(|stopping| *stopping) => {}
                    () = sender.closed() => return,
                    () = app.clock().sleep_until(app.now() + HEALTH_EVERY) => {}
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}
