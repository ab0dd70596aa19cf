//! Counts and times the operations that a measured process sends to its store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Clock, Error, Gate};

/// A gate whose operations are counted and timed.
#[derive(Debug)]
pub(super) struct CountingGate {
    gate: Arc<dyn Gate>,
    clock: Arc<dyn Clock>,
    pub(super) writes: AtomicU64,
    pub(super) reads: AtomicU64,
    trips: Mutex<Vec<u64>>,
}

impl CountingGate {
    pub(super) fn new(gate: Arc<dyn Gate>, clock: Arc<dyn Clock>) -> Self {
        Self { gate, clock, writes: 0.into(), reads: 0.into(), trips: Mutex::default() }
    }

    /// Returns the duration of each operation, in microseconds.
    pub(super) fn trips(&self) -> MutexGuard<'_, Vec<u64>> {
        self.trips.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate for CountingGate {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        let is_reading = matches!(operation, Operation::Standing { .. });
        let count = if is_reading { &self.reads } else { &self.writes };
        count.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let since = self.clock.monotonic().as_micros();
            let outcome = self.gate.run(operation).await;
            self.trips().push(self.clock.monotonic().as_micros().saturating_sub(since));
            outcome
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
