//! Turning away who has no key for a call, by the scopes that HTTP has.
//!
//! The key comes as `authorization: Bearer KEY` in the metadata. Health needs none.

use std::sync::Arc;

use axum::http::Request;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use tonic_health::pb::health_server;

use crate::access::{Caller, Certificate};
use crate::app::App;
use crate::http::bearer;
use crate::http::host;
use crate::keys::{Refused, Scope};
use crate::proto::envoy::service::ratelimit::v3::rate_limit_service_server;
use crate::proto::tollgate::v1::gate_server;
use crate::wire::{KIND_TRAILER, MISDIRECTED};

/// Turns away calls to another host and callers without a key for the call, and notes who makes it.
pub(super) fn check<B>(app: &App, request: &mut Request<B>) -> Result<(), Status> {
    if let Some(why) = host::foreign(app, request.headers(), request.uri()) {
        return Err(with_kind(Code::PermissionDenied, why, MISDIRECTED));
    }
    let Some(scope) = scope_of(request.uri().path()) else { return Ok(()) };
    let certificate = request.extensions().get::<Arc<Certificate>>();
    let certificate = certificate.map(|certificate| &**certificate);
    let caller = app.caller(bearer(request.headers()), certificate).map_err(status_of)?;
    caller.check(scope).map_err(status_of)?;
    request.extensions_mut().insert(caller);
    Ok(())
}

/// Who makes a call that [`check`] let in.
pub(super) fn caller_of<T>(request: &tonic::Request<T>) -> Result<Caller, Status> {
    let unknown = || Status::internal("a call without a caller");
    request.extensions().get().cloned().ok_or_else(unknown)
}

/// What a call of `path` needs. One that is not known here needs the most, so that a new one is not open by oversight.
fn scope_of(path: &str) -> Option<Scope> {
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    match (service, method) {
        (
            gate_server::SERVICE_NAME,
            "Acquire" | "Settle" | "Release" | "Renew" | "ReportViolation",
        )
        | (rate_limit_service_server::SERVICE_NAME, _) => Some(Scope::Acquire),
        (gate_server::SERVICE_NAME, "Standing") => Some(Scope::Inspect),
        // Whoever runs the server asks for its health, and learns nothing but that it runs.
        (health_server::SERVICE_NAME, _) => None,
        _ if service.starts_with("grpc.reflection.") => Some(Scope::Inspect),
        _ => Some(Scope::Administer),
    }
}

fn status_of(refused: Refused) -> Status {
    let code = match refused {
        Refused::Scope(_) | Refused::Bound => Code::PermissionDenied,
        Refused::Missing | Refused::Wrong | Refused::Expired(_) => Code::Unauthenticated,
    };
    with_kind(code, refused.to_string(), refused.kind())
}

fn with_kind(code: Code, text: String, kind: &'static str) -> Status {
    let mut status = Status::new(code, text);
    status.metadata_mut().insert(KIND_TRAILER, MetadataValue::from_static(kind));
    status
}
