//! The calls that wait for admission, and since when the oldest does.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::Span;

/// Calls by when they began to wait, on the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct WaitingCalls(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// With a number, because calls may begin at the same time.
    calls: BTreeSet<(Span, u64)>,
    numbers: u64,
}

/// A call that waits, until it is dropped.
#[derive(Debug)]
pub(crate) struct WaitingCall<'a> {
    calls: &'a WaitingCalls,
    entry: (Span, u64),
}

impl WaitingCalls {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call that began to wait at `began`; `None` if there are `most` already.
    pub(crate) fn enter(&self, began: Span, most: usize) -> Option<WaitingCall<'_>> {
        let mut entries = self.entries();
        if most <= entries.calls.len() {
            return None;
        }
        entries.numbers += 1;
        let entry = (began, entries.numbers);
        entries.calls.insert(entry);
        Some(WaitingCall { calls: self, entry })
    }

    /// Returns the number of calls, and when the oldest began to wait.
    pub(crate) fn read(&self) -> (usize, Option<Span>) {
        let entries = self.entries();
        (entries.calls.len(), entries.calls.first().map(|(began, _)| *began))
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.calls.entries().calls.remove(&self.entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_call_is_known_until_it_leaves() {
        let calls = WaitingCalls::default();
        let [first, second] = [1, 2].map(Span::from_secs);
        let late = calls.enter(second, 3).unwrap();
        let early = calls.enter(first, 3).unwrap();
        let same = calls.enter(first, 3).unwrap();
        assert!(calls.enter(second, 3).is_none(), "three are the most");
        assert_eq!(calls.read(), (3, Some(first)));
        drop(early);
        assert_eq!(calls.read(), (2, Some(first)));
        drop(same);
        assert_eq!(calls.read(), (1, Some(second)));
        drop(late);
        assert_eq!(calls.read(), (0, None));
    }
}
