//! Overrides by API: other numbers for one subject, for good.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::Response;
use tollgate::audit::Outcome;
use tollgate::spec::OverrideSpec;

use super::input::Json;
use super::reply;
use crate::access::Caller;
use crate::app::App;
use crate::wire::{Changed, OverrideRequest, Problem};

/// The names of a policy and a subject in the path, if they are text.
type Named = Result<Path<(String, String)>, PathRejection>;

/// `PUT /v1/policies/{name}/overrides/{subject}`: sets it, whatever was there before.
pub(super) async fn put(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    named: Named,
    Json(OverrideRequest { limits }): Json<OverrideRequest>,
) -> Response {
    let Ok(Path((policy, subject))) = named else { return not_text() };
    let spec = OverrideSpec { subject, limits };
    if let Err(error) = caller.check_about(&policy, &spec.subject) {
        return reply::error(&error);
    }
    let done = app.rules().put(&policy, &spec, app.clock()).await;
    if done.is_ok() {
        app.acted(&caller, Outcome::Overridden, &policy, &spec.subject);
    }
    reply::result(done)
}

/// `DELETE` of the same: the subject has the numbers of the configuration again.
pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    named: Named,
) -> Response {
    let Ok(Path((policy, subject))) = named else { return not_text() };
    if let Err(error) = caller.check_about(&policy, &subject) {
        return reply::error(&error);
    }
    let done = app.rules().remove(&policy, &subject, app.clock()).await;
    if done.is_ok() {
        app.acted(&caller, Outcome::Restored, &policy, &subject);
    }
    reply::result(done.map(|changed| Changed { changed }))
}

fn not_text() -> Response {
    let detail = "the path is not UTF-8; write /v1/policies/api/overrides/alice, percent-encoded";
    reply::problem(&Problem::invalid(detail))
}
