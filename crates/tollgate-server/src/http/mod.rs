//! The calls over HTTP: which path does what.
//!
//! Bodies are JSON both ways, and whatever goes wrong is answered with a problem document that says what would be
//! right, an unknown path included.

mod acquire;
pub(crate) mod fields;
mod input;
mod manage;
mod permits;
mod reply;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, Uri};
use axum::response::Response;
use axum::routing::{get, post};

use crate::app::App;
use crate::bounds::BODY_BYTES_MAX;
use crate::dashboard;
use crate::wire::Problem;

/// Every call that `app` answers.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/acquire", post(acquire::one))
        .route("/v1/acquire/batch", post(acquire::batch))
        .route("/v1/settle", post(permits::settle))
        .route("/v1/release", post(permits::release))
        .route("/v1/renew", post(permits::renew))
        .route("/v1/charge", post(manage::charge))
        .route("/v1/close", post(manage::close))
        .route("/v1/standing", get(manage::standing).delete(manage::reset))
        .route("/v1/policies", get(manage::policies))
        .route("/v1/stats", get(manage::stats))
        .route("/healthz", get(manage::health))
        .route("/readyz", get(manage::ready))
        .route("/", get(dashboard::page))
        .route("/dashboard.css", get(dashboard::style))
        .route("/dashboard.js", get(dashboard::script))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(app)
}

async fn unknown_path(uri: Uri) -> Response {
    let detail = format!("there is nothing at {:?}; the calls start with /v1/", uri.path());
    reply::problem(&Problem::new(404, "not-found", detail))
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    let detail =
        format!("{:?} does not take {method}; the field Allow says what it takes", uri.path());
    reply::problem(&Problem::new(405, "method-not-allowed", detail))
}
