//! The books balance: random stories of asks, settles and every trouble that a store can have, and then the sums.

use proptest::prelude::*;
use tollgate::policy::OnStoreFailure;
use tollgate::{Ask, Clock, Costs, GateExt, Permit, RollingWindow, Span};
use tollgate_conformance::faulty::Trouble;

use crate::faulty::{drive, fallback, pass, store, used, with};

#[derive(Clone, Debug)]
enum Step {
    Trouble(Trouble),
    Ask(usize, u64),
    Settle(usize, u64),
    Release(usize),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let trouble = prop_oneof![
        3 => Just(Trouble::None),
        1 => Just(Trouble::Down),
        1 => Just(Trouble::LosesReply),
        1 => Just(Trouble::HangsAfter),
        1 => Just(Trouble::Hangs),
        1 => Just(Trouble::Throttles),
    ];
    let step = prop_oneof![
        2 => trouble.prop_map(Step::Trouble),
        6 => (0..3_usize, 1..9_u64).prop_map(|(subject, cost)| Step::Ask(subject, cost)),
        2 => (any::<prop::sample::Index>(), 1..12_u64).prop_map(|(at, cost)| Step::Settle(at.index(64), cost)),
        1 => any::<prop::sample::Index>().prop_map(|at| Step::Release(at.index(64))),
        2 => (1..40_u64).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// Whatever fails and whenever: each ask is under an id of its own that lives longer than the outages, and when the
    /// store is back it has been charged for what was admitted, no more and no less, except that what was posted does not
    /// shrink.
    #[test]
    fn the_books_balance_whatever_fails(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(balances(steps))?;
    }
}

async fn balances(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (store, clock) = store();
    let (gate, _) = fallback(&store, &clock);
    let rule = RollingWindow::new(1_000_000, Span::from_hours(24));
    let policy = with(rule, OnStoreFailure::Open);
    let subjects = ["a", "b", "c"];
    let mut given: Vec<(usize, Permit, u64, bool)> = Vec::new();
    let mut least = [0_u64; 3];
    let mut most = [0_u64; 3];
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Trouble(trouble) => store.always(trouble),
            Step::Pass(seconds) => pass(&clock, Span::from_secs(seconds)).await,
            Step::Ask(subject, cost) => {
                let ask = Ask::new(&policy, subjects[subject]).cost("requests", cost);
                let ask = ask.id_for(format!("ask-{number}"), Span::from_hours(24));
                let since = clock.now();
                let permit =
                    drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap();
                let took = clock.now().since(since);
                prop_assert!(took <= Span::from_secs(4), "answered after {took}");
                least[subject] += cost;
                most[subject] += cost;
                given.push((subject, permit, cost, false));
            }
            Step::Settle(at, actual) if at < given.len() => {
                let (subject, permit, cost, settled) = &mut given[at];
                let costs = Costs::new().with("requests", actual);
                let done = drive(&clock, gate.settle(permit, &costs)).await.unwrap();
                if !std::mem::replace(settled, true) {
                    prop_assert!(done || actual <= *cost);
                    // Where nothing was given back, the answer says so.
                    if done {
                        least[*subject] = least[*subject] + actual - *cost;
                    }
                    most[*subject] += actual.max(*cost) - *cost;
                }
            }
            Step::Release(at) if at < given.len() => {
                let (subject, permit, cost, settled) = &mut given[at];
                let done = drive(&clock, gate.release(permit)).await.unwrap();
                if !std::mem::replace(settled, true) && done {
                    least[*subject] -= *cost;
                }
            }
            Step::Settle(..) | Step::Release(_) => {}
        }
    }
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(60)).await;
    prop_assert!(!gate.is_degraded() && gate.owing() == 0);
    for (place, subject) in subjects.iter().enumerate() {
        let used = used(&store, &policy, subject).await;
        let (least, most) = (least[place], most[place]);
        prop_assert!(least <= used && used <= most, "{subject}: {least} <= {used} <= {most}");
    }
    Ok(())
}
