//! `GET /v1/history` and `/v1/history/subject`: what was decided, and what a subject used, over time.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use axum::routing::get;
use tollgate_protocol::json::{
    HistoryQuery, HistoryResponse, StandingQuery, SubjectHistoryResponse,
};

use super::super::input::PolicyAndSubject;
use super::super::{input, reply};
use super::{Endpoint, Method, POLICY_PROBLEMS};
use crate::access::Caller;
use crate::app::App;
use crate::keys::Scope;

pub(super) const HISTORY: Endpoint = Endpoint::new(
    Method::Get,
    "/v1/history",
    "history",
    "What this server decided in each ten seconds of the last hour, or each five minutes of the last day.",
    || get(history),
)
.unbound_scope(Scope::Inspect)
.query::<HistoryQuery>()
.returns::<HistoryResponse>();

async fn history(State(app): State<Arc<App>>, uri: Uri) -> Response {
    match input::query(&uri, "?policy=api&since=15m&step=10s") {
        Ok(query) => reply::result(app.history_response(&query)),
        Err(problem) => reply::problem(&problem),
    }
}

pub(super) const SUBJECT: Endpoint = Endpoint::new(
    Method::Get,
    "/v1/history/subject",
    "subjectHistory",
    "How much of each limit a subject used in the last hour, since this was first called for it.",
    || get(subject),
)
.scope(Scope::Inspect)
.query::<StandingQuery>()
.returns::<SubjectHistoryResponse>()
.problems(POLICY_PROBLEMS);

async fn subject(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    PolicyAndSubject(query): PolicyAndSubject,
) -> Response {
    reply::result(app.subject_history(&caller, &query).await)
}
