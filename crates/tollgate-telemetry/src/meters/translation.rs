//! What translations count. A process that translates nothing has none of these series.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tollgate::Span;

use crate::catalogue;
use crate::snapshot::{Series, Value};

/// The counters of all translations of this process.
#[derive(Debug, Default)]
pub struct TranslationMeters {
    took_secs: AtomicU64,
    completed: AtomicU64,
    with_errors: AtomicU64,
    violations: AtomicU64,
    denials: AtomicU64,
    parallel: AtomicU64,
}

/// A chunk that is at the provider, until this is dropped.
#[derive(Debug)]
pub struct AtProvider<'a>(&'a AtomicU64);

impl Drop for AtProvider<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl TranslationMeters {
    /// A document was translated in `took`; `with_errors` if a part of it was given up.
    pub fn ended(&self, took: Span, with_errors: bool) {
        self.took_secs.store(took.as_secs_ceil(), Relaxed);
        let end = if with_errors { &self.with_errors } else { &self.completed };
        end.fetch_add(1, Relaxed);
    }

    /// The provider answered 429.
    pub fn violated(&self) {
        self.violations.fetch_add(1, Relaxed);
    }

    /// An ask was denied, or could not be decided.
    pub fn denied(&self) {
        self.denials.fetch_add(1, Relaxed);
    }

    /// A chunk goes to the provider.
    #[must_use = "it counts until it is dropped"]
    pub fn at_provider(&self) -> AtProvider<'_> {
        self.parallel.fetch_add(1, Relaxed);
        AtProvider(&self.parallel)
    }

    pub(super) fn read(&self, series: &mut Vec<Series>) {
        let mut add = |metric, labels: &[&str], number: &AtomicU64| {
            let labels = labels.iter().map(|label| Arc::from(*label)).collect();
            series.push(Series { metric, labels, value: Value::Number(number.load(Relaxed)) });
        };
        add(&catalogue::TRANSLATION_TOOK, &[], &self.took_secs);
        add(&catalogue::TRANSLATION_JOBS, &["completed"], &self.completed);
        add(&catalogue::TRANSLATION_JOBS, &["completed_with_errors"], &self.with_errors);
        add(&catalogue::TRANSLATION_VIOLATIONS, &[], &self.violations);
        add(&catalogue::TRANSLATION_DENIALS, &[], &self.denials);
        add(&catalogue::TRANSLATION_PARALLEL, &[], &self.parallel);
    }
}
