//! Checks of a call before it is answered: its host and its API key, with the scopes of the HTTP API.
//!
//! The key is `authorization: Bearer KEY` in the metadata. Health needs none.

use std::sync::Arc;

use axum::http::Request;
use tollgate_protocol::json::{KIND_TRAILER, MISDIRECTED};
use tollgate_protocol::protobuf::envoy::service::ratelimit::v3::rate_limit_service_server;
use tollgate_protocol::protobuf::tollgate::v1::gate_server;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use tonic_health::pb::health_server;

use crate::access::{Caller, Certificate};
use crate::app::App;
use crate::http::{bearer, foreign_host};
use crate::keys::{Refused, Scope};

/// Refuses a call to another host, or without a key for it; adds the [`Caller`] to the request.
pub(super) fn check<B>(app: &App, request: &mut Request<B>) -> Result<(), Status> {
    if let Some(why) = foreign_host(app, request.headers(), request.uri()) {
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

/// Returns the caller that [`check`] added.
pub(super) fn caller_of<T>(request: &tonic::Request<T>) -> Result<Caller, Status> {
    let unknown = || Status::internal("a call without a caller");
    request.extensions().get().cloned().ok_or_else(unknown)
}

/// Returns the scope that a call of `path` needs. An unknown one needs the most, so that a new one is not open by oversight.
fn scope_of(path: &str) -> Option<Scope> {
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    match (service, method) {
        (
            gate_server::SERVICE_NAME,
            "Acquire" | "Settle" | "Release" | "Renew" | "ReportViolation",
        )
        | (rate_limit_service_server::SERVICE_NAME, _) => Some(Scope::Acquire),
        (gate_server::SERVICE_NAME, "Standing") => Some(Scope::Inspect),
        // Health discloses nothing but that the server runs.
        (health_server::SERVICE_NAME, _) => None,
        _ if service.starts_with("grpc.reflection.") => Some(Scope::Inspect),
        _ => Some(Scope::Administer),
    }
}

fn status_of(refused: Refused) -> Status {
    let code = match refused {
        Refused::Scope(_) | Refused::Bound => Code::PermissionDenied,
        Refused::Missing | Refused::Wrong | Refused::Expired(_) | Refused::Token(_) => {
            Code::Unauthenticated
        }
    };
    with_kind(code, refused.to_string(), refused.kind())
}

fn with_kind(code: Code, text: String, kind: &'static str) -> Status {
    let mut status = Status::new(code, text);
    status.metadata_mut().insert(KIND_TRAILER, MetadataValue::from_static(kind));
    status
}
