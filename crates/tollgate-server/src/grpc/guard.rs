//! Turning away who has no key for a call, by the scopes that HTTP has.
//!
//! The key comes as `authorization: Bearer KEY` in the metadata. Health is not behind this.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::app::App;
use crate::http::bearer;
use crate::keys::{Refused, Scope};
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server;
use crate::proto::tollgate::v1::gate_server;
use crate::wire::KIND_TRAILER;

/// Answers the call if its key allows it.
pub(super) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let scope = scope_of(request.uri().path());
    match app.authenticate(bearer(request.headers())).and_then(|scopes| scopes.check(scope)) {
        Ok(()) => next.run(request).await,
        Err(refused) => status_of(refused).into_http(),
    }
}

/// What a call of `path` needs. One that is not known here needs the most, so that a new one is not open by oversight.
fn scope_of(path: &str) -> Scope {
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    match (service, method) {
        (
            gate_server::SERVICE_NAME,
            "Acquire" | "Settle" | "Release" | "Renew" | "ReportViolation",
        )
        | (rate_limit_service_server::SERVICE_NAME, _) => Scope::Acquire,
        (gate_server::SERVICE_NAME, "Standing") => Scope::Inspect,
        _ if service.starts_with("grpc.reflection.") => Scope::Inspect,
        _ => Scope::Administer,
    }
}

fn status_of(refused: Refused) -> Status {
    let code = match refused {
        Refused::Scope(_) => Code::PermissionDenied,
        Refused::Missing | Refused::Wrong | Refused::Expired(_) => Code::Unauthenticated,
    };
    let mut status = Status::new(code, refused.to_string());
    status.metadata_mut().insert(KIND_TRAILER, MetadataValue::from_static(refused.kind()));
    status
}
