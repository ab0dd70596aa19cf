//! Goal: a wait for slots is an estimate between two certain instants, and says so.
//! Method: small stories with every number worked out; `behind` checks the two instants on random ones.

use tollgate_conformance::script::SingleEntry;
use tollgate_core::bounds::{SLOT_WAIT_DEFAULT, SLOT_WAIT_MIN};
use tollgate_core::{
    Ask, Concurrency, Costs, Decision, Denial, Limit, Operation, Outcome, Policy, RollingWindow,
    Span, Timestamp, TokenBucket, Wait,
};

use crate::desk::{at, policy};

const TTL: Span = Span::from_mins(5);

fn slots(limit: u64, ttl: Span) -> Limit {
    Limit::new("slots", "jobs", Concurrency::new(limit, ttl))
}

fn job(policy: &Policy, slots: u64) -> Ask<'_> {
    Ask::new(policy, "subject").cost("jobs", slots)
}

fn decided(store: &mut SingleEntry, now: Timestamp, ask: &Ask<'_>) -> Decision {
    match store.run(now, &Operation::Acquire(ask)) {
        Ok(Outcome::Decided(decision)) => decision,
        other => unreachable!("{other:?}"),
    }
}

fn denied(store: &mut SingleEntry, now: Timestamp, ask: &Ask<'_>) -> Denial {
    decided(store, now, ask).into_denial().expect("no room")
}

/// The wait if slots are held for `mean`.
fn estimated(denial: &Denial, mean: Span) -> Option<Span> {
    let mut denial = denial.clone();
    denial.estimate(|limit| (limit == "slots").then_some(mean));
    denial.retry_after()
}

#[test]
fn a_wait_for_a_slot_is_an_estimate_beside_the_expiry() {
    let policy = policy([slots(1, TTL)]);
    let mut store = SingleEntry::default();
    assert!(decided(&mut store, at(0), &job(&policy, 1)).is_admitted());
    let denial = denied(&mut store, at(2), &job(&policy, 1));
    assert!(denial.is_estimated());
    assert_eq!(denial.retry_after(), Some(SLOT_WAIT_DEFAULT));
    assert_eq!((denial.expires_at, denial.bound()), (Some(at(300)), Wait::Until(at(300))));
    assert_eq!(
        denial.humanize_wait().as_deref(),
        Some("about 1s (estimated; at the latest 4m 58s)")
    );
    assert_eq!(estimated(&denial, Span::from_secs(3)), Some(Span::from_secs(3)));
    assert_eq!(estimated(&denial, Span::ZERO), Some(SLOT_WAIT_MIN));
    assert_eq!(estimated(&denial, Span::from_hours(1)), Some(Span::from_secs(298)), "the expiry");
    // The default is not later than the expiry either.
    let denial = denied(&mut store, at(300) - Span::from_millis(1), &job(&policy, 1));
    assert_eq!(denial.retry_after(), Some(Span::from_millis(1)));
}

/// Slots are released at a rate of held ÷ mean. An ask that takes several takes them from holders alike.
#[test]
fn the_estimate_counts_the_slots_that_must_be_released() {
    let policy = policy([slots(10, TTL)]);
    let mean = Span::from_secs(10);
    for (held, asked, wait) in [(10, 1, 1_000), (10, 3, 3_000), (8, 4, 5_000), (4, 7, 10_000)] {
        let mut store = SingleEntry::default();
        assert!(decided(&mut store, at(0), &job(&policy, held)).is_admitted());
        let denial = denied(&mut store, at(1), &job(&policy, asked));
        assert_eq!(estimated(&denial, mean), Some(Span::from_millis(wait)), "{held} {asked}");
    }
}

#[test]
fn those_ahead_take_slots_first() {
    let policy = policy([slots(2, TTL)]);
    let mut store = SingleEntry::default();
    let one = policy.amounts(&Costs::new().with("jobs", 1)).unwrap();
    let never = policy.amounts(&Costs::new().with("jobs", 3)).unwrap();
    let last = job(&policy, 1).behind(vec![one, never, one, one]);
    // Nobody holds a slot yet: two of those ahead will.
    let denial = denied(&mut store, at(0), &last);
    assert_eq!((denial.waiting_ahead, denial.limits[0].remaining), (3, 2));
    assert_eq!(estimated(&denial, Span::from_secs(4)), Some(Span::from_secs(4)));
    for _ in 0..2 {
        assert!(decided(&mut store, at(0), &job(&policy, 1)).is_admitted());
    }
    let denial = denied(&mut store, at(0), &last);
    assert_eq!(estimated(&denial, Span::from_secs(4)), Some(Span::from_secs(8)));
    assert_eq!(denial.retry_after(), Some(Span::from_secs(2)), "the default, twice over");
    assert_eq!(denial.expires_at, Some(at(600)));
}

