//! Goal: the promises hold in every history, whatever the policy.
//! Method: random operations are recorded and given to the checkers, which know nothing of the core; and the two
//! promises that need a second look at the same entry (free refusals, honest waits) are looked at directly.

use proptest::prelude::{
    ProptestConfig, TestCaseError, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use tollgate_conformance::checkers;
use tollgate_conformance::generate::{self, Move};
use tollgate_conformance::script::{Action, Player, Record, Reply, SingleEntry};
use tollgate_core::{Policy, Timestamp};

use crate::desk::just_before;

fn recorded(
    policy: &Policy,
    start: Timestamp,
    moves: &[Move],
) -> Result<Vec<Record>, TestCaseError> {
    let mut store = SingleEntry::default();
    generate::record(policy, start, moves, &mut store.runner()).map_err(TestCaseError::fail)
}

/// Plays `moves` and shows every ask to `look`: the store before and after it, the ask, and the answer.
fn every_ask(
    policy: &Policy,
    start: Timestamp,
    moves: &[Move],
    look: impl Fn(&SingleEntry, &SingleEntry, &Player, &Record) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut store = SingleEntry::default();
    let mut player = Player::new(policy, "subject");
    let mut history: Vec<Record> = Vec::new();
    let (mut now, mut promised) = (start, None);
    for step in moves {
        now = step.pace.from(now, promised);
        let action = step.resolve(policy, now, player.permits(), &history);
        let before = store.clone();
        let reply = player.play(now, &action, &mut store.runner());
        if let Reply::Denied(refused) = &reply {
            promised = refused.until;
        }
        let record = Record { now, action, reply, before: Vec::new(), after: Vec::new() };
        if let Action::Acquire { .. } = record.action {
            look(&before, &store, &player, &record)?;
        }
        history.push(record);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Promises 1 to 6 at once.
    #[test]
    fn every_history_keeps_every_promise(
        policy in generate::policy(),
        start in generate::start(),
        moves in generate::moves(60),
    ) {
        let history = recorded(&policy, start, &moves)?;
        checkers::all(&policy, &history).map_err(TestCaseError::fail)?;
    }
}

proptest! {
    /// Promise 1 over what was *actually* used: a permit that was settled or released counts what it cost.
    #[test]
    fn no_rule_is_ever_over_whatever_is_given_back(
        policy in prop_oneof![
            generate::policy_of(generate::continuous()),
            generate::policy_of(generate::interval()),
            generate::policy_of(generate::rolling()),
            generate::policy_of(generate::rolling_coarse()),
            generate::policy_of(generate::slots()),
        ],
        start in generate::start(),
        moves in generate::moves(80),
    ) {
        let history = recorded(&policy, start, &moves)?;
        checkers::never_over(&policy, &history).map_err(TestCaseError::fail)?;
        checkers::conservation(&policy, &history).map_err(TestCaseError::fail)?;
    }

    /// Promise 3, stronger than a caller can see: the entry is the same to the last bit.
    #[test]
    fn a_denied_ask_leaves_the_entry_as_it_was(
        policy in generate::policy(),
        start in generate::start(),
        moves in generate::moves(40),
    ) {
        every_ask(&policy, start, &moves, |before, after, _, record| {
            if !matches!(record.reply, Reply::Admitted(_)) {
                prop_assert_eq!(before, after, "{:?} at {}", record.action, record.now);
            }
            Ok(())
        })?;
    }

    /// Promise 4: denied one microsecond before the promised time with the same promise, admitted at it.
    #[test]
    fn every_wait_is_honest(
        policy in generate::policy(),
        start in generate::start(),
        moves in generate::moves(40),
    ) {
        every_ask(&policy, start, &moves, |_, after, player, record| {
            let Reply::Denied(refused) = &record.reply else { return Ok(()) };
            let Some(until) = refused.until else { return Ok(()) };
            prop_assert!(record.now < until);
            let again = |now| {
                let (mut store, mut player) = (after.clone(), player.clone());
                player.play(now, &record.action, &mut store.runner())
            };
            let before = again(just_before(until));
            prop_assert!(
                matches!(&before, Reply::Denied(still) if still.until == Some(until)),
                "just before {}: {:?}", until, before
            );
            let at = again(until);
            prop_assert!(matches!(at, Reply::Admitted(_)), "at {}: {:?}", until, at);
            Ok(())
        })?;
    }
}
