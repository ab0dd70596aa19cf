//! What a sink is. Sinks run in the background and cannot hold up a decision, whatever they do.

use std::fmt::Debug;

use tollgate::{BoxFuture, Error, Event};

use crate::record::Record;
use crate::snapshot::Snapshot;

/// Takes events, one batch after the other.
pub trait RecordSink: Debug + Send + Sync + 'static {
    /// A word for it in metrics.
    fn name(&self) -> &'static str;

    /// Whether it wants `event`. Asked while a caller waits, so it must be quick.
    fn wants(&self, event: &Event<'_>) -> bool;

    /// Writes `records`. An error is counted, and the records are gone.
    fn write<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), Error>>;
}

/// Takes the counts now and then.
pub trait MeterSink: Debug + Send + Sync + 'static {
    /// A word for it in metrics.
    fn name(&self) -> &'static str;

    /// Publishes what was counted since the last call (`delta`), and in all (`total`). A sink of deltas that can fail
    /// keeps what it could not deliver.
    fn publish<'a>(
        &'a self,
        delta: &'a Snapshot,
        total: &'a Snapshot,
    ) -> BoxFuture<'a, Result<(), Error>>;
}
