//! Reading and operating: standings, policies, counts, health.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::response::Response;
use serde::Serialize;

use super::input::{Json, Named};
use super::{guard, reply, unknown_path};
use crate::access::Caller;
use crate::app::App;
use crate::keys::Scope;
use crate::wire::{
    Admitted, Changed, ChargeRequest, CloseRequest, Problem, ViolationRequest, kind_name, status_of,
};

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

/// `GET /readyz`: requests are taken, and the store answers. Why it is not ready is for callers who may inspect.
pub(super) async fn ready(State(app): State<Arc<App>>, request: Request) -> Response {
    match app.ready().await {
        Ok(()) => reply::ok(&Health { status: "ready" }),
        Err(error) => {
            let kind = kind_name(error.kind());
            let (headers, extensions) = (request.headers(), request.extensions());
            let may_inspect = guard::check(&app, headers, extensions, Scope::Inspect).is_ok();
            let detail = if may_inspect { error.to_string() } else { "not ready".to_owned() };
            reply::problem(&Problem::new(status_of(error.kind()), kind, detail))
        }
    }
}
