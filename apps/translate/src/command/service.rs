//! The implementation of `/v1/translations` of a broker: creates, shows and cancels jobs. `tollgate translate worker` or the Lambda
//! function does the work, so the broker needs no key of a provider.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::chunk::CHUNK_TOKENS;
use crate::job::{Job, JobState, JobStore, NewJob};
use crate::pipeline::{JobOptions, JobSpec, Output, PARALLEL_DEFAULT, Route};
use crate::plan::{Micros, Prices};
use crate::{ErrorKind as Kind, Glossary, Language, Layout, Task, Term};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tollgate::core::bounds::NAME_BYTES_MAX;
use tollgate::gate::BoxFuture;
use tollgate::internal::{LogLimit, timeout};
use tollgate::{Clock, Error, ErrorKind, Policy, Span};
use tollgate_protocol::json::{Translation, TranslationRequest};
use tollgate_server::Translations;

use super::config::JobsConfig;
use super::context::{self, Jobs};
use super::new_job::{self, JobRequest, Owner};
use super::source::Source;
use super::{invalid, jobs};
use tollgate_terminal::Failure;

/// How long a request waits during an outage of the job store.
const OUTAGE_WAIT: Span = Span::from_secs(2);

/// The timeout of opening the job store.
const OPEN_TIMEOUT: Span = Span::from_secs(5);

/// The default name of a job.
const NAME_DEFAULT: &str = "document";

/// The default language of a document.
const FROM_DEFAULT: &str = "en";

/// The translations of a broker. Opens the job store of `[translate]` on the first request, so that the broker starts without it.
pub struct TranslationService {
    config: JobsConfig,
    opened: OnceCell<Jobs>,
    clock: Arc<dyn Clock>,
    log: LogLimit,
}

impl fmt::Debug for TranslationService {
    /// Omits the URL of a database, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TranslationService").finish_non_exhaustive()
    }
}

impl TranslationService {
    /// Returns the translations in the job store of `config`.
    #[must_use]
    pub fn new(config: JobsConfig, clock: Arc<dyn Clock>) -> Self {
        Self { config, opened: OnceCell::new(), clock, log: LogLimit::new() }
    }

    async fn store(&self) -> Result<&Arc<dyn JobStore>, Error> {
        let open = async {
            let jobs = context::jobs(&self.config).await?;
            jobs.outages.set_max_wait(OUTAGE_WAIT);
            Ok::<_, Failure>(jobs)
        };
        let opened =
            timeout(&*self.clock, OPEN_TIMEOUT, self.opened.get_or_try_init(|| open)).await;
        match opened {
            Some(Ok(jobs)) => Ok(&jobs.store),
            Some(Err(failure)) => Err(self.unavailable(&failure.problem().detail)),
            None => Err(self.unavailable(&format!("it could not be opened within {OPEN_TIMEOUT}"))),
        }
    }

    /// Returns the error for callers, and logs the cause, which may reveal how the broker reaches its job store.
    fn unavailable(&self, why: &str) -> Error {
        if let Some(suppressed) = self.log.pass(self.clock.now()) {
            tracing::error!(suppressed, "the job store of [translate] cannot be used: {why}");
        }
        let text = "the job store cannot be used now; retry later, and if it lasts, the broker's log has the cause";
        Error::new(ErrorKind::Unavailable, text)
    }

    fn refused(&self, error: &crate::Error) -> Error {
        match error.kind() {
            Kind::Invalid | Kind::Document => Error::new(ErrorKind::Invalid, error.to_string()),
            _ => self.unavailable(&error.to_string()),
        }
    }

