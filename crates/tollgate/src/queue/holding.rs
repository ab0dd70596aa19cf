//! Observed holding times of slots, from which waits are estimated.
//!
//! The times are learnt when permits are settled or released through this process, and are kept in memory. Stored times
//! would be exact for a whole fleet, at the price of a write; an estimate is not worth one.

use std::collections::{HashMap, VecDeque};

use tollgate_core::{Permit, Policy, Rule, Span, Timestamp};

/// The number of recent holding times per limit that the mean is taken of.
pub const HOLDING_TIMES_MAX: usize = 32;

/// The most policies whose holding times are kept. The slots of further policies are estimated by the default.
pub const HOLDING_POLICIES_MAX: usize = 1_024;

/// The most subjects whose own holding times are kept. Beyond it all of them are dropped, and learnt anew; until then the
/// mean of the policy counts.
pub const HOLDING_SUBJECTS_MAX: usize = 4_096;

/// The shortest pause between two asks for a slot by the first waiter.
pub const SLOT_POLL_MIN: Span = Span::from_millis(50);

/// The longest pause between two asks for a slot by the first waiter, if no other limit binds.
pub const SLOT_POLL_MAX: Span = Span::from_secs(1);

/// Recent holding times of each limit.
type Limits = Vec<(Box<str>, Recent)>;

/// Recent holding times by policy, and by policy and subject.
#[derive(Debug, Default)]
pub(super) struct HoldingTimes {
    policies: HashMap<Box<str>, Limits>,
    subjects: HashMap<(Box<str>, Box<str>), Limits>,
    /// The time of the store, which stamps permits, and the monotonic time at which it was read.
    anchor: Option<(Timestamp, Span)>,
}

/// The latest holding times of one limit, oldest first.
#[derive(Debug, Default)]
struct Recent(VecDeque<Span>);

impl HoldingTimes {
    /// Learns the time of the store from a denial, at the monotonic time `now`.
    pub(super) fn denied_at(&mut self, decided_at: Timestamp, now: Span) {
        self.anchor = Some((decided_at, now));
    }

    /// Learns the time of the store from a permit. A repeated ask gets its first permit again, which may be older.
    pub(super) fn admitted_at(&mut self, at: Timestamp, now: Span) {
        let at = self.store_time(now).map_or(at, |known| known.max(at));
        self.anchor = Some((at, now));
    }

    /// Learns how long `permit` held its slots, which it gave back at the monotonic time `now`.
    pub(super) fn released(&mut self, permit: &Permit, now: Span) {
        let (Some(expires_at), Some(released_at)) = (permit.expires_at(), self.store_time(now))
        else {
            return;
        };
        let policy = permit.policy();
        if !self.policies.contains_key(policy.name()) {
            if HOLDING_POLICIES_MAX <= self.policies.len() {
                return;
            }
            self.policies.insert(policy.name().into(), Vec::new());
        }
        let held = released_at.min(expires_at).since(permit.grant().at);
        if let Some(limits) = self.policies.get_mut(policy.name()) {
            observe(limits, permit, held);
        }
        let key = (policy.name().into(), permit.subject().into());
        if HOLDING_SUBJECTS_MAX <= self.subjects.len() && !self.subjects.contains_key(&key) {
            self.subjects.clear();
        }
        observe(self.subjects.entry(key).or_default(), permit, held);
    }

    /// The mean of the recent holding times of `limit` by `subject`, or by all subjects if none of its own was observed;
    /// `None` if there was none at all.
    pub(super) fn mean(&self, policy: &Policy, subject: &str, limit: &str) -> Option<Span> {
        let key = (policy.name().into(), subject.into());
        let mean = |limits: &Limits| {
            limits.iter().find(|(name, _)| **name == *limit).map(|(_, recent)| recent.mean())
        };
        let own = self.subjects.get(&key).and_then(mean);
        own.or_else(|| self.policies.get(policy.name()).and_then(mean))
    }

    fn store_time(&self, now: Span) -> Option<Timestamp> {
        let (at, read) = self.anchor?;
        Some(at + Span::from_micros(now.as_micros().saturating_sub(read.as_micros())))
    }
}

/// Adds `held` to the limits that `permit` holds slots of.
fn observe(limits: &mut Limits, permit: &Permit, held: Span) {
    // Limits that a reload removed make room for those that it added.
    limits.retain(|(name, _)| permit.policy().limits().any(|limit| limit.name() == &**name));
    for name in held_limits(permit) {
        match limits.iter_mut().find(|(known, _)| **known == *name) {
            Some((_, recent)) => recent.push(held),
            None => limits.push((name.into(), Recent(VecDeque::from([held])))),
        }
    }
}

/// Whether releasing a permit of `policy` is how its slots are handed back. Where there are other limits, a call that was
/// made is settled, and one that is released was not made.
pub(super) fn is_held_until_release(policy: &Policy) -> bool {
    policy.limits().all(|limit| matches!(limit.rule(), Rule::Concurrency(_)))
}

/// The names of the concurrency limits that `permit` holds slots of.
fn held_limits(permit: &Permit) -> impl Iterator<Item = &str> {
    let (policy, amounts) = (permit.policy(), permit.charged().amounts);
    let held = policy.limits().zip(policy.unit_indexes()).filter(|(limit, index)| {
        matches!(limit.rule(), Rule::Concurrency(_)) && 0 < amounts.at(*index)
    });
    held.map(|(limit, _)| limit.name())
}

impl Recent {
    fn push(&mut self, held: Span) {
        if HOLDING_TIMES_MAX <= self.0.len() {
            self.0.pop_front();
        }
        self.0.push_back(held);
    }

    fn mean(&self) -> Span {
        let sum: u128 = self.0.iter().map(|held| u128::from(held.as_micros())).sum();
        let count = u128::try_from(self.0.len().max(1)).unwrap_or(1);
        Span::from_micros(u64::try_from(sum.div_ceil(count)).unwrap_or(u64::MAX))
    }
}
