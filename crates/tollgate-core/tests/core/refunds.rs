//! Goal: a bucket gives back what a replay of its history without the refund would have, at any size.
//! Method: random stories with hundreds of permits in flight on capacities up to a million, beside a replay that reduces the
//! charge itself. Exact as long as no more than [`LOWS_MAX`] lows are needed; beyond that never looser, and only little
//! stricter.

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};
use tollgate_core::bounds::LOWS_MAX;
use tollgate_core::{
    Ask, Costs, Decision, Entry, Known, Operation, Outcome, Part, Permit, Policy, Span, Timestamp,
    TokenBucket, apply, standings,
};

use crate::desk::{at, one};

/// Every charge at its final size, replayed from the beginning.
struct Replay {
    rate: u128,
    token: u128,
    charges: Vec<(Timestamp, u64)>,
}

impl Replay {
    fn level(&self, now: Timestamp) -> u128 {
        let (mut level, mut last) = (0u128, at(0));
        for (at, amount) in self.charges.iter().chain([&(now, 0)]) {
            level = level.saturating_sub(self.rate * u128::from(at.since(last).as_micros()));
            level += u128::from(*amount) * self.token;
            last = *at;
        }
        level
    }
}

#[derive(Debug)]
struct Story {
    entry: Entry,
    policy: Policy,
    held: Vec<(Permit, usize, u64)>,
    now: Timestamp,
    /// The most lows that were needed at once.
    lows: usize,
}

impl Story {
    fn run(&mut self, operation: &Operation<'_>) -> Outcome {
        let applied = apply(operation, &mut self.entry, Known::New, self.now);
        let parts = self.entry.parts();
        if let Part::Bucket { lows, .. } = &parts.states[0] {
            self.lows = self.lows.max(lows.len());
        }
        applied.expect("it decides").outcome
    }

    fn fine(&self) -> u64 {
        match &self.entry.parts().states[0] {
            Part::Bucket { used, .. } => *used,
            other => unreachable!("a bucket: {other:?}"),
        }
    }
}

/// Plays `steps` of (wait, cost, which permit, how much of it was needed) and returns the used level, that of the replay,
/// and the most lows there were.
fn play(capacity: u64, refill: u64, steps: &[(u32, u32, u16, u8)]) -> (u128, u128, usize, u64) {
    let policy = one(TokenBucket::per_second(refill).burst(capacity));
    let (rate, token) = match policy.derived().next() {
        Some(tollgate_core::Derived::Continuous { rate, token, .. }) => (rate, token),
        other => unreachable!("a continuous bucket: {other:?}"),
    };
    let mut replay = Replay { rate: rate.into(), token: token.into(), charges: Vec::new() };
    let mut story = Story {
        entry: Entry::fresh(&policy, at(0)),
        policy,
        held: Vec::new(),
        now: at(0),
        lows: 0,
    };
    for (wait, cost, which, needed) in steps {
        story.now = story.now + Span::from_micros(u64::from(*wait));
        let (policy, cost) = (story.policy.clone(), u64::from(*cost) % (capacity / 4).max(1) + 1);
        let ask = Ask::new(&policy, "subject").cost("requests", cost);
        if let Outcome::Decided(Decision::Admitted(permit)) = story.run(&Operation::Acquire(&ask)) {
            replay.charges.push((story.now, cost));
            story.held.push((permit, replay.charges.len() - 1, cost));
        }
        // Half of the steps settle one of those in flight.
        if which % 2 == 0 && !story.held.is_empty() {
            let (permit, place, cost) =
                story.held.swap_remove(usize::from(*which) % story.held.len());
            let actual = cost * u64::from(*needed % 5) / 4;
            let actual_costs = Costs::new().with("requests", actual);
            story.run(&Operation::Settle(&permit, &actual_costs));
            replay.charges[place].1 = actual;
        }
    }
    // A charge of nothing brings the entry to now.
    let policy = story.policy.clone();
    story.run(&Operation::Charge(&Ask::new(&policy, "subject").cost("requests", 0)));
    (story.fine().into(), replay.level(story.now), story.lows, token * capacity)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn giving_back_is_the_replay_of_the_history_without_the_refund(
        capacity in 2u64..1_000_000,
        refill in 1u64..10_000,
        steps in vec((0u32..200_000, any::<u32>(), any::<u16>(), any::<u8>()), 0..600),
    ) {
        let (used, exact, lows, capacity) = play(capacity, refill, &steps);
        if lows < LOWS_MAX {
            prop_assert_eq!(used, exact);
        }
        prop_assert!(exact <= used, "looser: {} used, {} in the replay", used, exact);
        prop_assert!(used <= exact + u128::from(capacity) * 3 / 100, "{} lows lost {}", lows, used - exact);
    }
}

/// Hundreds in flight on a bucket that hardly refills: more lows than are kept.
#[test]
fn beyond_the_bound_on_lows_a_bucket_is_strict_and_loses_little() {
    let steps: Vec<(u32, u32, u16, u8)> = (0..3_000u16)
        .map(|n| {
            let settles = if n < 900 { 1 } else { n.wrapping_mul(7) & !1 };
            (7, u32::from(n).wrapping_mul(2_654_435_761) % 900, settles, 0)
        })
        .collect();
    let (used, exact, lows, capacity) = play(1_000_000, 1, &steps);
    assert_eq!(lows, LOWS_MAX);
    assert!(exact <= used && used <= exact + u128::from(capacity) * 3 / 100, "{used} {exact}");
}

/// A verdict that is no permit cannot be refunded, and neither can what came before a bucket was empty.
#[test]
fn a_charge_without_refund_starts_no_record_and_keeps_those_of_others() {
    let policy = one(TokenBucket::per_second(10).burst(100));
    let mut entry = Entry::fresh(&policy, at(0));
    let plain = Ask::new(&policy, "subject").cost("requests", 30).without_refund();
    let mut run = |operation: &Operation<'_>, now| {
        let applied = apply(operation, &mut entry, Known::New, now).expect("it decides");
        let used = standings(&entry, now)[0].used;
        (applied.outcome, used)
    };
    let (outcome, _) = run(&Operation::Acquire(&plain), at(0));
    let Outcome::Decided(Decision::Admitted(permit)) = outcome else { unreachable!("room") };
    assert_eq!(run(&Operation::Release(&permit), at(1)).1, 20, "only time gave back");

    let refundable = Ask::new(&policy, "subject").cost("requests", 40);
    let (outcome, _) = run(&Operation::Acquire(&refundable), at(1));
    let Outcome::Decided(Decision::Admitted(permit)) = outcome else { unreachable!("room") };
    assert_eq!(run(&Operation::Acquire(&plain), at(3)).1, 70);
    assert_eq!(run(&Operation::Release(&permit), at(4)).1, 20, "the replay without the 40");
}
