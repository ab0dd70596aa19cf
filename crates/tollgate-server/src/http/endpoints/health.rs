//! `GET /v1/stats`, `/v1/queues`, `/v1/access`, `/metrics`, `/healthz` and `/readyz`: the state of the server.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use axum::routing::get;
use serde::Serialize;
use tollgate::ErrorKind;
use tollgate_protocol::json::{AccessResponse, Problem, QueuesResponse, StatsResponse, kind_name};

use super::super::service::unknown_path;
use super::super::{authorize, reply};
use super::{Endpoint, Method, Output};
use crate::access::Caller;
use crate::app::App;
use crate::keys::Scope;

pub(super) const STATS: Endpoint = Endpoint::new(
    Method::Get,
    "/v1/stats",
    "stats",
    "What this server answered since it started, and how its store is.",
    || get(stats),
)
.unbound_scope(Scope::Inspect)
.returns::<StatsResponse>();

async fn stats(State(app): State<Arc<App>>) -> Response {
    reply::ok(&app.stats())
}

pub(super) const QUEUES: Endpoint = Endpoint::new(
    Method::Get,
    "/v1/queues",
    "queues",
    "The asks that wait at this server: the longest queues, and the tenants in each.",
    || get(queues),
)
.unbound_scope(Scope::Inspect)
.returns::<QueuesResponse>();

async fn queues(State(app): State<Arc<App>>) -> Response {
    reply::ok(&app.queues())
}

pub(super) const ACCESS: Endpoint =
    Endpoint::new(Method::Get, "/v1/access", "access", "What the caller may do.", || get(access))
        .scope(Scope::Inspect)
        .returns::<AccessResponse>();

async fn access(Extension(caller): Extension<Caller>, headers: HeaderMap) -> Response {
    // Without a key in the header, only a certificate or an open server identifies the caller.
    let is_password = headers.contains_key(AUTHORIZATION) && authorize::bearer(&headers).is_none();
    let may = |scope: &Scope| caller.has(*scope) && (!is_password || *scope == Scope::Inspect);
    let scopes = Scope::ALL.into_iter().filter(may);
    reply::ok(&AccessResponse {
        key: caller.has_key().then(|| caller.name().to_owned()),
        scopes: scopes.map(|scope| scope.name().to_owned()).collect(),
    })
}

pub(super) const METRICS: Endpoint = Endpoint::new(
    Method::Get,
    "/metrics",
    "metrics",
    "Metrics for Prometheus; 404 where no metrics are kept.",
    || get(metrics),
)
.unbound_scope(Scope::Inspect)
.output(Output::Text("application/openmetrics-text"))
.problems(&[404]);

async fn metrics(State(app): State<Arc<App>>, uri: Uri) -> Response {
    match app.metrics_page() {
        Some(page) => reply::text(page.media_type, page.text),
        None => unknown_path(uri).await,
    }
}

#[derive(Serialize)]
struct Health {
    status: &'static str,
}

pub(super) const HEALTH: Endpoint =
    Endpoint::new(Method::Get, "/healthz", "health", "The process answers.", || get(health));

async fn health() -> Response {
    reply::ok(&Health { status: "ok" })
}

/// The status of a server that is not ready.
const NOT_READY: u16 = 503;

pub(super) const READY: Endpoint = Endpoint::new(
    Method::Get,
    "/readyz",
    "ready",
    "Requests are accepted, and the store answers. Only keys with the scope inspect get the reason of a failure.",
    || get(ready),
)
.problems(&[503]);

/// The reason names the store, so only a key that may inspect gets it, also on a server without keys.
async fn ready(State(app): State<Arc<App>>, request: Request) -> Response {
    let Err(error) = app.ready().await else { return reply::ok(&Health { status: "ready" }) };
    let (kind, detail) = if authorize::may_inspect(&app, request.headers(), request.extensions()) {
        (error.kind(), error.to_string())
    } else {
        (ErrorKind::Unavailable, "not ready".to_owned())
    };
    reply::problem(&Problem::new(NOT_READY, kind_name(kind), detail))
}
