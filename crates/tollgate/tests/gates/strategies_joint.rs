//! Asks with several charges through the strategies: never decided by the first charge alone.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::policy::OnStoreFailure;
use tollgate::strategy::{FallbackOptions, Optimistic, OptimisticOptions, ShareStart};
use tollgate::{Ask, Costs, ErrorKind, GateExt, Limit, Memory, Policy, RollingWindow, Span};
use tollgate_conformance::faulty::Trouble;

use crate::faulty::{Gated, Store, drive, fallback_with, pass, resend, store, used};

fn party(name: &str, limit: u64, action: OnStoreFailure) -> Policy {
    let limit = Limit::new("rph", "requests", RollingWindow::new(limit, Span::from_hours(1)));
    Policy::builder(name).limit(limit).on_store_failure(action).build().unwrap()
}

/// A fallback for one of ten instances, whose shares can be spent at once.
fn sharing(store: &Store, clock: &ManualClock) -> Arc<Gated> {
    let options = FallbackOptions { start: ShareStart::Share, ..FallbackOptions::new(10) };
    fallback_with(store, clock, options).0
}

/// Without the store, one of ten instances has a tenth of each limit; the smaller share bounds both subjects.
#[tokio::test]
async fn shares_are_taken_for_all_charges_or_for_none() {
    let (store, clock) = store();
    let gate = sharing(&store, &clock);
    let user = party("user", 100, OnStoreFailure::Fallback);
    let team = party("team", 50, OnStoreFailure::Fallback);
    let ask = Ask::new(&user, "u1").and(&team, "t7");
    store.always(Trouble::Down);
    let mut admitted = 0;
    let denial = loop {
        let decision = drive(&clock, gate.acquire(&ask)).await.unwrap();
        match decision.into_permit() {
            Some(permit) => assert!(permit.parts().all(|part| part.degraded)),
            None => {
                break drive(&clock, gate.acquire(&ask)).await.unwrap().into_denial().unwrap();
            }
        }
        admitted += 1;
    };
    assert_eq!((admitted, &*denial.policy, denial.degraded), (5, "team", true));
    assert_eq!(denial.joint.unwrap().charges.len(), 2);
    let local = async |policy: &Policy, subject| {
        drive(&clock, gate.standing(policy, subject)).await.unwrap()[0].used
    };
    assert_eq!([local(&user, "u1").await, local(&team, "t7").await], [5, 5]);
    // Both subjects owe, and go back to the store once that is posted.
    store.always(Trouble::None);
    pass(&clock, Span::from_mins(2)).await;
    assert!(!gate.is_degraded());
    assert_eq!([used(&store, &user, "u1").await, used(&store, &team, "t7").await], [5, 5]);
    let permit = drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap();
    assert!(!permit.degraded);
    assert_eq!([used(&store, &user, "u1").await, used(&store, &team, "t7").await], [6, 6]);
}

