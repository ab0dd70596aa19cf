//! The calls over HTTP: which path does what.
//!
//! Bodies are JSON both ways, and whatever goes wrong is answered with a problem document that says what would be
//! right, an unknown path included.

mod acquire;
mod audit;
mod calls;
mod connection;
pub(crate) mod fields;
mod forward;
mod guard;
pub(crate) mod host;
mod input;
mod manage;
mod openapi;
mod overrides;
mod peer;
mod permits;
mod reply;
pub(crate) mod request_id;
mod routes;
mod translations;
mod unread;

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, Uri};
use axum::response::Response;
use axum::routing::{delete, get, post, put};

use crate::app::App;
use crate::dashboard;
use crate::keys::Scope;
use crate::wire::Problem;
pub(crate) use guard::bearer;
pub(crate) use openapi::limit_specs;
use routes::Routes;

pub(crate) use calls::Calls;
pub(crate) use connection::serve;

/// What `app` answers, but for what [`Calls`] answers itself.
fn router(app: Arc<App>) -> Router {
    if app.serves_only_metrics() {
        let open = Routes::new().route("/healthz", get(manage::health));
        let metrics = Routes::new().route("/metrics", get(manage::metrics));
        return open
            .merge(metrics.guarded_unbound(&app, Scope::Inspect))
            .into_router()
            .fallback(no_broker)
            .method_not_allowed_fallback(wrong_method)
            .with_state(app);
    }
    routes(&app)
        .into_router()
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(app)
}

/// Every call, by the scope that its key needs. Each is described in `openapi/calls.rs`.
fn routes(app: &Arc<App>) -> Routes {
    let acquire = Routes::new()
        .elsewhere(calls::ACQUIRE)
        .route("/v1/acquire/batch", post(acquire::batch))
        .route("/v1/forward-auth", get(forward::ask))
        .route("/v1/settle", post(permits::settle))
        .route("/v1/release", post(permits::release))
        .route("/v1/renew", post(permits::renew))
        .route("/v1/violations", post(manage::violation))
        .route("/v1/translations", post(translations::create))
        .route("/v1/translations/{id}", get(translations::find))
        .route("/v1/translations/{id}/cancel", post(translations::cancel))
        .route("/v1/translations/{id}/document", get(translations::document));
    let inspect = Routes::new().route("/v1/standing", get(manage::standing));
    let inspect_all = Routes::new()
        .route("/v1/policies", get(manage::policies))
        .route("/v1/stats", get(manage::stats))
        .route("/metrics", get(manage::metrics))
        .route("/v1/audit", get(audit::records))
        .route("/v1/audit/top", get(audit::top))
        .pages(dashboard::routes());
    let administer = Routes::new()
        .route("/v1/charge", post(manage::charge))
        .route("/v1/close", post(manage::close))
        .route("/v1/standing", delete(manage::reset))
        .route(
            "/v1/policies/{name}/overrides/{subject}",
            put(overrides::put).delete(overrides::remove),
        );
    // Whoever runs the server asks these, and learns nothing but that it runs, and how to call it.
    let open = Routes::new()
        .route("/healthz", get(manage::health))
        .route("/readyz", get(manage::ready))
        .route("/openapi.json", get(openapi::serve));
    open.merge(acquire.guarded(app, Scope::Acquire))
        .merge(inspect.guarded(app, Scope::Inspect))
        .merge(inspect_all.guarded_unbound(app, Scope::Inspect))
        .merge(administer.guarded(app, Scope::Administer))
}

async fn unknown_path(uri: Uri) -> Response {
    let detail = format!("there is nothing at {:?}; /openapi.json lists the calls", uri.path());
    reply::problem(&Problem::new(404, "not-found", detail))
}

async fn no_broker(uri: Uri) -> Response {
    let detail = format!(
        "there is nothing at {:?}; this is no broker, and serves /metrics and /healthz",
        uri.path()
    );
    reply::problem(&Problem::new(404, "not-found", detail))
}

async fn wrong_method(method: Method, uri: Uri) -> Response {
    let detail =
        format!("{:?} does not take {method}; the field Allow says what it takes", uri.path());
    reply::problem(&Problem::new(405, "method-not-allowed", detail))
}
