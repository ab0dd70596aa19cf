//! `POST /v1/settle`, `POST /v1/release` and `POST /v1/renew`: what follows an admission.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;

use super::input::Json;
use super::reply;
use crate::access::Caller;
use crate::app::App;
use crate::wire::{Changed, PermitRequest, Renewed, SettleRequest};

/// Replaces the estimate by the actual cost.
pub(super) async fn settle(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<SettleRequest>,
) -> Response {
    let done = app.settle(&caller, &request.permit, &request.actual).await;
    reply::result(done.map(|changed| Changed { changed }))
}

/// The call was not made: gives everything back.
pub(super) async fn release(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<PermitRequest>,
) -> Response {
    let done = app.release(&caller, &request.permit).await;
    reply::result(done.map(|changed| Changed { changed }))
}

/// Keeps a slot alive.
pub(super) async fn renew(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<PermitRequest>,
) -> Response {
    let done = app.renew(&caller, &request.permit).await;
    reply::result(done.map(|permit| Renewed::of(&permit, app.permit_keys().sealing())))
}
