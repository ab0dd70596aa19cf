//! Sending again: how often, how long, and never twice.

use tollgate::observe::AttemptResult;
use tollgate::policy::OnStoreFailure;
use tollgate::strategy::{Resend, ResendOptions};
use tollgate::{Ask, Clock, Costs, ErrorKind, GateExt};
use tollgate_conformance::faulty::Trouble;
use tollgate_conformance::{Capabilities, Fixture};

use crate::faulty::{Heard, chance, drive, hourly, resend, store, used};
use std::sync::Arc;
use std::time::Duration;

tollgate_conformance::suite! {
    fn resending() -> Fixture {
        let (store, clock) = store();
        Fixture::new(Arc::new(resend(&store, &clock)), clock)
            .with_capabilities(Capabilities { joint: true, ..Capabilities::default() })
    }
}

/// R000.10, R000.11, conflict 12: three attempts when it fails, the first and five more when it throttles, and each is
/// told.
#[tokio::test]
async fn r000_10_r000_11_three_attempts_when_it_fails_and_six_when_it_throttles() {
    for (trouble, attempts, kind, result) in [
        (Trouble::Down, 3, ErrorKind::Unavailable, AttemptResult::Failed),
        (Trouble::LosesReply, 3, ErrorKind::Unavailable, AttemptResult::Failed),
        (Trouble::Hangs, 3, ErrorKind::TimedOut, AttemptResult::Failed),
        (Trouble::Throttles, 6, ErrorKind::Throttled, AttemptResult::Throttled),
        (Trouble::Full, 1, ErrorKind::Full, AttemptResult::Answered),
    ] {
        let (store, clock) = store();
        let heard = Arc::new(Heard::default());
        let gate = resend(&store, &clock).observer(heard.clone());
        let policy = hourly(5, OnStoreFailure::Closed);
        store.always(trouble);
        let since = clock.now();
        let error = drive(&clock, gate.acquire(&Ask::new(&policy, "p"))).await.unwrap_err();
        assert_eq!((error.kind(), store.calls()), (kind, attempts), "{trouble:?}");
        let tried: Vec<_> = (1..=attempts).map(|n| (u32::try_from(n).unwrap(), result)).collect();
        assert_eq!(*heard.tried.lock().unwrap(), tried);
        assert!(
            clock.now().since(since) <= ResendOptions::default().deadline.into(),
            "{trouble:?}"
        );
    }
}

/// The deadline holds whatever the store does, also if every attempt would have taken longer.
#[tokio::test]
async fn every_call_is_answered_within_its_deadline() {
    let (store, clock) = store();
    let attempts =
        ResendOptions { deadline: Duration::from_millis(700), ..ResendOptions::default() };
    let gate = Resend::new(store.clone(), attempts, Arc::new(clock.clone())).random(chance());
    let policy = hourly(5, OnStoreFailure::Closed);
    let permit = gate.acquire(&Ask::new(&policy, "p")).await.unwrap().into_permit().unwrap();
    store.always(Trouble::Hangs);
    let (ask, costs) = (Ask::new(&policy, "p"), Costs::new());
    let since = clock.now();
    let calls: Vec<tollgate::gate::BoxFuture<'_, Result<(), tollgate::Error>>> = vec![
        Box::pin(async { gate.acquire(&ask).await.map(drop) }),
        Box::pin(async { gate.settle(&permit, &costs).await.map(drop) }),
        Box::pin(async { gate.release(&permit).await.map(drop) }),
        Box::pin(async { gate.renew(&permit).await.map(drop) }),
        Box::pin(async { gate.charge(&ask).await.map(drop) }),
        Box::pin(async { gate.close_until(&ask, "only", since).await.map(drop) }),
        Box::pin(async { gate.standing(&policy, "p").await.map(drop) }),
        Box::pin(async { gate.reset(&policy, "p").await.map(drop) }),
    ];
    for call in calls {
        let since = clock.now();
        let error = drive(&clock, call).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(
            clock.now().since(since) <= attempts.deadline.into(),
            "{}",
            clock.now().since(since)
        );
    }
}

