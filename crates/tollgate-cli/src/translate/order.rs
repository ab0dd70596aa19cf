//! A new job, however it was asked for: its plan, and the id that makes a repeat the same job.

use std::path::Path;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use tollgate::{Clock as _, Policy, Span, SystemClock};
use tollgate_translate::job::{JobState, JobStore};
use tollgate_translate::pipeline::{JobSpec, Route};
use tollgate_translate::plan::{Conditions, Micros, Plan, Price};
use tollgate_translate::{Calibration, Layout, PROMPT_VERSION, Task, chunk};

use super::desk;
use super::source::Source;
use crate::args::ProviderKind;
use crate::failure::Failure;

/// The model of Gemini, unless another is named.
const GEMINI_MODEL: &str = "gemini-2.5-flash";

/// A job that nobody set a bound for is paused, and somebody is asked, before it costs so many times what was planned.
const ASK_ABOVE: u64 = 2;

/// How much of a file's name is in the id of its job.
const STEM_CHARS: usize = 32;

/// How much of the hash of a job is in its id.
const HASH_BYTES: usize = 4;

/// The same for jobs of many owners, who do not know of each other.
const OWNED_HASH_BYTES: usize = 6;

/// What a job is made of.
pub(super) struct Order<'a> {
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

/// For whom the calls of a job are counted.
#[derive(Clone, Copy)]
pub(super) struct Owner<'a> {
    pub(super) policy: &'a str,
    pub(super) subject: &'a str,
}

impl Order<'_> {
    /// The job, without its id, and its plan under `policy`.
    pub(super) fn planned(self, policy: &Policy) -> Result<(JobSpec, Plan), Failure> {
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

/// The model that was named, or the usual one of the provider of `route`, if it has one.
pub(super) fn model<'a>(named: Option<&'a str>, route: &Route) -> Option<&'a str> {
    match desk::kind(route) {
        Ok(ProviderKind::Gemini) => named.or(Some(GEMINI_MODEL)),
        _ => named,
    }
}

/// Gives the job its id, and says whether it is there already. One that was cancelled is left behind. Jobs of different owners never
/// share an id.
pub(super) async fn identify(
    spec: &mut JobSpec,
    store: &dyn JobStore,
    owner: Option<Owner<'_>>,
) -> Result<bool, tollgate_translate::Error> {
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
