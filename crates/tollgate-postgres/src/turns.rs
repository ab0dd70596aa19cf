//! How many connections one row may hold, so that a row that is locked or hot leaves the others for other rows.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A row by its hash. Two rows that share one share a bound, which is harmless.
pub(crate) type RowHash = u64;

/// Connections that one row may hold of `connections`: a quarter, and at least one.
pub(crate) fn per_row(connections: usize) -> usize {
    (connections / 4).max(1)
}

/// Hashes of rows.
#[derive(Debug, Default)]
pub(crate) struct RowHasher(RandomState);

impl RowHasher {
    pub(crate) fn hash(&self, row: (&str, &str)) -> RowHash {
        self.0.hash_one(row)
    }
}

/// Lets a bounded number of calls on each row pass at a time; the others wait here, without a connection.
#[derive(Debug)]
pub(crate) struct Turns {
    most: usize,
    hasher: RowHasher,
    rows: Mutex<HashMap<RowHash, Arc<Semaphore>>>,
}

/// The right to one call on a row.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    row: RowHash,
    permit: Option<OwnedSemaphorePermit>,
}

impl Turns {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, hasher: RowHasher::default(), rows: Mutex::default() }
    }

    /// Waits for a turn on `row`.
    pub(crate) async fn take(&self, row: (&str, &str)) -> Turn<'_> {
        let row = self.hasher.hash(row);
        let line = {
            let mut rows = self.rows();
            Arc::clone(rows.entry(row).or_insert_with(|| Arc::new(Semaphore::new(self.most))))
        };
        let mut turn = Turn { turns: self, row, permit: None };
        // Nobody closes it.
        turn.permit = line.acquire_owned().await.ok();
        turn
    }

    fn rows(&self) -> MutexGuard<'_, HashMap<RowHash, Arc<Semaphore>>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut rows = self.turns.rows();
        if rows.get(&self.row).is_some_and(|line| Arc::strong_count(line) == 1) {
            rows.remove(&self.row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_row_waits_and_another_does_not_and_nothing_is_kept() {
        let turns = Turns::new(2);
        let (row, other) = (("policy", "hot"), ("policy", "cold"));
        let (first, second) = (turns.take(row).await, turns.take(row).await);
        let mut third = Box::pin(turns.take(row));
        assert!(futures_poll(third.as_mut()).is_none());
        drop(turns.take(other).await);
        drop(first);
        drop(third.await);
        drop(second);
        assert!(turns.rows().is_empty());
    }

    fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        }
    }
}