/// R000.12: replies that are lost after the store did its work, by every verb: the same amount again, charged once.
#[tokio::test]
async fn r000_12_lost_replies_are_asked_again_and_charged_once() {
    for lost in [Trouble::LosesReply, Trouble::HangsAfter] {
        let (store, clock) = store();
        let gate = resend(&store, &clock);
        let policy = hourly(100, OnStoreFailure::Closed);
        let ask = Ask::new(&policy, "p").cost("requests", 7);
        store.next_calls([lost, lost]);
        let permit = drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap();
        assert_eq!((used(&store, &policy, "p").await, store.calls()), (7, 3));
        store.next_calls([lost]);
        assert!(
            drive(&clock, gate.settle(&permit, &Costs::new().with("requests", 3))).await.unwrap()
        );
        assert!(!gate.settle(&permit, &Costs::new().with("requests", 1)).await.unwrap());
        assert_eq!(used(&store, &policy, "p").await, 3);
        store.next_calls([lost, Trouble::Throttles, lost]);
        drive(&clock, gate.charge(&ask)).await.unwrap();
        assert_eq!(used(&store, &policy, "p").await, 10);
        let second = gate.acquire(&ask.clone().id("mine")).await.unwrap().into_permit().unwrap();
        store.next_calls([lost]);
        assert!(drive(&clock, gate.release(&second)).await.unwrap());
        assert_eq!(used(&store, &policy, "p").await, 10);
    }
}

/// What is wrong stays wrong, and a denial is an answer.
#[tokio::test]
async fn only_failures_of_the_store_are_tried_again() {
    let (store, clock) = store();
    let gate = resend(&store, &clock);
    let policy = hourly(1, OnStoreFailure::Closed);
    let wrong = gate.acquire(&Ask::new(&policy, "p").cost("bananas", 1)).await.unwrap_err();
    assert_eq!((wrong.kind(), store.calls()), (ErrorKind::Invalid, 1));
    assert!(gate.acquire(&Ask::new(&policy, "p")).await.unwrap().is_admitted());
    assert!(!gate.acquire(&Ask::new(&policy, "p")).await.unwrap().is_admitted());
    assert_eq!(store.calls(), 3);
    let conflict = Ask::new(&policy, "q").id("i");
    gate.acquire(&conflict).await.unwrap();
    let error = gate.acquire(&conflict.cost("requests", 0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
}

/// Each ask of a busy subject has its own id, so that a lost reply never charges twice.
#[tokio::test]
async fn a_busy_subject_is_asked_under_ids_and_never_charged_twice() {
    let (store, clock) = store();
    let gate = resend(&store, &clock);
    let policy = hourly(10_000, OnStoreFailure::Closed);
    let ask = Ask::new(&policy, "hot");
    for _ in 0..1_100 {
        assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    }
    assert_eq!((store.calls(), used(&store, &policy, "hot").await), (1_100, 1_100));
    store.next_calls([Trouble::LosesReply]);
    assert!(drive(&clock, gate.acquire(&ask)).await.unwrap().is_admitted());
    assert_eq!(used(&store, &policy, "hot").await, 1_101);
    store.next_calls([Trouble::Down; 4]);
    let error = drive(&clock, gate.acquire(&ask)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "the store itself is gone");
    assert_eq!(used(&store, &policy, "hot").await, 1_101);
}

/// An attempt that arrives after its permit was released is recognised, and charges nothing.
#[tokio::test]
async fn a_late_attempt_is_not_charged_after_its_permit_was_released() {
    let (store, clock) = store();
    let gate = resend(&store, &clock);
    let policy = hourly(10, OnStoreFailure::Closed);
    let permit = gate.acquire(&Ask::new(&policy, "p")).await.unwrap().into_permit().unwrap();
    assert_eq!(permit.id(), None);
    assert!(gate.release(&permit).await.unwrap());
    assert_eq!(used(&store, &policy, "p").await, 0);
    let named =
        gate.acquire(&Ask::new(&policy, "p").id("mine")).await.unwrap().into_permit().unwrap();
    assert_eq!(named.id(), Some("mine"), "the caller's own id is the caller's to forget");
}
