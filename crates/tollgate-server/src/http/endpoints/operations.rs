//! The operations of a gate other than acquire, and the report of a violation.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{delete, get, post};
use tollgate_protocol::json::{
    Admitted, Changed, ChargeRequest, CloseRequest, PermitRequest, Renewed, SettleRequest,
    StandingQuery, StandingResponse, ViolationRequest,
};

use super::super::input::{Json, PolicyAndSubject};
use super::super::openapi::incident;
use super::super::reply;
use super::{ASK_PROBLEMS, Endpoint, Method, Output, PERMIT_PROBLEMS, POLICY_PROBLEMS};
use crate::access::Caller;
use crate::app::App;
use crate::keys::Scope;

pub(super) const SETTLE: Endpoint = Endpoint::new(
    Method::Post,
    "/v1/settle",
    "settle",
    "Replaces the estimate by the actual cost.",
    || post(settle),
)
.scope(Scope::Acquire)
.body::<SettleRequest>()
.returns::<Changed>()
.problems(PERMIT_PROBLEMS);

async fn settle(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<SettleRequest>,
) -> Response {
    reply::changed(app.settle(&caller, &request).await)
}

pub(super) const RELEASE: Endpoint = Endpoint::new(
    Method::Post,
    "/v1/release",
    "release",
    "Returns the whole charge: the call was not made.",
    || post(release),
)
.scope(Scope::Acquire)
.body::<PermitRequest>()
.returns::<Changed>()
.problems(PERMIT_PROBLEMS);

async fn release(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<PermitRequest>,
) -> Response {
    reply::changed(app.release(&caller, &request.permit).await)
}

pub(super) const RENEW: Endpoint =
    Endpoint::new(Method::Post, "/v1/renew", "renew", "Extends the slots of a permit.", || {
        post(renew)
    })
    .scope(Scope::Acquire)
    .body::<PermitRequest>()
    .returns::<Renewed>()
    .problems(PERMIT_PROBLEMS);

async fn renew(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<PermitRequest>,
) -> Response {
    let done = app.renew(&caller, &request.permit).await;
    reply::result(done.map(|permit| Renewed::new(&permit, app.permit_keys().sealing())))
}

pub(super) const STANDING: Endpoint = Endpoint::new(
    Method::Get,
    "/v1/standing",
    "standing",
    "The standing of a subject, consuming nothing.",
    || get(standing),
)
.scope(Scope::Inspect)
.query::<StandingQuery>()
.returns::<StandingResponse>()
.problems(POLICY_PROBLEMS);

async fn standing(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    PolicyAndSubject(query): PolicyAndSubject,
) -> Response {
    reply::result(app.standing_response(&caller, &query).await)
}

pub(super) const RESET: Endpoint = Endpoint::new(
    Method::Delete,
    "/v1/standing",
    "reset",
    "Forgets everything about a subject, for an operator who knows why.",
    || delete(reset),
)
.scope(Scope::Administer)
.query::<StandingQuery>()
.returns::<Changed>()
.problems(POLICY_PROBLEMS);

async fn reset(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    PolicyAndSubject(query): PolicyAndSubject,
) -> Response {
    reply::changed(app.reset(&caller, &query).await)
}

pub(super) const CHARGE: Endpoint = Endpoint::new(
    Method::Post,
    "/v1/charge",
    "charge",
    "Charges without deciding, for gates in front of this one.",
    || post(charge),
)
.scope(Scope::Administer)
.body::<ChargeRequest>()
.returns::<Admitted>()
.problems(ASK_PROBLEMS);

async fn charge(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<ChargeRequest>,
) -> Response {
    let done = app.charge(&caller, request).await;
    reply::result(done.map(|permit| Admitted::new(&permit, app.permit_keys().sealing(), app.now())))
}

pub(super) const CLOSE: Endpoint =
    Endpoint::new(Method::Post, "/v1/close", "close", "Closes a limit until a time.", || {
        post(close)
    })
    .scope(Scope::Administer)
    .body::<CloseRequest>()
    .returns::<Changed>()
    .problems(POLICY_PROBLEMS);

async fn close(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<CloseRequest>,
) -> Response {
    reply::changed(app.close_until(&caller, &request).await)
}

pub(super) const VIOLATION: Endpoint = Endpoint::new(
    Method::Post,
    "/v1/violations",
    "violation",
    "A provider refused what was admitted: closes the limit and alerts people.",
    || post(violation),
)
.scope(Scope::Acquire)
.body::<ViolationRequest>()
.output(Output::Json(incident))
.problems(PERMIT_PROBLEMS);

async fn violation(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<ViolationRequest>,
) -> Response {
    reply::result(app.violation(&caller, &request).await)
}
