//! Goal: the promises hold in every history, whatever the policy.
//! Method: random operations are recorded and given to the checkers, which know nothing of the core.

use proptest::prelude::{ProptestConfig, TestCaseError, proptest};
use tollgate_core::{Policy, Timestamp};
use tollgate_testing::checkers;
use tollgate_testing::generate::{self, Move};
use tollgate_testing::script::{Record, Single};

fn recorded(policy: &Policy, start: Timestamp, moves: &[Move]) -> Result<Vec<Record>, TestCaseError> {
    let mut store = Single::default();
    let run = &mut store.runner();
    generate::record(policy, start, moves, run).map_err(TestCaseError::fail)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Promises 1 to 6 at once, over what was *actually* used: settled and released permits count what they cost.
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