#[tokio::test]
async fn a_closed_policy_fails_the_ask_before_any_share_is_taken() {
    let (store, clock) = store();
    let gate = sharing(&store, &clock);
    let user = party("user", 100, OnStoreFailure::Fallback);
    let closed = party("account", 50, OnStoreFailure::Closed);
    store.always(Trouble::Down);
    for _ in 0..2 {
        let ask = Ask::new(&user, "u1").and(&closed, "a");
        let error = drive(&clock, gate.acquire(&ask)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    let standing = drive(&clock, gate.standing(&user, "u1")).await.unwrap();
    assert_eq!(standing[0].used, 0);
}

#[tokio::test]
async fn an_open_policy_counts_and_does_not_refuse() {
    let (store, clock) = store();
    let gate = sharing(&store, &clock);
    let user = party("user", 100, OnStoreFailure::Fallback);
    let open = party("account", 2, OnStoreFailure::Open);
    store.always(Trouble::Down);
    let ask = Ask::new(&open, "a").and(&user, "u1");
    for _ in 0..10 {
        assert!(drive(&clock, gate.acquire(&ask)).await.unwrap().is_admitted());
    }
    let denial = drive(&clock, gate.acquire(&ask)).await.unwrap().into_denial().unwrap();
    assert_eq!(&*denial.policy, "user");
    store.always(Trouble::None);
    pass(&clock, Span::from_mins(2)).await;
    assert_eq!([used(&store, &open, "a").await, used(&store, &user, "u1").await], [10, 10]);
}

/// The store charged the ask, and every reply was lost: it is posted as the same charge, which the store recognises.
#[tokio::test]
async fn a_charge_in_doubt_is_posted_once_for_all_subjects() {
    for is_settled in [false, true] {
        let (store, clock) = store();
        let gate = sharing(&store, &clock);
        let user = party("user", 100, OnStoreFailure::Fallback);
        let team = party("team", 100, OnStoreFailure::Fallback);
        let ask = Ask::new(&user, "u1").and(&team, "t7").cost("requests", 4).id("order-1");
        store.always(Trouble::LosesReply);
        let permit = drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap();
        assert!(permit.degraded && permit.has_several_charges());
        let again = drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap();
        assert_eq!(again.grant(), permit.grant(), "the id is known without the store, too");
        assert_eq!(gate.owing(), 2);
        store.always(Trouble::Down);
        if is_settled {
            let actual = Costs::new().with("requests", 1);
            assert!(drive(&clock, gate.settle(&permit, &actual)).await.unwrap());
        }
        store.always(Trouble::None);
        pass(&clock, Span::from_mins(1)).await;
        assert_eq!(gate.owing(), 0);
        let expected = if is_settled { 1 } else { 4 };
        let sums = [used(&store, &user, "u1").await, used(&store, &team, "t7").await];
        assert_eq!(sums, [expected, expected]);
    }
}

/// A permit of the store is settled there once it is back, charge by charge.
#[tokio::test]
async fn a_settlement_is_kept_for_every_charge() {
    let (store, clock) = store();
    let gate = sharing(&store, &clock);
    let user = party("user", 100, OnStoreFailure::Fallback);
    let team = party("team", 100, OnStoreFailure::Fallback);
    let ask = Ask::new(&user, "u1").and(&team, "t7").cost("requests", 9);
    let permit = drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap();
    store.always(Trouble::Down);
    assert!(drive(&clock, gate.release(&permit)).await.unwrap());
    store.always(Trouble::None);
    pass(&clock, Span::from_mins(2)).await;
    assert_eq!([used(&store, &user, "u1").await, used(&store, &team, "t7").await], [0, 0]);
}

/// One subject owes: the ask goes to the store after that is posted, and is decided by what both have used.
#[tokio::test]
async fn an_ask_waits_for_the_debt_of_every_subject() {
    let (store, clock) = store();
    let gate = sharing(&store, &clock);
    let user = party("user", 100, OnStoreFailure::Fallback);
    let team = party("team", 100, OnStoreFailure::Fallback);
    store.always(Trouble::Down);
    let alone = Ask::new(&team, "t7").cost("requests", 10);
    assert!(drive(&clock, gate.acquire(&alone)).await.unwrap().is_admitted());
    store.always(Trouble::None);
    assert!(drive(&clock, gate.probe()).await);
    assert_eq!((gate.owing(), used(&store, &team, "t7").await), (1, 0));
    let ask = Ask::new(&user, "u1").and(&team, "t7").cost("requests", 91);
    let denial = drive(&clock, gate.acquire(&ask)).await.unwrap().into_denial().unwrap();
    assert_eq!((&*denial.policy, denial.degraded), ("team", false));
    assert_eq!([used(&store, &user, "u1").await, used(&store, &team, "t7").await], [0, 10]);
}

#[tokio::test]
async fn a_lost_reply_is_sent_again_under_one_id() {
    let (store, clock) = store();
    let gate = resend(&store, &clock);
    let user = party("user", 100, OnStoreFailure::Closed);
    let team = party("team", 100, OnStoreFailure::Closed);
    let ask = Ask::new(&user, "u1").and(&team, "t7").cost("requests", 3);
    store.next_calls([Trouble::LosesReply, Trouble::LosesReply]);
    let permit = drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap();
    assert_eq!((permit.id(), permit.parts().count()), (None, 2));
    assert_eq!([used(&store, &user, "u1").await, used(&store, &team, "t7").await], [3, 3]);
    store.next_calls([Trouble::LosesReply]);
    assert!(drive(&clock, gate.release(&permit)).await.unwrap());
    assert_eq!([used(&store, &user, "u1").await, used(&store, &team, "t7").await], [0, 0]);
}

/// Local admissions of the second subject are posted before the store decides, and the local view learns of the charge.
#[tokio::test]
async fn an_optimistic_gate_asks_the_store_after_posting_every_subject() {
    let (memory, clock) = crate::memory();
    let gate: Optimistic<Arc<Memory>> = Optimistic::new(
        Arc::clone(&memory),
        OptimisticOptions::new(1_000),
        Arc::new(clock.clone()),
    );
    let user = party("user", 100, OnStoreFailure::Closed);
    let team = party("team", 20, OnStoreFailure::Closed);
    let alone = Ask::new(&team, "t7").cost("requests", 5);
    for _ in 0..3 {
        assert!(drive(&clock, gate.acquire(&alone)).await.unwrap().is_admitted());
    }
    let ask = Ask::new(&user, "u1").and(&team, "t7").cost("requests", 6);
    assert!(gate.try_acquire(&ask).unwrap().is_none());
    let denial = drive(&clock, gate.acquire(&ask)).await.unwrap().into_denial().unwrap();
    assert_eq!(&*denial.policy, "team");
    assert_eq!(memory.standing(&user, "u1").await.unwrap()[0].used, 0);
    let ask = Ask::new(&user, "u1").and(&team, "t7").cost("requests", 5);
    let permit = drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap();
    assert!(!drive(&clock, gate.acquire(&alone)).await.unwrap().is_admitted(), "it is used up");
    let actual = Costs::new().with("requests", 2);
    assert!(drive(&clock, gate.settle(&permit, &actual)).await.unwrap());
    let sums = [(&user, "u1"), (&team, "t7")];
    for ((policy, subject), expected) in sums.into_iter().zip([2, 17]) {
        let standing = memory.standing(policy, subject).await.unwrap();
        assert_eq!(standing[0].used, expected);
    }
}
