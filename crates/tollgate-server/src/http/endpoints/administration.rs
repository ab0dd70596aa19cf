//! `POST /v1/charge` and `/v1/close`: what strategies and operators do.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use tollgate_protocol::json::{Admitted, Changed, ChargeRequest, CloseRequest};

use super::super::input::Json;
use super::super::reply;
use super::{ASK_PROBLEMS, Endpoint, Method, POLICY_PROBLEMS};
use crate::access::Caller;
use crate::app::App;
use crate::keys::Scope;

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
    let done = app.charge(&caller, &request).await;
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
    let done = app.close_until(&caller, &request).await;
    reply::result(done.map(|changed| Changed { changed }))
}
