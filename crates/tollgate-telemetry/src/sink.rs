//! The traits of sinks. Sinks run in the background and never delay a decision.

use std::fmt::Debug;

use tollgate::Error;
use tollgate::gate::BoxFuture;
use tollgate::observe::Event;

use crate::record::Record;
use crate::snapshot::Snapshot;

/// Receives events in batches.
pub trait RecordSink: Debug + Send + Sync + 'static {
    /// Returns its name in metrics.
    fn name(&self) -> &'static str;

    /// Returns whether it wants `event`. Called on the path of a decision, so it must be fast.
    fn wants(&self, event: &Event<'_>) -> bool;

    /// Writes `records`. They are dropped and counted on error.
    fn write<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), Error>>;
}

/// Receives snapshots of the metrics periodically.
pub trait MeterSink: Debug + Send + Sync + 'static {
    /// Returns its name in metrics.
    fn name(&self) -> &'static str;

    /// Publishes the counts since the last call (`delta`) and since the start (`total`). A sink of deltas must keep those
    /// that it could not deliver.
    fn publish<'a>(
        &'a self,
        delta: &'a Snapshot,
        total: &'a Snapshot,
    ) -> BoxFuture<'a, Result<(), Error>>;
}
