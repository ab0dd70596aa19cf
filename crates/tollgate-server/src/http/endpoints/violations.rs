//! `POST /v1/violations`: reports that a provider refused what was admitted.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use tollgate_protocol::json::ViolationRequest;

use super::super::input::Json;
use super::super::openapi::incident;
use super::super::reply;
use super::{Endpoint, Method, Output, PERMIT_PROBLEMS};
use crate::access::Caller;
use crate::app::App;
use crate::keys::Scope;

pub(super) const REPORT: Endpoint = Endpoint::new(
    Method::Post,
    "/v1/violations",
    "violation",
    "A provider refused what was admitted: closes the limit and alerts people.",
    || post(report),
)
.scope(Scope::Acquire)
.body::<ViolationRequest>()
.output(Output::Json(incident))
.problems(PERMIT_PROBLEMS);

async fn report(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<ViolationRequest>,
) -> Response {
    reply::result(app.violation(&caller, &request).await)
}
