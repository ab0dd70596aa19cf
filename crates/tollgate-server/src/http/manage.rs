//! Reading and operating: standings, policies, counts, health.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use serde::Serialize;
use tollgate::ErrorKind;

use super::input::{Json, Named};
use super::{guard, reply, unknown_path};
use crate::access::Caller;
use crate::app::App;
use crate::wire::{
    Admitted, Changed, ChargeRequest, CloseRequest, Problem, ViolationRequest, kind_name,
};

/// The status of a server that is not ready, whatever the reason.
const NOT_READY: u16 = 503;

/// `GET /v1/standing`: where a subject stands, consuming nothing.
pub(super) async fn standing(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(query): Named,
) -> Response {
    reply::result(app.standing_response(&caller, &query).await)
}

/// `DELETE /v1/standing`: forgets everything about a subject, for an operator who knows why.
pub(super) async fn reset(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Named(query): Named,
) -> Response {
    let done = app.reset(&caller, &query).await;
    reply::result(done.map(|changed| Changed { changed }))
}

/// `POST /v1/charge`: charges without deciding, for gates that stand in front of this one.
pub(super) async fn charge(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<ChargeRequest>,
) -> Response {
    let done = app.charge(&caller, &request).await;
    reply::result(done.map(|permit| Admitted::of(&permit, app.permit_keys().sealing(), app.now())))
}

/// `POST /v1/close`: closes a limit until a time.
pub(super) async fn close(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<CloseRequest>,
) -> Response {
    let done = app.close_until(&caller, &request).await;
    reply::result(done.map(|changed| Changed { changed }))
}

/// `GET /v1/policies`: what is in force.
pub(super) async fn policies(State(app): State<Arc<App>>) -> Response {
    reply::ok(&app.rules().describe())
}

/// `GET /v1/stats`: what this server answered since it started.
pub(super) async fn stats(State(app): State<Arc<App>>) -> Response {
    reply::ok(&app.stats())
}

/// `POST /v1/violations`: a provider refused what was admitted, so the limit is closed and people are told.
pub(super) async fn violation(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<ViolationRequest>,
) -> Response {
    reply::result(app.violation(&caller, &request).await)
}

/// `GET /metrics`: what was counted, for Prometheus.
pub(super) async fn metrics(State(app): State<Arc<App>>, uri: Uri) -> Response {
    match app.metrics_page() {
        Some(page) => reply::text(page.media_type, page.text),
        None => unknown_path(uri).await,
    }
}

#[derive(Serialize)]
struct Health {
    status: &'static str,
}

/// `GET /healthz`: the process answers.
pub(super) async fn health() -> Response {
    reply::ok(&Health { status: "ok" })
}

/// `GET /readyz`: requests are taken, and the store answers. The reason names the store, so without a key that may inspect
/// the answer is ready or not, also on a server without keys.
pub(super) async fn ready(State(app): State<Arc<App>>, request: Request) -> Response {
    let Err(error) = app.ready().await else { return reply::ok(&Health { status: "ready" }) };
    let (kind, detail) = if guard::may_inspect(&app, request.headers(), request.extensions()) {
        (error.kind(), error.to_string())
    } else {
        (ErrorKind::Unavailable, "not ready".to_owned())
    };
    reply::problem(&Problem::new(NOT_READY, kind_name(kind), detail))
}
