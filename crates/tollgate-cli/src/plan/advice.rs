//! The recommendation of a plan.

use serde::Serialize;

use super::price::DYNAMODB_KEY_WRITES_MAX;
use super::report::Row;
use super::workload::Workload;
use crate::args::PlanStore;

/// A recommended strategy admits at least this much of what an exact limiter would, in percent.
const USE_MIN_PERCENT: f64 = 95.0;
/// A more complex strategy is recommended if it needs at most this part of atomic's operations.
const SAVING: f64 = 0.5;

/// A recommendation with its reason.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Advice {
    pub(super) strategy: String,
    pub(super) reason: String,
}

impl Advice {
    /// Adds that the figures were measured on `store`.
    pub(super) fn measured_on(mut self, store: &str) -> Self {
        self.reason = format!("measured on {store}: {}", self.reason);
        self
    }
}

/// Recommends one of `rows`, of which the first is atomic.
pub(super) fn recommend(workload: &Workload, rows: &[Row]) -> Advice {
    let Some(atomic) = rows.first() else {
        return Advice { strategy: "none".to_owned(), reason: "there is no strategy".to_owned() };
    };
    // The bound of the strategy counts, not that a run had no excess.
    let exact = |row: &&Row| row.over_max == 0;
    let useful = |row: &&Row| USE_MIN_PERCENT <= row.figures.of_ideal_percent;
    let ops = |row: &Row| row.figures.store_ops_per_second;
    let fewest = workload.charges().map(|(_, subjects)| subjects).min().unwrap_or(1);
    let per_key = atomic.figures.store_writes_per_second / fewest as f64;
    let is_hot = workload.store == PlanStore::Dynamodb && DYNAMODB_KEY_WRITES_MAX < per_key;
    // Asks with several charges write to the parent under every strategy that does not save operations.
    let any_saving = is_hot && !workload.has_parents();
    let cheapest = rows
        .iter()
        .skip(1)
        .filter(exact)
        .filter(useful)
        .min_by(|one, other| ops(one).total_cmp(&ops(other)));
    if let Some(row) = cheapest.filter(|row| any_saving || ops(row) <= ops(atomic) * SAVING) {
        let reason = format!(
            "it is never over, admits {:.1}% of what an exact limiter would, and needs {:.0} store operations per \
             second where atomic needs {:.0}",
            row.figures.of_ideal_percent,
            ops(row),
            ops(atomic)
        );
        return Advice { strategy: row.name.clone(), reason };
    }
    if is_hot && workload.has_parents() {
        let reason = format!(
            "no strategy here admits enough with fewer writes; but one subject of a parent gets {per_key:.0} writes per second, and \
             DynamoDB takes {DYNAMODB_KEY_WRITES_MAX:.0} per key: spread the parent over more subjects, or use redis or postgres"
        );
        return Advice { strategy: atomic.name.clone(), reason };
    }
    if is_hot {
        let tuned = rows.iter().skip(1).min_by(|one, other| {
            one.figures.over_issued_percent.total_cmp(&other.figures.over_issued_percent)
        });
        let row = tuned.unwrap_or(atomic);
        let reason = format!(
            "one subject gets {per_key:.0} writes per second, and DynamoDB takes {DYNAMODB_KEY_WRITES_MAX:.0} per key; of the \
             others it issued the least too much, {:.1}%, and can be over by at most {}",
            row.figures.over_issued_percent, row.over_max
        );
        return Advice { strategy: row.name.clone(), reason };
    }
    let saved = rows.iter().skip(1).filter(exact).find(|row| ops(row) <= ops(atomic) * SAVING);
    let why = match saved {
        Some(row) => format!(
            "{} saves store operations but admits only {:.1}% of what an exact limiter would",
            row.name, row.figures.of_ideal_percent
        ),
        None => "no other exact strategy halves the operations of the store".to_owned(),
    };
    let reason = format!(
        "it is never over and is the simplest; {why}; it adds {} to one ask in a hundred",
        super::text::micros(atomic.figures.p99_us)
    );
    Advice { strategy: atomic.name.clone(), reason }
}
