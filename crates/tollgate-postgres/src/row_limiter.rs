//! Bounds the connections per row, so that a locked or hot row does not starve other rows.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The hash of a row. Rows with the same hash share a bound, which is harmless.
pub(crate) type RowHash = u64;

/// Returns the most connections of one row: a quarter, and at least one.
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

/// Bounds the concurrent calls on each row; further calls wait without a connection.
#[derive(Debug)]
pub(crate) struct RowLimiter {
    most: usize,
    hasher: RowHasher,
    rows: Mutex<HashMap<RowHash, Arc<Semaphore>>>,
}

/// A permit for one call on a row.
#[derive(Debug)]
pub(crate) struct RowPermit<'a> {
    limiter: &'a RowLimiter,
    row: RowHash,
    permit: Option<OwnedSemaphorePermit>,
}

impl RowLimiter {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, hasher: RowHasher::default(), rows: Mutex::default() }
    }

    /// Waits for a permit for `row`.
    pub(crate) async fn take(&self, row: (&str, &str)) -> RowPermit<'_> {
        let row = self.hasher.hash(row);
        let line = {
            let mut rows = self.rows();
            Arc::clone(rows.entry(row).or_insert_with(|| Arc::new(Semaphore::new(self.most))))
        };
        let mut permit = RowPermit { limiter: self, row, permit: None };
        // The semaphore is never closed.
        permit.permit = line.acquire_owned().await.ok();
        permit
    }

    fn rows(&self) -> MutexGuard<'_, HashMap<RowHash, Arc<Semaphore>>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RowPermit<'_> {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut rows = self.limiter.rows();
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
        let limiter = RowLimiter::new(2);
        let (row, other) = (("policy", "hot"), ("policy", "cold"));
        let (first, second) = (limiter.take(row).await, limiter.take(row).await);
        let mut third = Box::pin(limiter.take(row));
        assert!(futures_poll(third.as_mut()).is_none());
        drop(limiter.take(other).await);
        drop(first);
        drop(third.await);
        drop(second);
        assert!(limiter.rows().is_empty());
    }

    fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        match future.poll(&mut context) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        }
    }
}
