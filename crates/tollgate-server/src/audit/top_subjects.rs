//! The subjects that are limited most often, in bounded memory: the space-saving sketch.
//!
//! It keeps [`TOP_SUBJECTS_MAX`] counters. A new subject takes over the smallest counter and records its count as possible
//! error. Of n denials, a subject with more than n / `TOP_SUBJECTS_MAX` is always present, no count is too low, and none
//! is too high by more than its `error`, at most n / `TOP_SUBJECTS_MAX` (Metwally, Agrawal, El Abbadi 2005).
//!
//! Two sketches rotate, so that old denials do not hide new ones: a query covers the current and the previous period.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use tollgate::Timestamp;
use tollgate_protocol::json::LimitedSubject;

use crate::bounds::{TOP_SUBJECTS_MAX, TOP_TURN};

/// A policy and a subject.
type Key = (Arc<str>, Arc<str>);

/// The sketches of the current and the previous period.
#[derive(Debug)]
pub(super) struct TopSubjects {
    began: Timestamp,
    current: Sketch,
    previous: Option<(Timestamp, Sketch)>,
}

impl TopSubjects {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { began: now, current: Sketch::new(TOP_SUBJECTS_MAX), previous: None }
    }

    /// Begins another period if the current one is over.
    pub(super) fn rotate(&mut self, now: Timestamp) {
        let passed = now.since(self.began);
        if passed < TOP_TURN {
            return;
        }
        let ended = std::mem::replace(&mut self.current, Sketch::new(TOP_SUBJECTS_MAX));
        // After a long silence the previous period was empty.
        let is_recent = passed < TOP_TURN.plus(TOP_TURN);
        self.previous = is_recent.then_some((self.began, ended));
        self.began = now;
    }

    pub(super) fn count(&mut self, policy: &Arc<str>, subject: &Arc<str>) {
        self.current.count(policy, subject);
    }

    /// Returns up to `limit` subjects, most limited first, and since when they are counted.
    pub(super) fn read(&self, limit: usize) -> (Vec<LimitedSubject>, Timestamp) {
        let mut sums: HashMap<&Key, Slot> = HashMap::new();
        let previous = self.previous.as_ref().map(|(_, sketch)| sketch);
        for sketch in std::iter::once(&self.current).chain(previous) {
            for (key, slot) in &sketch.slots {
                let sum = sums.entry(key).or_default();
                sum.count += slot.count;
                sum.error += slot.error;
            }
        }
        let limited = |((policy, subject), Slot { count, error }): (&Key, Slot)| {
            let (policy, subject) = (policy.to_string(), subject.to_string());
            LimitedSubject { policy, subject, count, error }
        };
        let mut top: Vec<LimitedSubject> = sums.into_iter().map(limited).collect();
        // Names order equal counts, so that a page is stable.
        top.sort_by(|a, b| (b.count, &a.policy, &a.subject).cmp(&(a.count, &b.policy, &b.subject)));
        top.truncate(limit);
        (top, self.previous.as_ref().map_or(self.began, |(began, _)| *began))
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
    /// The slots by count, smallest first.
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

    /// The guarantees of the sketch on a skewed stream: no count is too low, none is too high by more than its error, no
    /// error exceeds n / slots, and every subject with more than that is present.
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
    fn a_query_covers_the_current_and_the_previous_period() {
        let start = Timestamp::from_secs(1_000);
        let mut tops = TopSubjects::new(start);
        let (api, alice): (Arc<str>, Arc<str>) = ("api".into(), "alice".into());
        tops.count(&api, &alice);
        tops.rotate(start + TOP_TURN);
        tops.count(&api, &alice);
        let (top, since) = tops.read(10);
        assert_eq!((top[0].count, since), (2, start));
        tops.rotate(start + TOP_TURN + TOP_TURN);
        assert_eq!(tops.read(10).0[0].count, 1);
        tops.rotate(start + TOP_TURN + TOP_TURN + TOP_TURN + TOP_TURN + Span::from_secs(1));
        assert_eq!(tops.read(10).0, []);
    }
}