    async fn create_job(
        &self,
        policy: &Policy,
        request: TranslationRequest,
    ) -> Result<Option<Translation>, Error> {
        let named = request.id.clone();
        let (policy, for_subject) = (policy.clone(), request.subject.clone());
        let owner = policy.clone();
        let prepared = spawn_blocking(move || prepare(&policy, request)).await;
        let prepared = prepared.map_err(|error| self.unavailable(&error.to_string()))?;
        let (mut spec, mut job) = prepared.map_err(|failure| match failure {
            Failure::Gate(error) => error,
            other => Error::new(ErrorKind::Invalid, other.problem().detail),
        })?;
        let store = self.store().await?;
        if named.is_none() {
            let owner = Owner { policy: owner.name(), subject: &for_subject };
            let found = new_job::identify(&mut spec, &**store, Some(owner)).await;
            found.map_err(|error| self.refused(&error))?;
            job.id = spec.id;
        }
        self.store_job(&**store, &job).await.map_err(|error| self.refused(&error))
    }

    /// Stores `job`, or finds it; `None` if its id belongs to another.
    async fn store_job(
        &self,
        store: &dyn JobStore,
        job: &NewJob,
    ) -> Result<Option<Translation>, crate::Error> {
        let is_new = store.create(job, self.clock.now()).await?;
        let Some(stored) = store.job(&job.id).await? else { return Ok(None) };
        let is_same = is_new
            || JobOptions::is_same_work(job, &stored)?
                && store.document(&job.id).await?.as_ref() == Some(&job.document);
        if is_same { describe(store, &stored).await.map(Some) } else { Ok(None) }
    }

    async fn find_job(&self, id: &str) -> Result<Option<Translation>, Error> {
        let store = self.store().await?;
        let found = async {
            match store.job(id).await? {
                Some(job) => describe(&**store, &job).await.map(Some),
                None => Ok(None),
            }
        };
        found.await.map_err(|error| self.refused(&error))
    }

    async fn recent_jobs(&self, limit: usize) -> Result<Vec<Translation>, Error> {
        let store = self.store().await?;
        let found = async {
            let mut all = Vec::new();
            for job in store.jobs().await?.iter().take(limit) {
                all.push(describe(&**store, job).await?);
            }
            Ok(all)
        };
        found.await.map_err(|error: crate::Error| self.refused(&error))
    }

    async fn write_document(&self, id: &str) -> Result<Vec<u8>, Error> {
        let (store, id) = (Arc::clone(self.store().await?), id.to_owned());
        let write = async move {
            let layout = match store.job(&id).await? {
                Some(job) => JobOptions::from_job(&job)?.layout,
                None => Layout::default(),
            };
            Output::assemble(&*store, &id, layout).await
        };
        // Writing a long document must not block the runtime.
        let written = spawn_blocking(move || Handle::current().block_on(write)).await;
        let written = written.map_err(|error| self.unavailable(&error.to_string()))?;
        Ok(written.map_err(|error| self.refused(&error))?.bytes)
    }

    async fn cancel_job(&self, id: &str) -> Result<bool, Error> {
        let store = self.store().await?;
        let cancelled = async {
            match store.job(id).await? {
                Some(job) if !job.state.is_over() => {
                    store.set_state(id, &JobState::Cancelled, self.clock.now()).await
                }
                _ => Ok(false),
            }
        };
        cancelled.await.map_err(|error| self.refused(&error))
    }
}

impl Translations for TranslationService {
    fn create<'a>(
        &'a self,
        policy: &'a Policy,
        request: TranslationRequest,
    ) -> BoxFuture<'a, Result<Option<Translation>, Error>> {
        Box::pin(self.create_job(policy, request))
    }

    fn find<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Translation>, Error>> {
        Box::pin(self.find_job(id))
    }

    fn recent(&self, limit: usize) -> BoxFuture<'_, Result<Vec<Translation>, Error>> {
        Box::pin(self.recent_jobs(limit))
    }

    fn document<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<u8>, Error>> {
        Box::pin(self.write_document(id))
    }

    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.cancel_job(id))
    }
}

