//! `GET` and `DELETE /v1/standing`: reads or resets the standing of a subject.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{delete, get};
use tollgate_protocol::json::{Changed, StandingQuery, StandingResponse};

use super::super::input::PolicyAndSubject;
use super::super::reply;
use super::{Endpoint, Method, POLICY_PROBLEMS};
use crate::access::Caller;
use crate::app::App;
use crate::keys::Scope;

pub(super) const GET: Endpoint = Endpoint::new(
    Method::Get,
    "/v1/standing",
    "standing",
    "The standing of a subject, consuming nothing.",
    || get(standing),
)
.scope(Scope::Inspect)
.query::<StandingQuery>()
.returns::<StandingResponse>()
.problems(POLICY_PROBLEMS);

async fn standing(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    PolicyAndSubject(query): PolicyAndSubject,
) -> Response {
    reply::result(app.standing_response(&caller, &query).await)
}

pub(super) const RESET: Endpoint = Endpoint::new(
    Method::Delete,
    "/v1/standing",
    "reset",
    "Forgets everything about a subject, for an operator who knows why.",
    || delete(reset),
)
.scope(Scope::Administer)
.query::<StandingQuery>()
.returns::<Changed>()
.problems(POLICY_PROBLEMS);

async fn reset(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    PolicyAndSubject(query): PolicyAndSubject,
) -> Response {
    let done = app.reset(&caller, &query).await;
    reply::result(done.map(|changed| Changed { changed }))
}
