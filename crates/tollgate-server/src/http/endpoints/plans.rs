//! `/v1/subjects/{subject}/plan`: puts a subject on a plan of the configuration.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{delete, put};
use tollgate::audit::Outcome;
use tollgate_protocol::json::{Changed, PlanAssignment, PlanRequest, Problem};

use super::super::input::Json;
use super::super::reply;
use super::{ASK_PROBLEMS, Endpoint, Method};
use crate::access::Caller;
use crate::app::App;
use crate::keys::Scope;

/// The kind of a problem with the name of a plan.
const UNKNOWN_PLAN: &str = "unknown-plan";

/// The subject in the path, unless it is not UTF-8.
type PathSubject = Result<Path<String>, PathRejection>;

pub(super) const PUT_PLAN: Endpoint = Endpoint::new(
    Method::Put,
    "/v1/subjects/{subject}/plan",
    "assignPlan",
    "Puts a subject, or a pattern of subjects, on a plan, at every broker on the store.",
    || put(put_plan),
)
.unbound_scope(Scope::Administer)
.body::<PlanRequest>()
.returns::<PlanAssignment>()
.problems(ASK_PROBLEMS);

async fn put_plan(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    subject: PathSubject,
    Json(PlanRequest { plan }): Json<PlanRequest>,
) -> Response {
    let Ok(Path(subject)) = subject else { return not_utf8() };
    if let Err(error) = app.policies().plan_index(&plan) {
        return reply::problem(&Problem::new(404, UNKNOWN_PLAN, error.to_string()));
    }
    let done = app.live_policies().assign(&subject, &plan, app.clock()).await;
    if done.is_ok() {
        app.record_action(&caller, Outcome::Assigned, &plan, &subject);
    }
    reply::result(done.map(|()| PlanAssignment { subject, plan }))
}

pub(super) const DELETE_PLAN: Endpoint = Endpoint::new(
    Method::Delete,
    "/v1/subjects/{subject}/plan",
    "unassignPlan",
    "Gives a subject the plan of the configuration again.",
    || delete(delete_plan),
)
.unbound_scope(Scope::Administer)
.returns::<Changed>()
.problems(ASK_PROBLEMS);

async fn delete_plan(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    subject: PathSubject,
) -> Response {
    let Ok(Path(subject)) = subject else { return not_utf8() };
    let done = app.live_policies().unassign(&subject, app.clock()).await;
    if let Ok(Some(plan)) = &done {
        app.record_action(&caller, Outcome::Unassigned, plan, &subject);
    }
    reply::changed(done.map(|plan| plan.is_some()))
}

fn not_utf8() -> Response {
    let detail = "the path is not UTF-8; write /v1/subjects/alice/plan, percent-encoded";
    reply::problem(&Problem::invalid(detail))
}
