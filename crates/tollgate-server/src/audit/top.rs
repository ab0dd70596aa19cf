//! The subjects that are limited most often, in bounded memory: the space-saving sketch.
//!
//! It keeps [`TOP_SUBJECTS_MAX`] counters. A subject that has none takes over the smallest, with its count, and remembers
//! that count as its possible error. So of n denials counted, a subject with more than n / `TOP_SUBJECTS_MAX` is always
//! among them, no count is too low, and none is too high by more than its own `error`, which is at most
//! n / `TOP_SUBJECTS_MAX` (Metwally, Agrawal, El Abbadi 2005).
//!
//! Two sketches take turns, so that what is long past does not hide what happens now: an answer covers the turn that runs
//! and the one before it, and where both know a subject its counts and errors add up.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tollgate::Timestamp;

use crate::bounds::{TOP_SUBJECTS_MAX, TOP_TURN};

/// A policy and a subject.
type Key = (Arc<str>, Arc<str>);

/// How often somebody was limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limited {
    pub(crate) policy: Arc<str>,
    pub(crate) subject: Arc<str>,
    /// At most this often.
    pub(crate) count: u64,
    /// At least `count - error` often.
    pub(crate) error: u64,
}

/// The running turn and the one before.
#[derive(Debug)]
pub(super) struct Tops {
    began: Timestamp,
    now: Sketch,
    before: Option<(Timestamp, Sketch)>,
}

impl Tops {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { began: now, now: Sketch::new(TOP_SUBJECTS_MAX), before: None }
    }

    /// Begins another turn if it is time.
    pub(super) fn turn(&mut self, now: Timestamp) {
        let passed = now.since(self.began);
        if passed < TOP_TURN {
            return;
        }
        let ended = std::mem::replace(&mut self.now, Sketch::new(TOP_SUBJECTS_MAX));
        // After a long silence the turn before was an empty one.
        let is_recent = passed < TOP_TURN.plus(TOP_TURN);
        self.before = is_recent.then_some((self.began, ended));
        self.began = now;
    }

    pub(super) fn count(&mut self, policy: &Arc<str>, subject: &Arc<str>) {
        self.now.count(policy, subject);
    }

    /// Up to `limit` subjects, most limited first, and since when they are counted.
    pub(super) fn read(&self, limit: usize) -> (Vec<Limited>, Timestamp) {
        let mut sums: HashMap<&Key, Slot> = HashMap::new();
        let before = self.before.as_ref().map(|(_, sketch)| sketch);
        for sketch in std::iter::once(&self.now).chain(before) {
            for (key, slot) in &sketch.slots {
                let sum = sums.entry(key).or_default();
                sum.count += slot.count;
                sum.error += slot.error;
            }
        }
        let mut top: Vec<Limited> = sums
            .into_iter()
            .map(|((policy, subject), Slot { count, error })| Limited {
                policy: Arc::clone(policy),
                subject: Arc::clone(subject),
                count,
                error,
            })
            .collect();
        // Names decide between equals, so that a page that is read again does not jump.
        top.sort_by(|a, b| (b.count, &a.policy, &a.subject).cmp(&(a.count, &b.policy, &b.subject)));
        top.truncate(limit);
        (top, self.before.as_ref().map_or(self.began, |(began, _)| *began))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    count: u64,
    error: u64,
}

#[derive(Debug)]
struct Sketch {
    slots_max: usize,
    slots: HashMap<Key, Slot>,
    /// The same by count, smallest first.
    order: BTreeSet<(u64, Key)>,
}

impl Sketch {
    fn new(slots_max: usize) -> Self {
        Self { slots_max, slots: HashMap::new(), order: BTreeSet::new() }
    }

    fn count(&mut self, policy: &Arc<str>, subject: &Arc<str>) {
        let key = (Arc::clone(policy), Arc::clone(subject));
        let slot = match self.slots.get(&key).copied() {
            Some(slot) => {
                self.order.remove(&(slot.count, key.clone()));
                Slot { count: slot.count + 1, ..slot }
            }
            None if self.slots.len() < self.slots_max => Slot { count: 1, error: 0 },
            None => {
                let taken = self.order.pop_first().map_or(0, |(count, smallest)| {
                    self.slots.remove(&smallest);
                    count
                });
                Slot { count: taken + 1, error: taken }
            }
        };
        self.order.insert((slot.count, key.clone()));
        self.slots.insert(key, slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::Span;

    /// The promise of the sketch on a stream in which a few subjects stand out of many: nobody's count is too low, none is
    /// too high by more than its error, no error is beyond n / slots, and whoever has more than that is there.
    #[test]
    fn counts_stay_within_their_stated_error() {
        const SLOTS: u64 = 16;
        let mut sketch = Sketch::new(16);
        let mut truth: HashMap<String, u64> = HashMap::new();
        let policy: Arc<str> = "api".into();
        let mut draw: u64 = 1;
        let asks = 20_000;
        for number in 0..asks {
            draw = draw
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let subject = match draw >> 60 {
                0..=3 => "hot".to_owned(),
                4..=5 => "warm".to_owned(),
                _ => format!("cold-{}", number % 997),
            };
            sketch.count(&policy, &subject.as_str().into());
            *truth.entry(subject).or_default() += 1;
        }
        assert_eq!(sketch.slots.len(), 16);
        for ((_, subject), slot) in &sketch.slots {
            let real = truth[&**subject];
            assert!(real <= slot.count && slot.count - slot.error <= real, "{subject} {slot:?}");
            assert!(slot.error <= asks / SLOTS, "{slot:?}");
        }
        for (subject, real) in truth {
            let is_there = sketch.slots.keys().any(|(_, known)| **known == *subject);
            assert!(is_there || real <= asks / SLOTS, "{subject} was limited {real} times");
        }
    }

    #[test]
    fn an_answer_covers_the_running_turn_and_the_one_before() {
        let start = Timestamp::from_secs(1_000);
        let mut tops = Tops::new(start);
        let (api, alice): (Arc<str>, Arc<str>) = ("api".into(), "alice".into());
        tops.count(&api, &alice);
        tops.turn(start + TOP_TURN);
        tops.count(&api, &alice);
        let (top, since) = tops.read(10);
        assert_eq!((top[0].count, since), (2, start));
        tops.turn(start + TOP_TURN + TOP_TURN);
        assert_eq!(tops.read(10).0[0].count, 1);
        tops.turn(start + TOP_TURN + TOP_TURN + TOP_TURN + TOP_TURN + Span::from_secs(1));
        assert_eq!(tops.read(10).0, []);
    }
}
