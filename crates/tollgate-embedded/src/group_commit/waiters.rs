//! Wakers by batch, without a runtime.

use std::collections::BTreeMap;
use std::task::Waker;

#[derive(Debug, Default)]
pub(super) struct Waiters(BTreeMap<u64, Vec<Waker>>);

/// Wakers to wake without the lock.
#[derive(Debug)]
pub(super) struct Due(BTreeMap<u64, Vec<Waker>>);

impl Waiters {
    /// Stores `waker` until `batch` is durable. `place` is the result of an earlier call for the same future, whose waker is
    /// replaced.
    pub(super) fn wait(&mut self, batch: u64, place: Option<usize>, waker: &Waker) -> usize {
        let wakers = self.0.entry(batch).or_default();
        match place.and_then(|place| Some((place, wakers.get_mut(place)?))) {
            Some((place, known)) => {
                known.clone_from(waker);
                place
            }
            None => {
                wakers.push(waker.clone());
                wakers.len() - 1
            }
        }
    }

    /// Takes the wakers of all batches up to `batch`.
    pub(super) fn take_through(&mut self, batch: u64) -> Due {
        let later = batch.checked_add(1).map(|next| self.0.split_off(&next)).unwrap_or_default();
        Due(std::mem::replace(&mut self.0, later))
    }
}

impl Due {
    pub(super) fn wake(self) {
        self.0.into_values().flatten().for_each(Waker::wake);
    }
}
