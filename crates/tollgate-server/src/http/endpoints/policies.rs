//! `/v1/policies`: lists the policies in force, and overrides them for one subject.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{delete, get, put};
use tollgate::audit::Outcome;
use tollgate::{Error, ErrorKind};
use tollgate_protocol::json::{
    Changed, OverrideDescription, OverrideRequest, PoliciesResponse, PolicyDescription,
    PolicyRequest, Problem,
};

use super::super::input::Json;
use super::super::reply;
use super::{ASK_PROBLEMS, Endpoint, Method};
use crate::access::Caller;
use crate::app::App;
use crate::keys::Scope;

pub(super) const LIST: Endpoint = Endpoint::new(
    Method::Get,
    "/v1/policies",
    "policies",
    "The policies in force, with the effective numbers.",
    || get(list),
)
.unbound_scope(Scope::Inspect)
.returns::<PoliciesResponse>();

async fn list(State(app): State<Arc<App>>) -> Response {
    reply::ok(&app.live_policies().describe())
}

/// The policy in the path, unless it is not UTF-8.
type PathName = Result<Path<String>, PathRejection>;

pub(super) const PUT_POLICY: Endpoint = Endpoint::new(
    Method::Put,
    "/v1/policies/{name}",
    "definePolicy",
    "Makes a policy that the configuration does not have, or changes one, at every broker on the store.",
    || put(put_policy),
)
.unbound_scope(Scope::Administer)
.body::<PolicyRequest>()
.returns::<PolicyDescription>()
.problems(ASK_PROBLEMS);

async fn put_policy(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    name: PathName,
    Json(request): Json<PolicyRequest>,
) -> Response {
    let Ok(Path(name)) = name else { return not_utf8() };
    let spec = request.named(name);
    let done = app.live_policies().define(&spec, app.clock()).await;
    if done.is_ok() {
        app.record_action(&caller, Outcome::Defined, &spec.name, "");
    }
    let described = done.and_then(|()| {
        let mut listed = app.live_policies().describe().policies.into_iter();
        let gone = || Error::new(ErrorKind::Contended, "another server removed it again");
        listed.find(|policy| policy.name == spec.name).ok_or_else(gone)
    });
    reply::result(described)
}

pub(super) const DELETE_POLICY: Endpoint = Endpoint::new(
    Method::Delete,
    "/v1/policies/{name}",
    "removePolicy",
    "Removes a policy that was made by API, and its overrides.",
    || delete(delete_policy),
)
.unbound_scope(Scope::Administer)
.returns::<Changed>()
.problems(ASK_PROBLEMS);

async fn delete_policy(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    name: PathName,
) -> Response {
    let Ok(Path(name)) = name else { return not_utf8() };
    let done = app.live_policies().undefine(&name, app.clock()).await;
    if matches!(done, Ok(true)) {
        app.record_action(&caller, Outcome::Removed, &name, "");
    }
    reply::changed(done)
}

/// The policy and the subject in the path, unless they are not UTF-8.
type PathNames = Result<Path<(String, String)>, PathRejection>;

pub(super) const PUT_OVERRIDE: Endpoint = Endpoint::new(
    Method::Put,
    "/v1/policies/{name}/overrides/{subject}",
    "override",
    "Gives a subject, or a pattern of subjects, numbers of its own, at every broker on the store.",
    || put(put_override),
)
.scope(Scope::Administer)
.body::<OverrideRequest>()
.returns::<OverrideDescription>()
.problems(ASK_PROBLEMS);

async fn put_override(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    names: PathNames,
    Json(request): Json<OverrideRequest>,
) -> Response {
    let Ok(Path((policy, subject))) = names else { return not_utf8() };
    let spec = request.for_subject(subject);
    if let Err(error) = caller.check_about(&policy, &spec.subject) {
        return reply::error(&error);
    }
    let done = app.live_policies().put(&policy, &spec, app.clock()).await;
    if done.is_ok() {
        app.record_action(&caller, Outcome::Overridden, &policy, &spec.subject);
    }
    reply::result(done)
}

pub(super) const DELETE_OVERRIDE: Endpoint = Endpoint::new(
    Method::Delete,
    "/v1/policies/{name}/overrides/{subject}",
    "removeOverride",
    "Gives a subject the numbers of the configuration again.",
    || delete(delete_override),
)
.scope(Scope::Administer)
.returns::<Changed>()
.problems(ASK_PROBLEMS);

async fn delete_override(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    names: PathNames,
) -> Response {
    let Ok(Path((policy, subject))) = names else { return not_utf8() };
    if let Err(error) = caller.check_about(&policy, &subject) {
        return reply::error(&error);
    }
    let done = app.live_policies().remove(&policy, &subject, app.clock()).await;
    if done.is_ok() {
        app.record_action(&caller, Outcome::Restored, &policy, &subject);
    }
    reply::changed(done)
}

fn not_utf8() -> Response {
    let detail = "the path is not UTF-8; write /v1/policies/api/overrides/alice, percent-encoded";
    reply::problem(&Problem::invalid(detail))
}
