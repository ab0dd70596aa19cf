//! Goal: of two entries for one subject the merged one is never looser than either, and gives nothing back twice.
//! Method: two random histories under one policy, and under two.

use proptest::prelude::{
    Strategy, TestCaseError, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use tollgate_conformance::generate::{self, Move};
use tollgate_conformance::script::{Action, Player, Reply, SingleEntry};
use tollgate_core::{
    Ask, Concurrency, Costs, Entry, Known, Policy, Rule, Span, Timestamp, TokenBucket, Verdict,
    Wait, decide, standings,
};

use crate::desk::{at, one};

/// The entry after `moves`, who has its permits, and when that was.
fn play(policy: &Policy, start: Timestamp, moves: &[Move]) -> (Entry, Player, Timestamp) {
    let (mut store, mut player) = (SingleEntry::default(), Player::new(policy, "subject"));
    let (mut now, mut promised) = (start, None);
    for step in moves {
        now = step.pace.from(now, promised);
        let action = step.resolve(policy, now, player.permits(), &[]);
        if let Reply::Denied(refused) = player.play(now, &action, &mut store.runner()) {
            promised = refused.until;
        }
    }
    (store.entry.unwrap_or_else(|| Entry::fresh(policy, now)), player, now)
}

/// From when on `ask` has room in `entry`, if it ever has.
fn ready(entry: &Entry, now: Timestamp, ask: &Ask<'_>) -> Result<Option<Timestamp>, TestCaseError> {
    match decide(entry, now, ask, Known::New) {
        Ok(Verdict::Admitted(_) | Verdict::Repeated(_)) => Ok(Some(now)),
        Ok(Verdict::Denied(refusal)) => Ok(match refusal.wait {
            Wait::Until(at) => Some(at),
            Wait::Never => None,
        }),
        Err(error) => Err(TestCaseError::fail(error.to_string())),
    }
}

/// Whether `merged` lets nothing through that `side` would not, now and later.
fn is_no_looser(merged: &Entry, side: &Entry, now: Timestamp) -> Result<(), TestCaseError> {
    let policy = merged.policy();
    let mut instants = vec![now, now + Span::from_secs(1), now + Span::from_hours(1)];
    let stands = standings(side, now);
    instants.extend(stands.iter().flat_map(|limit| [limit.reset_at, limit.full_at]).flatten());
    for instant in instants {
        for unit in policy.units() {
            for cost in 0..=12 {
                let ask = Ask::new(policy, "subject").cost(unit, cost);
                let ours = ready(merged, instant, &ask)?;
                let theirs = ready(side, instant, &ask)?;
                // A limit that never fits is the same on both sides.
                prop_assert!(
                    theirs <= ours,
                    "{} {} at {}: {:?} {:?}",
                    cost,
                    unit,
                    instant,
                    ours,
                    theirs
                );
            }
        }
        let used = standings(merged, instant).into_iter().zip(standings(side, instant));
        for (ours, theirs) in used {
            prop_assert!(theirs.used <= ours.used && ours.remaining <= theirs.remaining);
        }
    }
    Ok(())
}

fn any_policy() -> impl Strategy<Value = Policy> {
    prop_oneof![
        generate::policy(),
        generate::policy_of(generate::rolling_coarse()),
        generate::policy_of(generate::calendar()),
        generate::policy_of(generate::slots()),
    ]
}

proptest! {
    #[test]
    fn the_merged_entry_is_never_looser_than_either_side(
        policy in any_policy(),
        start in generate::start(),
        one in generate::moves(30),
        other in generate::moves(30),
    ) {
        let ((one, mine, at_one), (other, theirs, at_other)) =
            (play(&policy, start, &one), play(&policy, start, &other));
        let merged = one.strictest(&other);
        let now = at_one.max(at_other).max(merged.at());
        for side in [&one, &other] {
            is_no_looser(&merged, side, now)?;
        }
        prop_assert_eq!(merged.parts().states, other.strictest(&one).parts().states);
        is_no_looser(&merged.strictest(&one), &merged, now)?;

        // An entry merged with its equal stays as it is, and its permits are those of both.
        if one.parts() == other.parts() {
            return Ok(());
        }
        // No permit of either side makes room, apart from the slots that it hands back.
        let used = |entry: &Entry| -> Vec<u64> {
            let standings = standings(entry, now).into_iter().zip(policy.limits());
            let counted = standings.filter(|(_, limit)| !matches!(limit.rule(), Rule::Concurrency(_)));
            counted.map(|(standing, _)| standing.used).collect()
        };
        let (before, mut store) = (used(&merged), SingleEntry::default());
        store.entry = Some(merged);
        for mut player in [mine, theirs] {
            for permit in 0..player.permits() {
                player.play(now, &Action::Release { permit }, &mut store.runner());
            }
        }
        let after = store.entry.map(|entry| used(&entry)).unwrap_or_default();
        prop_assert_eq!(before, after);
    }

    #[test]
    fn an_entry_in_other_numbers_is_carried_over_first(
        before in any_policy(),
        after in any_policy(),
        start in generate::start(),
        one in generate::moves(30),
        other in generate::moves(30),
    ) {
        let ((one, _, at_one), (other, _, at_other)) =
            (play(&after, start, &one), play(&before, start, &other));
        let merged = one.strictest(&other);
        prop_assert!(merged.policy().has_shape_of(&after));
        // An entry never goes back behind the time it was written at.
        let now = at_one.max(at_other).max(merged.at());
        for side in [&one, &other.carried_to(&after)] {
            is_no_looser(&merged, side, now)?;
        }
    }

    #[test]
    fn an_entry_merged_with_itself_stays_as_it_is(
        policy in any_policy(),
        start in generate::start(),
        moves in generate::moves(30),
    ) {
        let (entry, ..) = play(&policy, start, &moves);
        prop_assert_eq!(entry.strictest(&entry).parts(), entry.parts());
    }
}

/// A permit of a merged entry charges what the call cost beyond its estimate, once, and hands its slots back.
#[test]
fn permits_of_a_merged_entry_charge_extra_cost_and_free_their_slots() {
    let bucket = one(TokenBucket::per_minute(10));
    let mut player = Player::new(&bucket, "subject");
    let acquire =
        |unit: &str, cost| Action::Acquire { costs: Costs::new().with(unit, cost), id: None };
    let mut store = SingleEntry::default();
    player.play(at(0), &acquire("requests", 4), &mut store.runner());
    let other = Entry::used_up(&bucket, at(0) - Span::from_secs(30));
    store.entry = store.entry.map(|entry| entry.strictest(&other));
    let used = |store: &SingleEntry| standings(store.entry.as_ref().unwrap(), at(0))[0].used;
    assert_eq!(used(&store), 5);
    let actual = Costs::new().with("requests", 6);
    for settled in [true, false] {
        let action = Action::Settle { permit: 0, actual: actual.clone() };
        assert_eq!(player.play(at(0), &action, &mut store.runner()), Reply::Settled(settled));
        assert_eq!(used(&store), 7);
    }

    let slots = one(Concurrency::new(3, Span::from_mins(1)));
    let (mut mine, mut theirs) = (Player::new(&slots, "subject"), Player::new(&slots, "subject"));
    let (mut store, mut other) = (SingleEntry::default(), SingleEntry::default());
    mine.play(at(0), &acquire("jobs", 1), &mut store.runner());
    theirs.play(at(1), &acquire("jobs", 1), &mut other.runner());
    store.entry = store.entry.map(|entry| entry.strictest(&other.entry.unwrap()));
    let held = |store: &SingleEntry| standings(store.entry.as_ref().unwrap(), at(2))[0].used;
    assert_eq!(held(&store), 2, "each holds its own");
    for (mut player, left) in [(mine, 1), (theirs, 0)] {
        player.play(at(2), &Action::Release { permit: 0 }, &mut store.runner());
        assert_eq!(held(&store), left);
    }
}
