//! `POST /v1/settle`, `/v1/release` and `/v1/renew`: what follows an admission.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use tollgate_protocol::json::{Changed, PermitRequest, Renewed, SettleRequest};

use super::super::input::Json;
use super::super::reply;
use super::{Endpoint, Method, PERMIT_PROBLEMS};
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
    let done = app.settle(&caller, &request.permit, &request.actual).await;
    reply::result(done.map(|changed| Changed { changed }))
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
    let done = app.release(&caller, &request.permit).await;
    reply::result(done.map(|changed| Changed { changed }))
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