/// The other limits are honest, so no estimate is below their wait; an estimate that is above counts.
#[test]
fn an_estimate_is_never_below_the_wait_of_another_limit() {
    let policy = policy([
        Limit::new("rate", "requests", RollingWindow::new(1, Span::from_secs(10))),
        slots(1, TTL),
    ]);
    let mut store = SingleEntry::default();
    let ask = job(&policy, 1).cost("requests", 1);
    assert!(decided(&mut store, at(0), &ask).is_admitted());
    let denial = denied(&mut store, at(0), &ask);
    assert_eq!((&*denial.limit, denial.not_before()), ("slots", at(10)));
    assert_eq!((denial.reset_at(), denial.expires_at), (Some(at(10)), Some(at(300))));
    assert_eq!(estimated(&denial, Span::from_secs(30)), Some(Span::from_secs(30)));
    // At the end of the other wait the slot is all that is missing.
    let denial = denied(&mut store, at(10), &ask);
    assert_eq!((denial.not_before(), denial.retry_after()), (at(10), Some(SLOT_WAIT_DEFAULT)));
    // Behind another: the first in the next 10 s, then this one 10 s later.
    let behind = ask.clone().behind(vec![*ask.amounts()]);
    assert_eq!(denied(&mut store, at(0), &behind).not_before(), at(20));
}

/// A wait that no release shortens is exact.
#[test]
fn a_wait_that_does_not_depend_on_holders_is_exact() {
    let policy = policy([
        Limit::new("rate", "requests", RollingWindow::new(1, Span::from_hours(1))),
        slots(1, TTL),
    ]);
    let mut store = SingleEntry::default();
    let ask = job(&policy, 1).cost("requests", 1);
    assert!(decided(&mut store, at(0), &ask).is_admitted());
    let denial = denied(&mut store, at(0), &ask);
    assert_eq!((&*denial.limit, denial.is_estimated()), ("rate", false));
    assert_eq!((denial.reset_at(), denial.expires_at), (Some(at(3_600)), None));
    let never = denied(&mut store, at(0), &job(&policy, 2));
    assert_eq!((never.wait, never.is_estimated(), never.waiting_ahead), (Wait::Never, false, 0));
    // A provider's word closes the slots themselves.
    let jobs_only = job(&policy, 1).cost("requests", 0);
    let until = at(400);
    let close = Operation::Close { policy: &policy, subject: "subject", limit: "slots", until };
    assert!(matches!(store.run(at(0), &close), Ok(Outcome::Changed(true))));
    let denial = denied(&mut store, at(0), &jobs_only);
    assert_eq!((denial.reset_at(), denial.is_estimated()), (Some(until), false));
}

/// With two concurrency limits that lack slots the longer estimate counts.
#[test]
fn the_longest_of_several_estimates_counts() {
    let policy = policy([
        slots(1, TTL),
        Limit::new("gpus", "jobs", Concurrency::new(1, Span::from_mins(1))),
    ]);
    let mut store = SingleEntry::default();
    assert!(decided(&mut store, at(0), &job(&policy, 1)).is_admitted());
    let mut denial = denied(&mut store, at(0), &job(&policy, 1));
    denial.estimate(|limit| Some(Span::from_secs(if limit == "gpus" { 9 } else { 2 })));
    assert_eq!((&*denial.limit, denial.retry_after()), ("slots", Some(Span::from_secs(9))));
}

/// What is refused only because others wait ahead says so, although there is room for it.
#[test]
fn an_ask_behind_a_larger_one_counts_those_ahead() {
    let policy = policy([Limit::new("rate", "jobs", TokenBucket::per_second(1).burst(50))]);
    let mut store = SingleEntry::default();
    assert!(decided(&mut store, at(0), &job(&policy, 1)).is_admitted());
    let large = policy.amounts(&Costs::new().with("jobs", 50)).unwrap();
    let denial = denied(&mut store, at(0), &job(&policy, 1).behind(vec![large]));
    assert_eq!((denial.waiting_ahead, denial.limits[0].remaining), (1, 49));
    assert_eq!((denial.reset_at(), denial.is_estimated()), (Some(at(2)), false));
}
