//! A new job of the command or of the broker: its plan, and its id, which makes creation idempotent.

use std::path::Path;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use tollgate::clock::SystemClock;
use tollgate::{Clock as _, Policy, Span};
use tollgate_terminal::Failure;

use super::args::ProviderKind;
use super::context;
use super::source::Source;
use crate::job::{JobState, JobStore};
use crate::pipeline::{JobSpec, Route};
use crate::plan::{Conditions, Micros, Plan, Price};
use crate::{Calibration, Layout, PROMPT_VERSION, Task, chunk};

/// The default model of Gemini.
const GEMINI_MODEL: &str = "gemini-2.5-flash";

/// The soft budget of a job without a budget, relative to its plan.
const ASK_ABOVE: u64 = 2;

/// How much of the file name is in the id.
const STEM_CHARS: usize = 32;

/// How much of the hash is in the id.
const HASH_BYTES: usize = 4;

/// The same for jobs of many owners.
const OWNED_HASH_BYTES: usize = 6;

/// The request for a new job.
pub(super) struct JobRequest<'a> {
    pub(super) source: &'a Source,
    pub(super) task: Task,
    pub(super) model: String,
    pub(super) chunk_tokens: u64,
    pub(super) workers: usize,
    pub(super) price: Option<Price>,
    pub(super) within: Option<Span>,
    pub(super) max_cost: Option<Micros>,
    pub(super) layout: Layout,
    pub(super) route: Route,
}

/// The quota of the calls of a job.
#[derive(Clone, Copy)]
pub(super) struct Owner<'a> {
    pub(super) policy: &'a str,
    pub(super) subject: &'a str,
}

impl JobRequest<'_> {
    /// Returns the job, without its id, and its plan under `policy`.
    pub(super) fn plan(self, policy: &Policy) -> Result<(JobSpec, Plan), Failure> {
        let Self { source, task, model, chunk_tokens, price, max_cost, .. } = self;
        let mut document = source.document.clone();
        let chunks = chunk::cut(&mut document, chunk_tokens)?;
        let mut conditions = Conditions::new(&model, policy.clone(), SystemClock.now());
        conditions.workers = self.workers;
        (conditions.price, conditions.within) = (price, self.within);
        conditions.max_cost = max_cost;
        let calibration = Calibration::default();
        let plan = Plan::make(&task, &document, &chunks, chunk_tokens, &calibration, &conditions)?;
        let mut spec = JobSpec::new("", source.bytes.clone(), document.format(), task, model);
        spec.chapters.clone_from(&source.chapters);
        spec.name = source.file.display().to_string();
        spec.chunk_tokens = chunk_tokens;
        (spec.price, spec.max_cost) = (price, max_cost);
        spec.ask_above =
            plan.cost_micros.map(|Micros(cost)| Micros(cost.saturating_mul(ASK_ABOVE)));
        (spec.layout, spec.route) = (self.layout, self.route);
        Ok((spec, plan))
    }
}

/// Returns the named model, or the default of the provider of `route`.
pub(super) fn model<'a>(named: Option<&'a str>, route: &Route) -> Option<&'a str> {
    match context::provider_kind(route) {
        Ok(ProviderKind::Gemini) => named.or(Some(GEMINI_MODEL)),
        _ => named,
    }
}

/// Sets the id of the job, and returns whether it exists. A cancelled job gets a successor. Jobs of different owners never share an id.
pub(super) async fn identify(
    spec: &mut JobSpec,
    store: &dyn JobStore,
    owner: Option<Owner<'_>>,
) -> Result<bool, crate::Error> {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    let task = &spec.task;
    let rest = json!([
        PROMPT_VERSION,
        task.from,
        task.to,
        task.glossary.terms(),
        task.instructions,
        task.context_tokens,
        spec.chunk_tokens,
        spec.model,
        spec.layout,
        spec.output,
        spec.format,
        spec.chapters
    ]);
    part(&spec.document);
    part(rest.to_string().as_bytes());
    if let Some(Owner { policy, subject }) = owner {
        part(policy.as_bytes());
        part(subject.as_bytes());
    }
    let digits = if owner.is_some() { OWNED_HASH_BYTES } else { HASH_BYTES };
    let hash: String =
        hash.finalize().iter().take(digits).map(|byte| format!("{byte:02x}")).collect();
    let stem = Path::new(&spec.name).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let stem: String = stem.chars().map(plain).take(STEM_CHARS).collect();
    let stem = match stem.trim_matches('-') {
        "" => "document",
        stem => stem,
    };
    let first = format!("{stem}-{}-{hash}", task.to.tag().to_ascii_lowercase());
    spec.id.clone_from(&first);
    for number in 2.. {
        match store.job(&spec.id).await?.map(|job| job.state) {
            Some(JobState::Cancelled) => spec.id = format!("{first}-{number}"),
            found => return Ok(found.is_some()),
        }
    }
    Ok(false)
}
