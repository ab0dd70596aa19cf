//! Goal: the core says what the model says, for every rule alone and for all of them together.
//! Method: random operations on random policies; after each, the answer and every standing must be equal.

use proptest::prelude::{ProptestConfig, TestCaseError, prop_assert_eq, proptest};
use tollgate_conformance::generate::{self, Move};
use tollgate_conformance::model::Model;
use tollgate_conformance::script::{Player, Record, Reply, SingleEntry};
use tollgate_core::{Policy, Timestamp};

fn agree(policy: &Policy, start: Timestamp, moves: &[Move]) -> Result<(), TestCaseError> {
    let mut store = SingleEntry::default();
    let mut player = Player::new(policy, "subject");
    let mut model = Model::new(policy);
    let mut history: Vec<Record> = Vec::new();
    let (mut now, mut promised) = (start, None);
    for step in moves {
        now = step.pace.from(now, promised);
        let action = step.resolve(policy, now, player.permits(), &history);
        let run = &mut store.runner();
        let reply = player.play(now, &action, run);
        prop_assert_eq!(&reply, &model.apply(now, &action), "to {:?} at {}", action, now);
        let after = player.standings(now, run).map_err(TestCaseError::fail)?;
        prop_assert_eq!(&after, &model.standings(now), "after {:?} at {}", action, now);
        if let Reply::Denied(refused) | Reply::Shadowed(_, refused) = &reply {
            promised = refused.until;
        }
        history.push(Record { now, action, reply, before: Vec::new(), after });
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_continuous_bucket_is_its_model(
        policy in generate::policy_of(generate::continuous()),
        start in generate::start(),
        moves in generate::moves(40),
    ) {
        agree(&policy, start, &moves)?;
    }

    #[test]
    fn an_interval_bucket_is_its_model(
        policy in generate::policy_of(generate::interval()),
        start in generate::start(),
        moves in generate::moves(40),
    ) {
        agree(&policy, start, &moves)?;
    }

    #[test]
    fn an_exact_rolling_window_is_its_model(
        policy in generate::policy_of(generate::rolling()),
        start in generate::start(),
        moves in generate::moves(40),
    ) {
        agree(&policy, start, &moves)?;
    }

    #[test]
    fn a_rolling_window_with_resolution_is_its_model(
        policy in generate::policy_of(generate::rolling_coarse()),
        start in generate::start(),
        moves in generate::moves(40),
    ) {
        agree(&policy, start, &moves)?;
    }

    #[test]
    fn a_concurrency_limit_is_its_model(
        policy in generate::policy_of(generate::slots()),
        start in generate::start(),
        moves in generate::moves(40),
    ) {
        agree(&policy, start, &moves)?;
    }
}

proptest! {
    // The model walks through calendars minute by minute, so these take longer.
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_calendar_window_is_its_model(
        policy in generate::policy_of(generate::calendar()),
        start in generate::start(),
        moves in generate::moves(40),
    ) {
        agree(&policy, start, &moves)?;
    }

    #[test]
    fn a_policy_of_many_limits_is_its_model(
        policy in generate::policy(),
        start in generate::start(),
        moves in generate::moves(40),
    ) {
        agree(&policy, start, &moves)?;
    }
}
