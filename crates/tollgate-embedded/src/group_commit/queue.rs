//! The batches that are not durable yet.

use std::collections::VecDeque;

use tollgate::{Span, Timestamp};

use crate::row::Key;

/// The most rows one commit writes.
pub const BATCH_ROWS_MAX: usize = 4_096;

/// The most batches by which a relaxed writer may lag before callers wait.
pub const BACKLOG_BATCHES_MAX: u64 = 8;

/// The admissions that a crash may lose in relaxed mode, on the store's clock. Callers wait while the oldest change that is
/// not on disk is older.
pub const RELAXED_LOSS_MAX: Span = Span::from_millis(100);

/// A key whose entry changed.
#[derive(Clone, Debug)]
pub(crate) struct Changed {
    pub(crate) hash: u64,
    pub(crate) key: Key,
}

/// The keys of one commit.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) number: u64,
    pub(crate) changed: Vec<Changed>,
    /// The time of its oldest change.
    since: Timestamp,
}

impl Batch {
    const fn empty(number: u64) -> Self {
        Self { number, changed: Vec::new(), since: Timestamp::MAX }
    }
}

#[derive(Debug)]
pub(super) struct Queue {
    gathering: Batch,
    sealed: VecDeque<Batch>,
    in_flight_since: Option<Timestamp>,
    closed: bool,
    hurried: bool,
    idle: bool,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Self {
            gathering: Batch::empty(1),
            sealed: VecDeque::new(),
            in_flight_since: None,
            closed: false,
            hurried: false,
            idle: false,
        }
    }

    /// The number of the batch that is gathering.
    pub(super) const fn gathering(&self) -> u64 {
        self.gathering.number
    }

    /// Adds a key, and returns the number of its batch. Seals a full batch.
    pub(super) fn push(&mut self, now: Timestamp, changed: Changed) -> u64 {
        let batch = &mut self.gathering;
        let number = batch.number;
        batch.changed.push(changed);
        batch.since = batch.since.min(now);
        if BATCH_ROWS_MAX <= batch.changed.len() {
            self.seal();
        }
        number
    }

    /// Adds keys that one commit must write together, each with the batch that it is in, and returns the number of their
    /// batch. A batch without room for all of them is sealed before.
    pub(super) fn push_together(&mut self, now: Timestamp, changed: &[(u64, Changed)]) -> u64 {
        if BATCH_ROWS_MAX < self.gathering.changed.len() + changed.len() {
            self.seal();
        }
        let number = self.gathering.number;
        for (_, changed) in changed.iter().filter(|(batch, _)| *batch != number) {
            self.push(now, changed.clone());
        }
        number
    }

    fn seal(&mut self) {
        let next = Batch::empty(self.gathering.number + 1);
        self.sealed.push_back(std::mem::replace(&mut self.gathering, next));
    }

    /// Takes the oldest batch, which is then in flight.
    pub(super) fn take(&mut self) -> Option<Batch> {
        self.idle = false;
        if self.sealed.is_empty() && !self.gathering.changed.is_empty() {
            self.seal();
        }
        self.hurried = false;
        let batch = self.sealed.pop_front()?;
        self.in_flight_since = Some(batch.since);
        Some(batch)
    }

    /// Marks the batch in flight as durable.
    pub(super) const fn complete(&mut self) {
        self.in_flight_since = None;
    }

    /// The time of the oldest change that is not durable.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        let gathering = (!self.gathering.changed.is_empty()).then_some(self.gathering.since);
        let sealed = self.sealed.iter().map(|batch| batch.since);
        sealed.chain(gathering).chain(self.in_flight_since).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sealed.is_empty() && self.gathering.changed.is_empty()
    }

    /// Whether the writer should not wait for more changes.
    pub(super) fn is_urgent(&self) -> bool {
        self.hurried || !self.sealed.is_empty()
    }

    pub(super) fn hurry(&mut self) {
        self.hurried = !self.is_empty();
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Rejects further changes.
    pub(super) const fn close(&mut self) {
        self.closed = true;
    }

    /// Marks the writer as asleep.
    pub(super) const fn set_idle(&mut self) {
        self.idle = true;
    }

    /// Whether the writer sleeps and was not woken yet: a wake-up is a system call, so it happens once.
    pub(super) const fn wake_writer(&mut self) -> bool {
        std::mem::replace(&mut self.idle, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(subject: &str) -> Changed {
        Changed { hash: 0, key: Key::new("p", subject) }
    }

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn a_change_belongs_to_the_batch_that_was_gathering() {
        let mut queue = Queue::new();
        assert_eq!(queue.push(at(10), changed("a")), 1);
        assert_eq!(queue.push(at(11), changed("b")), 1);
        let batch = queue.take().unwrap();
        assert_eq!((batch.number, batch.changed.len()), (1, 2));
        assert_eq!(queue.push(at(12), changed("a")), 2);
        assert_eq!(queue.oldest(), Some(at(10)), "the batch in flight counts");
        queue.complete();
        assert_eq!(queue.oldest(), Some(at(12)));
        assert_eq!(queue.take().unwrap().number, 2);
        queue.complete();
        assert_eq!((queue.oldest(), queue.take().map(|batch| batch.number)), (None, None));
    }

    #[test]
    fn keys_of_one_ask_never_straddle_two_batches() {
        let together = |first, second| [(first, changed("a")), (second, changed("b"))];
        for taken in BATCH_ROWS_MAX - 3..BATCH_ROWS_MAX {
            let mut queue = Queue::new();
            for _ in 0..taken {
                queue.push(at(5), changed("x"));
            }
            let batch = queue.push_together(at(6), &together(0, 0));
            let expected = if taken + 2 <= BATCH_ROWS_MAX { [taken + 2, 0] } else { [taken, 2] };
            let sizes = [(); 2].map(|()| queue.take().map_or(0, |batch| batch.changed.len()));
            assert_eq!((batch, sizes), (1 + u64::from(expected[1] == 2), expected));
        }
    }

    #[test]
    fn keys_of_one_ask_that_are_in_its_batch_are_not_added_again() {
        let mut queue = Queue::new();
        let batch = queue.push(at(5), changed("a"));
        let keys = [(batch, changed("a")), (0, changed("b"))];
        assert_eq!(queue.push_together(at(6), &keys), batch);
        assert_eq!(queue.take().unwrap().changed.len(), 2);
        assert_eq!(queue.push_together(at(6), &keys), batch + 1);
        assert_eq!(queue.take().unwrap().changed.len(), 2, "the first batch is sealed");
    }

    #[test]
    fn a_full_batch_is_sealed_and_should_not_wait() {
        let mut queue = Queue::new();
        for _ in 1..BATCH_ROWS_MAX {
            assert_eq!(queue.push(at(5), changed("a")), 1);
        }
        assert!(!queue.is_urgent());
        assert_eq!(queue.push(at(5), changed("a")), 1);
        assert!(queue.is_urgent());
        assert_eq!(queue.push(at(3), changed("a")), 2);
        assert_eq!(queue.oldest(), Some(at(3)), "a caller that was held up may come late");
        let sizes: Vec<_> =
            std::iter::from_fn(|| queue.take()).map(|batch| batch.changed.len()).collect();
        assert_eq!(sizes, [BATCH_ROWS_MAX, 1]);
    }
}
