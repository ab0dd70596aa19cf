//! The plan of a job before it starts: how many requests, what they cost, which limit binds, when it ends.
//!
//! It promises nothing that the limits do not allow. Where a wish cannot be met, it names the settings that would meet it, and
//! each of these was tried in the same forecast.

mod fit;
mod forecast;
mod price;
mod remedy;
mod search;
mod text;

pub use fit::size_for_a_day;
pub use price::{Micros, Price, Prices};
pub use remedy::Warning;

use serde::Serialize;
use tollgate_core::{Policy, Span, Timestamp};

use crate::chunk::Chunk;
use crate::document::Document;
use crate::error::Error;
use crate::estimate::Calibration;
use crate::prompt::{Estimate, Task};
use forecast::{Crew, Forecast, forecast, without_slots};

/// The most workers of one job.
pub const WORKERS_MAX: usize = 1_000;

/// What a job has to work with, and what is wished of it.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// The model.
    pub model: String,
    /// The limits that every request has to pass: unit `requests`, and `tokens` for the tokens that are sent.
    pub policy: Policy,
    /// How many requests are under way at once.
    pub workers: usize,
    /// How long one call takes.
    pub latency: Span,
    /// When the job starts. The quota counts as unused then.
    pub now: Timestamp,
    /// What the model's tokens cost, if that is known.
    pub price: Option<Price>,
    /// The wish to be done within this time.
    pub within: Option<Span>,
    /// The wish to spend at most this.
    pub max_cost: Option<Micros>,
}

impl Conditions {
    /// Ten workers and calls of ten seconds, a price from the built-in table, and no wishes.
    #[must_use]
    pub fn new(model: &str, policy: Policy, now: Timestamp) -> Self {
        Self {
            model: model.to_owned(),
            policy,
            workers: 10,
            latency: Span::from_secs(10),
            now,
            price: Prices::built_in().of(model),
            within: None,
            max_cost: None,
        }
    }
}

/// What sets the pace of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Binding {
    /// A limit of the policy.
    Limit {
        /// Its name.
        name: String,
        /// The unit it counts.
        unit: String,
        /// Its number, as configured.
        limit: u64,
        /// Its rule, in words.
        per: String,
    },
    /// The number of workers and the time of a call.
    Workers {
        /// How many there are.
        workers: usize,
    },
    /// Nothing: all requests start at once.
    Nothing,
}

/// A job before it starts. It prints as a page for people, and serializes for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The model.
    pub model: String,
    /// Segments of the document.
    pub segments: usize,
    /// Chunks, each one request.
    pub chunks: usize,
    /// Requests, if every answer is right at once.
    pub requests: u64,
    /// The size of a chunk, in tokens.
    pub chunk_tokens: u64,
    /// All that is sent, in tokens: instruction, glossary, context, text.
    pub input_tokens: u64,
    /// All that is received, in tokens, on the high side.
    pub output_tokens: u64,
    /// What it costs, in millionths of a dollar; unknown for a model without a price.
    pub cost_micros: Option<Micros>,
    /// What sets the pace.
    pub binding: Binding,
    /// When it starts.
    #[serde(serialize_with = "as_text")]
    pub starts_at: Timestamp,
    /// When it ends, if it can at all.
    #[serde(serialize_with = "as_optional_text")]
    pub ends_at: Option<Timestamp>,
    /// How long that is, in seconds, rounded up.
    pub takes_seconds: Option<u64>,
    /// On how many days requests are made, where a limit counts by the day.
    pub days: Option<u64>,
    /// Whether it can be done, and every wish with it.
    pub feasible: bool,
    /// What stands against the wishes or the job itself, each with what would help.
    pub warnings: Vec<Warning>,
}

impl Plan {
    /// Plans the translation of `document`, which was cut into `chunks` of `chunk_tokens`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the conditions make no sense.
    pub fn make(
        task: &Task,
        document: &Document,
        chunks: &[Chunk],
        chunk_tokens: u64,
        calibration: &Calibration,
        conditions: &Conditions,
    ) -> Result<Self, Error> {
        if !(1..=WORKERS_MAX).contains(&conditions.workers) {
            return Err(Error::invalid(format!(
                "{} workers cannot translate; give 1 to {WORKERS_MAX}, as in 10",
                conditions.workers
            )));
        }
        let model = &conditions.model;
        let estimates = estimates(task, document, chunks, model, calibration);
        let input_tokens = estimates.iter().map(|estimate| estimate.input).sum();
        let output_tokens = estimates.iter().map(|estimate| estimate.output).sum();
        let total = Estimate { input: input_tokens, output: output_tokens };
        let (policy, workers) = without_slots(&conditions.policy, conditions.workers)?;
        let crew = Crew { workers, latency: conditions.latency };
        let outcome = forecast(&estimates, &policy, crew, conditions.now)?;
        let ends_at = outcome.as_ref().ok().map(|done| done.ends_at);
        let mut plan = Self {
            model: conditions.model.clone(),
            segments: document.len(),
            chunks: chunks.len(),
            requests: chunks.len() as u64,
            chunk_tokens,
            input_tokens,
            output_tokens,
            cost_micros: conditions.price.map(|price| price.of(total)),
            binding: match &outcome {
                Ok(done) => binding(done, &policy, workers),
                Err(too_large) => limit_binding(&policy, too_large.limit),
            },
            starts_at: conditions.now,
            ends_at,
            takes_seconds: ends_at.map(|end| end.since(conditions.now).as_secs_ceil()),
            days: outcome.as_ref().ok().and_then(|done| done.days),
            feasible: true,
            warnings: Vec::new(),
        };
        let case = remedy::Case {
            task,
            document,
            calibration,
            estimates: &estimates,
            conditions,
            policy: &policy,
            crew,
        };
        plan.warnings = case.warnings(&plan, outcome.as_ref().err().copied())?;
        plan.feasible = plan.warnings.iter().all(|warning| !warning.breaks_a_wish);
        Ok(plan)
    }
}

fn estimates(
    task: &Task,
    document: &Document,
    chunks: &[Chunk],
    model: &str,
    calibration: &Calibration,
) -> Vec<Estimate> {
    chunks.iter().map(|chunk| task.estimate(document, chunk, model, calibration)).collect()
}

/// The limit that requests waited for longest, or the workers.
fn binding(done: &Forecast, policy: &Policy, workers: usize) -> Binding {
    let longest =
        done.waited.iter().enumerate().max_by_key(|(place, span)| (**span, usize::MAX - place));
    match longest {
        Some((place, span)) if !span.is_zero() && done.waited_for_worker <= *span => {
            limit_binding(policy, place)
        }
        _ if !done.waited_for_worker.is_zero() => Binding::Workers { workers },
        _ => Binding::Nothing,
    }
}

fn limit_binding(policy: &Policy, place: usize) -> Binding {
    policy.limits().nth(place).map_or(Binding::Nothing, |limit| Binding::Limit {
        name: limit.name().to_owned(),
        unit: limit.unit().to_owned(),
        limit: limit.rule().limit(),
        per: text::per(limit.rule()),
    })
}

fn as_text<S: serde::Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(time)
}

fn as_optional_text<S: serde::Serializer>(
    time: &Option<Timestamp>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => to.collect_str(time),
        None => to.serialize_none(),
    }
}
