//! Counters of translations. A process that translates nothing has none of these series.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tollgate::Span;

use crate::catalogue::{self, Metric};
use crate::snapshot::{JOB_BOUNDS_SECS, Series, Value};

/// The counters of all translations of this process.
#[derive(Debug, Default)]
pub struct TranslationMeters {
    /// Buckets of the durations of jobs.
    took: [AtomicU64; JOB_BOUNDS_SECS.len() + 1],
    /// In microseconds.
    took_sum: AtomicU64,
    words: AtomicU64,
    completed: AtomicU64,
    with_errors: AtomicU64,
    paused_for_time: AtomicU64,
    paused_for_operator: AtomicU64,
    running: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    violations: AtomicU64,
    denials: AtomicU64,
    parallel: AtomicU64,
}

/// The outcome of a call to the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// A response, which may be faulty.
    Answered,
    /// Status 429.
    Refused,
    /// Another error, or no response.
    Failed,
}

/// Counts something in progress, such as a chunk at the provider, until it is dropped.
#[derive(Debug)]
pub struct Ongoing<'a>(&'a AtomicU64);

impl<'a> Ongoing<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Relaxed);
        Self(count)
    }
}

impl Drop for Ongoing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl TranslationMeters {
    /// Counts a finished document; `with_errors` if a part of it was given up.
    pub fn ended(&self, took: Span, with_errors: bool) {
        let bucket = JOB_BOUNDS_SECS.partition_point(|bound| Span::from_secs(*bound) < took);
        self.took[bucket].fetch_add(1, Relaxed);
        self.took_sum.fetch_add(took.as_micros(), Relaxed);
        let end = if with_errors { &self.with_errors } else { &self.completed };
        end.fetch_add(1, Relaxed);
    }

    /// Counts translated words of the source.
    pub fn translated(&self, words: u64) {
        self.words.fetch_add(words, Relaxed);
    }

    /// Counts a pause, until a time or until an operator acts.
    pub fn paused(&self, needs_operator: bool) {
        let pauses = if needs_operator { &self.paused_for_operator } else { &self.paused_for_time };
        pauses.fetch_add(1, Relaxed);
    }

    /// Counts a running job.
    #[must_use = "it counts until it is dropped"]
    pub fn running(&self) -> Ongoing<'_> {
        Ongoing::new(&self.running)
    }

    /// Counts a call to the provider.
    pub fn called(&self, outcome: CallOutcome) {
        let calls = match outcome {
            CallOutcome::Answered => &self.answered,
            CallOutcome::Refused => &self.refused,
            CallOutcome::Failed => &self.failed,
        };
        calls.fetch_add(1, Relaxed);
    }

    /// Returns the number of calls to the provider.
    #[must_use]
    pub fn calls(&self) -> u64 {
        [&self.answered, &self.refused, &self.failed].map(|count| count.load(Relaxed)).iter().sum()
    }

    /// Counts a response with status 429.
    pub fn violated(&self) {
        self.violations.fetch_add(1, Relaxed);
    }

    /// Counts an ask that was denied or could not be decided.
    pub fn denied(&self) {
        self.denials.fetch_add(1, Relaxed);
    }

    /// Counts a chunk at the provider.
    #[must_use = "it counts until it is dropped"]
    pub fn at_provider(&self) -> Ongoing<'_> {
        Ongoing::new(&self.parallel)
    }

    pub(super) fn read(&self, series: &mut Vec<Series>) {
        let mut add = |metric: &'static Metric, labels: &[&str], number: &AtomicU64| {
            let labels = labels.iter().map(|label| Arc::from(*label)).collect();
            series.push(Series { metric, labels, value: Value::Number(number.load(Relaxed)) });
        };
        add(&catalogue::TRANSLATION_WORDS, &[], &self.words);
        add(&catalogue::TRANSLATION_JOBS, &["completed"], &self.completed);
        add(&catalogue::TRANSLATION_JOBS, &["completed_with_errors"], &self.with_errors);
        add(&catalogue::TRANSLATION_PAUSES, &["time"], &self.paused_for_time);
        add(&catalogue::TRANSLATION_PAUSES, &["operator"], &self.paused_for_operator);
        add(&catalogue::TRANSLATION_RUNNING, &[], &self.running);
        add(&catalogue::TRANSLATION_CALLS, &["answered"], &self.answered);
        add(&catalogue::TRANSLATION_CALLS, &["refused"], &self.refused);
        add(&catalogue::TRANSLATION_CALLS, &["failed"], &self.failed);
        add(&catalogue::TRANSLATION_VIOLATIONS, &[], &self.violations);
        add(&catalogue::TRANSLATION_DENIALS, &[], &self.denials);
        add(&catalogue::TRANSLATION_PARALLEL, &[], &self.parallel);
        let counts = self.took.iter().map(|count| count.load(Relaxed)).collect();
        let value = Value::Buckets { counts, sum: self.took_sum.load(Relaxed) };
        series.push(Series { metric: &catalogue::TRANSLATION_TOOK, labels: Vec::new(), value });
    }
}
