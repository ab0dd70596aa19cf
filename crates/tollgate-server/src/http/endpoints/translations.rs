//! `/v1/translations`: translation jobs, which workers on other machines run.
//!
//! A key needs the scope `acquire` for the policy and subject of the job, which its calls are charged to; `inspect` for the list.

use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, HttpBody as _};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_DISPOSITION, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::response::Response;
use axum::routing::{get, post};
use tollgate::{Error, ErrorKind};
use tollgate_protocol::json::{
    CancelRequest, Changed, Problem, Translation, TranslationRequest, TranslationsResponse,
    kind_name,
};

use super::super::input::{self, Json};
use super::super::reply;
use super::{ASK_PROBLEMS, Endpoint, Method, Output, POLICY_PROBLEMS};
use crate::access::Caller;
use crate::app::App;
use crate::bounds::{TRANSLATION_BYTES_MAX, TRANSLATION_WAIT_MAX, TRANSLATIONS_SHOWN_MAX};
use crate::keys::Scope;
use crate::translations::Translations;

/// After how many seconds to retry when the job store is unavailable.
const RETRY_SECS: u64 = 5;

/// The id in the path, unless it is not UTF-8.
type PathId = Result<Path<String>, PathRejection>;

pub(super) const CREATE: Endpoint = Endpoint::new(
    Method::Post,
    "/v1/translations",
    "translate",
    "Creates a translation job for workers, or returns the one that an equal request created.",
    || post(create),
)
.scope(Scope::Acquire)
.body::<TranslationRequest>()
.returns::<Translation>()
.problems(ASK_PROBLEMS);

async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    let Some((jobs, uploads)) = app.translation_jobs() else { return not_configured() };
    let (head, body) = request.into_parts();
    if (TRANSLATION_BYTES_MAX as u64) < body.size_hint().lower() {
        return reply::problem(&too_large());
    }
    let Ok(_upload) = uploads.try_acquire() else {
        let text = "too many documents arrive at once; retry after a second";
        return reply::error(&Error::new(ErrorKind::Contended, text));
    };
    let bounds = (TRANSLATION_BYTES_MAX, TRANSLATION_WAIT_MAX);
    let request = match input::read_bounded(&app, &head.headers, body, bounds).await {
        Ok(request) => request,
        Err(problem) if problem.status == 413 => return reply::problem(&too_large()),
        Err(problem) => return reply::problem(&problem),
    };
    match create_job(&app, &caller, jobs, request).await {
        Ok(job) => reply::ok(&job),
        Err(error) => failure(&error),
    }
}

async fn create_job(
    app: &App,
    caller: &Caller,
    jobs: &dyn Translations,
    request: TranslationRequest,
) -> Result<Translation, Error> {
    caller.check_about(&request.policy, &request.subject)?;
    let policy = app.policy(caller, &request.policy)?;
    let job = jobs.create(&policy, request).await?;
    // A job that the key does not allow looks like one with another document.
    let is_allowed = |job: &Translation| caller.check_about(&job.policy, &job.subject).is_ok();
    let job = job.filter(is_allowed).ok_or_else(|| {
        let text = "the id belongs to a job with another document or other settings; use another id, or leave it out";
        Error::new(ErrorKind::Conflict, text)
    })?;
    tracing::info!(id = job.id, policy = job.policy, subject = job.subject, "translation job");
    Ok(job)
}

pub(super) const LIST: Endpoint = Endpoint::new(
    Method::Get,
    "/v1/translations",
    "translations",
    "The 20 newest translation jobs.",
    || get(list),
)
.unbound_scope(Scope::Inspect)
.returns::<TranslationsResponse>()
.problems(POLICY_PROBLEMS);

async fn list(State(app): State<Arc<App>>) -> Response {
    let Some((jobs, _)) = app.translation_jobs() else { return not_configured() };
    match jobs.recent(TRANSLATIONS_SHOWN_MAX).await {
        Ok(jobs) => reply::ok(&TranslationsResponse { jobs }),
        Err(error) => failure(&error),
    }
}

pub(super) const GET: Endpoint = Endpoint::new(
    Method::Get,
    "/v1/translations/{id}",
    "translation",
    "The progress of a translation job.",
    || get(progress),
)
.scope(Scope::Acquire)
.returns::<Translation>()
.problems(POLICY_PROBLEMS);

