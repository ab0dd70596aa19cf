//! `GET /v1/audit` and `/v1/audit/top`: who was limited, when and why.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::get;
use tollgate_protocol::json::{AuditQuery, AuditResponse, TopQuery, TopResponse};

use super::super::{input, reply};
use super::{Endpoint, Method, STORE_PROBLEMS};
use crate::app::App;
use crate::keys::Scope;

pub(super) const RECORDS: Endpoint = Endpoint::new(
    Method::Get,
    "/v1/audit",
    "audit",
    "Who was limited, when and why, newest first.",
    || get(records),
)
.unbound_scope(Scope::Inspect)
.query::<AuditQuery>()
.returns::<AuditResponse>()
.problems(STORE_PROBLEMS);

async fn records(State(app): State<Arc<App>>, uri: Uri) -> Response {
    match input::query(&uri, "?policy=api&subject=alice&since=24h&outcome=denied&limit=100") {
        Ok(query) => reply::result(app.audit_records(&query).await),
        Err(problem) => reply::problem(&problem),
    }
}

pub(super) const TOP: Endpoint = Endpoint::new(
    Method::Get,
    "/v1/audit/top",
    "auditTop",
    "The subjects that were limited most often.",
    || get(top),
)
.unbound_scope(Scope::Inspect)
.query::<TopQuery>()
.returns::<TopResponse>()
.problems(STORE_PROBLEMS);

async fn top(State(app): State<Arc<App>>, uri: Uri) -> Response {
    match input::query(&uri, "?limit=10") {
        Ok(query) => reply::result(app.top_subjects(query).await),
        Err(problem) => reply::problem(&problem),
    }
}
