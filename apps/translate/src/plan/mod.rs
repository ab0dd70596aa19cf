//! The plan of a job before it starts: its requests, their cost, the binding limit, and the end.
//!
//! If a goal of the user is not feasible, the plan suggests settings that were verified by the same forecast.

mod fit;
mod forecast;
mod suggestions;
mod text;

pub use fit::size_for_a_day;
pub use suggestions::Warning;
pub use text::grouped;
pub use tollgate_providers::{Micros, Price, Prices};

use serde::Serialize;
use tollgate_core::{Policy, Span, Timestamp};

use crate::chunk::Chunk;
use crate::document::Document;
use crate::error::Error;
use crate::estimate::Calibration;
use crate::prompt::{Estimate, Task};
use forecast::{Forecast, Schedule, WorkerPool, forecast, without_slots};

/// The maximum number of workers of a job.
pub const WORKERS_MAX: usize = 1_000;

/// The conditions of a job, and the goals of the user.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// The model.
    pub model: String,
    /// The limits of every request: unit `requests`, and `tokens` for input tokens.
    pub policy: Policy,
    /// The number of concurrent requests.
    pub workers: usize,
    /// The duration of a call.
    pub latency: Span,
    /// When the job starts, with an unused quota.
    pub now: Timestamp,
    /// The price of the model's tokens, if known.
    pub price: Option<Price>,
    /// The goal to finish within this time.
    pub within: Option<Span>,
    /// The goal to spend at most this.
    pub max_cost: Option<Micros>,
}

impl Conditions {
    /// Returns ten workers and calls of ten seconds, the built-in price, and no goals.
    #[must_use]
    pub fn new(model: &str, policy: Policy, now: Timestamp) -> Self {
        Self {
            model: model.to_owned(),
            policy,
            workers: 10,
            latency: Span::from_secs(10),
            now,
            price: Prices::built_in().price_for(model),
            within: None,
            max_cost: None,
        }
    }
}

/// What limits the pace of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Binding {
    /// A limit of the policy.
    Limit {
        /// Its name.
        name: String,
        /// Its unit.
        unit: String,
        /// Its configured number.
        limit: u64,
        /// Its rule, for people.
        per: String,
    },
    /// The number of workers and the duration of a call.
    Workers {
        /// Their number.
        workers: usize,
    },
    /// Nothing: all requests start at once.
    Nothing,
}

/// The plan of a job. Prints as a page for people, and serializes for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The model.
    pub model: String,
    /// Segments of the document.
    pub segments: usize,
    /// Chunks, one request each.
    pub chunks: usize,
    /// Requests without retries.
    pub requests: u64,
    /// The size of a chunk, in tokens.
    pub chunk_tokens: u64,
    /// Input tokens: instructions, glossary, context, text.
    pub input_tokens: u64,
    /// Output tokens, an upper estimate.
    pub output_tokens: u64,
    /// The cost, in millionths of a dollar, if the price is known.
    pub cost_micros: Option<Micros>,
    /// What limits the pace.
    pub binding: Binding,
    /// When it starts.
    #[serde(serialize_with = "as_text")]
    pub starts_at: Timestamp,
    /// When it ends, if it is feasible.
    #[serde(serialize_with = "as_optional_text")]
    pub ends_at: Option<Timestamp>,
    /// The duration in seconds, rounded up.
    pub takes_seconds: Option<u64>,
    /// The number of days with requests, if there is a daily limit.
    pub days: Option<u64>,
    /// Whether the job and all goals are feasible.
    pub feasible: bool,
    /// Warnings about the job or the goals, with suggestions.
    pub warnings: Vec<Warning>,
}

impl Plan {
    /// Plans the translation of `document`, cut into `chunks` of `chunk_tokens`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the conditions are invalid.
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
                "invalid number of workers {}; give 1 to {WORKERS_MAX}, as in 10",
                conditions.workers
            )));
        }
        let model = &conditions.model;
        let estimates = estimates(task, document, chunks, model, calibration);
        let input_tokens = estimates.iter().map(|estimate| estimate.input).sum();
        let output_tokens = estimates.iter().map(|estimate| estimate.output).sum();
        let total = Estimate { input: input_tokens, output: output_tokens };
        let (policy, workers) = without_slots(&conditions.policy, conditions.workers)?;
        let pool = WorkerPool { workers, latency: conditions.latency };
        let forecast = forecast(&estimates, &policy, pool, conditions.now)?;
        let (binding, too_large) = match &forecast {
            Forecast::Feasible(schedule) => (binding(schedule, &policy, workers), None),
            Forecast::TooLarge(request) => (limit_binding(&policy, request.limit), Some(*request)),
        };
        let schedule = forecast.schedule();
        let ends_at = schedule.as_ref().map(|schedule| schedule.ends_at);
        let mut plan = Self {
            model: conditions.model.clone(),
            segments: document.len(),
            chunks: chunks.len(),
            requests: chunks.len() as u64,
            chunk_tokens,
            input_tokens,
            output_tokens,
            cost_micros: conditions.price.map(|price| price.cost(total.into())),
            binding,
            starts_at: conditions.now,
            ends_at,
            takes_seconds: ends_at.map(|end| end.since(conditions.now).as_secs_ceil()),
            days: schedule.and_then(|schedule| schedule.days),
            feasible: true,
            warnings: Vec::new(),
        };
        let advisor = suggestions::Advisor {
            task,
            document,
            calibration,
            estimates: &estimates,
            conditions,
            policy: &policy,
            pool,
        };
        plan.warnings = advisor.warnings(&plan, too_large)?;
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

/// Returns the limit with the longest waits, or the workers.
fn binding(done: &Schedule, policy: &Policy, workers: usize) -> Binding {
    let longest =
        done.waited.iter().enumerate().max_by_key(|(index, span)| (**span, usize::MAX - index));
    match longest {
        Some((index, span)) if !span.is_zero() && done.waited_for_worker <= *span => {
            limit_binding(policy, index)
        }
        _ if !done.waited_for_worker.is_zero() => Binding::Workers { workers },
        _ => Binding::Nothing,
    }
}

fn limit_binding(policy: &Policy, index: usize) -> Binding {
    policy.limits().nth(index).map_or(Binding::Nothing, |limit| Binding::Limit {
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