/// Validates `request` and prepares its job, with the id that it names.
fn prepare(policy: &Policy, request: TranslationRequest) -> Result<(JobSpec, NewJob), Failure> {
    let format = request.format.trim_start_matches('.').to_ascii_lowercase().parse()?;
    let bytes = document(request.document, request.document_base64)?;
    let name = request.name.as_deref().or(request.id.as_deref()).unwrap_or(NAME_DEFAULT);
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Err(invalid(format!("name has {} bytes; use 1 to {NAME_BYTES_MAX}", name.len())));
    }
    context::check_quota(policy, &request.subject)?;
    let language = |member: &str, tag: &str| {
        tag.parse::<Language>().map_err(|error| invalid(format!("{member}: {error}")))
    };
    let from = request.from.as_deref().unwrap_or(FROM_DEFAULT);
    let mut task = Task::new(language("from", from)?, language("to", &request.to)?);
    if task.from.is_same_as(&task.to) {
        return Err(invalid(format!(
            "the document is in {:?} already; name another language in to or from",
            request.to
        )));
    }
    let terms = request.glossary.into_iter();
    task.glossary = Glossary::new(terms.map(|term| Term {
        source: term.source,
        target: term.target,
        note: term.note,
    }))?;
    task.instructions = request.instructions;
    let route = Route {
        provider: Some(request.provider.unwrap_or_else(|| "gemini".to_owned())),
        url: None,
        policy: Some(policy.name().to_owned()),
        subject: Some(request.subject),
    };
    if context::provider_kind(&route).is_err() {
        let provider = route.provider.unwrap_or_default();
        return Err(invalid(format!(
            "unknown provider {provider:?}; use \"gemini\", \"openai\" or \"anthropic\", or leave it out for gemini"
        )));
    }
    let model = new_job::model(request.model.as_deref(), &route)
        .ok_or_else(|| invalid("this provider has many models; name one in model"))?
        .to_owned();
    let chapters = request.chapters.as_deref();
    let source = Source::parse(PathBuf::from(name), bytes, format, false, chapters)?;
    if source.document.is_empty() {
        return Err(invalid(
            "the document has no text to translate; send it in document, or in base64 in document_base64",
        ));
    }
    let job_request = JobRequest {
        source: &source,
        task,
        price: Prices::built_in().price_for(&model),
        model,
        chunk_tokens: request.chunk_tokens.unwrap_or(CHUNK_TOKENS),
        workers: PARALLEL_DEFAULT,
        within: None,
        max_cost: request.max_cost_micros.map(Micros),
        layout: if request.bilingual { Layout::Bilingual } else { Layout::Translation },
        route,
    };
    let (mut spec, _) = job_request.plan(policy)?;
    let is_named = request.id.is_some();
    spec.id = request.id.unwrap_or_default();
    let job = spec.prepare()?;
    if is_named {
        job.check()?;
    }
    Ok((spec, job))
}

/// Decodes a document in text or base64.
fn document(text: Option<String>, base64: Option<String>) -> Result<Vec<u8>, Failure> {
    match (text, base64) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(base64)) => STANDARD
            .decode(base64)
            .map_err(|error| invalid(format!("document_base64 is not base64: {error}"))),
        _ => Err(invalid("send the document either in document or in document_base64")),
    }
}

async fn describe(store: &dyn JobStore, job: &Job) -> Result<Translation, crate::Error> {
    let counts = store.counts(&job.id).await?;
    let settings = JobOptions::from_job(job)?;
    let (resume_at, why) = job.state.pause();
    Ok(Translation {
        id: job.id.clone(),
        name: job.name.clone(),
        state: jobs::state(store, job).await?.to_owned(),
        finished: matches!(job.state, JobState::Completed | JobState::CompletedWithErrors),
        why: why.map(str::to_owned),
        resume_at,
        chunks: counts.all(),
        done: counts.done,
        failed: counts.failed,
        calls: counts.calls,
        input_tokens: counts.input_tokens,
        output_tokens: counts.output_tokens,
        cost_micros: counts.cost,
        max_cost_micros: settings.max_cost.map(|Micros(most)| most),
        from: settings.from.tag().to_owned(),
        to: settings.to.tag().to_owned(),
        format: settings.format.to_string(),
        model: settings.model,
        policy: settings.route.policy.unwrap_or_default(),
        subject: settings.route.subject.unwrap_or_default(),
        created_at: job.created_at,
        started_at: job.started_at,
        ended_at: job.ended_at,
    })
}