async fn progress(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    id: PathId,
) -> Response {
    match find(&app, &caller, id).await {
        Ok((_, job)) => reply::ok(&job),
        Err(response) => response,
    }
}

pub(super) const DOCUMENT: Endpoint = Endpoint::new(
    Method::Get,
    "/v1/translations/{id}/document",
    "translatedDocument",
    "The document of a finished translation job, byte for byte.",
    || get(document),
)
.scope(Scope::Acquire)
.output(Output::File)
.problems(ASK_PROBLEMS);

async fn document(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    id: PathId,
) -> Response {
    let (jobs, job) = match find(&app, &caller, id).await {
        Ok(found) => found,
        Err(response) => return response,
    };
    let Translation { id, state, format, chunks, done, .. } = &job;
    if !job.finished {
        let detail = format!(
            "the job {id:?} is {state}, with {done} of {chunks} chunks done; its document is there once it is completed"
        );
        return reply::problem(&Problem::new(409, kind_name(ErrorKind::Conflict), detail));
    }
    match jobs.document(id).await {
        Ok(bytes) => download(bytes, &format!("{id}.{format}")),
        Err(error) => failure(&error),
    }
}

pub(super) const CANCEL: Endpoint = Endpoint::new(
    Method::Post,
    "/v1/translations/{id}/cancel",
    "cancelTranslation",
    "Cancels a translation job; calls in flight are finished.",
    || post(cancel),
)
.scope(Scope::Acquire)
.body::<CancelRequest>()
.returns::<Changed>()
.problems(POLICY_PROBLEMS);

async fn cancel(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    id: PathId,
    // Required though empty: a web page of another site cannot send JSON.
    _: Json<CancelRequest>,
) -> Response {
    let (jobs, job) = match find(&app, &caller, id).await {
        Ok(found) => found,
        Err(response) => return response,
    };
    match jobs.cancel(&job.id).await {
        Ok(changed) => {
            tracing::info!(id = job.id, changed, "cancel translation job");
            reply::ok(&Changed { changed })
        }
        Err(error) => failure(&error),
    }
}

/// Returns the job that the path names, if `caller` may see it.
async fn find<'a>(
    app: &'a App,
    caller: &Caller,
    id: PathId,
) -> Result<(&'a dyn Translations, Translation), Response> {
    let Some((jobs, _)) = app.translation_jobs() else { return Err(not_configured()) };
    let Ok(Path(id)) = id else {
        let detail = "the path is not UTF-8; write /v1/translations/ID, percent-encoded";
        return Err(reply::problem(&Problem::invalid(detail)));
    };
    match jobs.find(&id).await {
        Ok(Some(job)) if caller.check_about(&job.policy, &job.subject).is_ok() => Ok((jobs, job)),
        // The policy and subject of the job are not disclosed.
        Ok(Some(_)) => Err(reply::error(&Error::new(
            ErrorKind::Forbidden,
            format!(
                "the key does not allow the policy and subject of the job {id:?}; use a key that does"
            ),
        ))),
        Ok(None) => {
            let detail =
                format!("there is no translation {id:?}; POST /v1/translations returns the id");
            Err(reply::problem(&Problem::new(404, "not-found", detail)))
        }
        Err(error) => Err(failure(&error)),
    }
}

/// Responds with `bytes` as a download. A document may be HTML, which a browser must not show as a page of this server.
fn download(bytes: Vec<u8>, name: &str) -> Response {
    let mut response = reply::bytes("application/octet-stream", bytes).map(Body::new);
    let fields = response.headers_mut();
    if let Ok(value) = HeaderValue::try_from(format!("attachment; filename=\"{name}\"")) {
        fields.insert(CONTENT_DISPOSITION, value);
    }
    fields.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn failure(error: &Error) -> Response {
    let mut response = reply::error(error);
    if error.kind() == ErrorKind::Unavailable {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(RETRY_SECS));
    }
    response
}

fn not_configured() -> Response {
    let detail = "this broker keeps no translations; add a table to its configuration and restart it, as in [translate] with \
                  jobs = \"embedded\", or \"postgres\" or \"dynamodb\" for workers on many machines";
    reply::problem(&Problem::new(404, "not-found", detail))
}

fn too_large() -> Problem {
    let detail = format!(
        "a body has at most {TRANSLATION_BYTES_MAX} bytes here; cut the document in parts, or use tollgate translate --detach"
    );
    Problem::new(413, "too-large", detail)
}
