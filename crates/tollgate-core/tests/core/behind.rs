//! Goal: an ask that stands behind others is promised the time at which it would really go through.
//! Method: those in front are let through one by one, each as soon as it fits, and the last one's time is compared.

use proptest::collection::vec;
use proptest::prelude::{TestCaseError, prop_assert, prop_assert_eq, prop_oneof, proptest};
use tollgate_conformance::generate;
use tollgate_conformance::script::SingleEntry;
use tollgate_core::{
    Ask, Costs, Decision, Limit, Operation, Outcome, Policy, Timestamp, TokenBucket, Wait,
};

fn decided(
    store: &mut SingleEntry,
    now: Timestamp,
    ask: &Ask<'_>,
) -> Result<Decision, TestCaseError> {
    match store.run(now, &Operation::Acquire(ask)) {
        Ok(Outcome::Decided(decision)) => Ok(decision),
        other => Err(TestCaseError::fail(format!("{other:?}"))),
    }
}

/// Lets `ask` through as soon as it fits and returns when that was; nothing if it never fits.
fn go_through(
    store: &mut SingleEntry,
    mut now: Timestamp,
    ask: &Ask<'_>,
) -> Result<Option<Timestamp>, TestCaseError> {
    loop {
        match decided(store, now, ask)? {
            Decision::Admitted(_) => return Ok(Some(now)),
            Decision::Denied(denial) => match denial.bound() {
                Wait::Until(until) => now = until,
                Wait::Never => return Ok(None),
            },
        }
    }
}

fn costs(policy: &Policy, amount: u64) -> Costs {
    policy.units().take(1).map(|unit| (unit, amount)).collect()
}

proptest! {
    #[test]
    fn who_stands_behind_others_is_promised_when_it_would_go_through(
        policy in prop_oneof![
            generate::policy_of(generate::continuous()),
            generate::policy_of(generate::interval()),
            generate::policy_of(generate::rolling()),
            generate::policy_of(generate::rolling_coarse()),
            generate::policy_of(generate::slots()),
        ],
        start in generate::start(),
        before in vec(1_u64..=6, 0..4),
        in_front in vec(1_u64..=13, 1..5),
        asked in 1_u64..=6,
    ) {
        let mut store = SingleEntry::default();
        let ask = |amount| Ask::new(&policy, "subject").with_costs(&costs(&policy, amount));
        for amount in before {
            decided(&mut store, start, &ask(amount))?;
        }
        let others = in_front.iter().filter_map(|amount| policy.amounts(&costs(&policy, *amount)).ok());
        let waiting = ask(asked).behind(others.collect());
        let before = store.clone();
        let promised = match decided(&mut store, start, &waiting)? {
            Decision::Denied(denial) => {
                prop_assert_eq!(&store, &before, "a forecast changes nothing");
                match denial.bound() {
                    Wait::Until(until) => {
                        prop_assert!(denial.not_before() <= until);
                        prop_assert!(Some(denial.not_before()) <= denial.reset_at());
                        prop_assert!(denial.reset_at() <= Some(until));
                        prop_assert!(denial.waiting_ahead <= in_front.len());
                        Some(until)
                    }
                    Wait::Never => None,
                }
            }
            // Only if there is room for all of them now, which the rest of the test finds out.
            Decision::Admitted(_) => Some(start),
        };
        store = before;
        let mut now = start;
        for amount in in_front {
            // Whoever never fits holds up nobody.
            now = go_through(&mut store, now, &ask(amount))?.unwrap_or(now);
        }
        let really = go_through(&mut store, now, &ask(asked))?;
        prop_assert_eq!(promised, really);
    }
}

/// Others in front wait for one policy and subject, so an ask with several charges cannot say for which of them.
#[test]
fn an_ask_with_several_charges_has_no_others_in_front() {
    let policy = |name| {
        Policy::new(name, [Limit::new("rpm", "requests", TokenBucket::per_minute(9))]).unwrap()
    };
    let (user, team) = (policy("user"), policy("team"));
    let single = Ask::new(&user, "u1").behind(vec![*Ask::new(&user, "u2").amounts()]);
    assert!(single.check().is_ok());
    let error = single.and(&team, "t7").check().unwrap_err();
    assert!(error.to_string().contains("no others in front"), "{error}");
}
