//! Coming back: one probe, and what was spent is posted before anything else, and once.

use std::sync::Arc;

use tollgate::policy::OnStoreFailure;
use tollgate::{Ask, Clock, GateExt, Queue, Span, Timestamp};
use tollgate_conformance::faulty::Trouble;

use super::{admitted, away};
use crate::faulty::{drive, fallback, hourly, leap, pass, store, used};

/// R000.10: the store is asked again after one probe, knows then what was spent without it, and decisions are exact.
#[tokio::test]
async fn r000_10_one_probe_after_the_store_is_back_the_books_balance() {
    let (store, clock) = store();
    let (gate, heard) = fallback(&store, &clock);
    let policy = hourly(10, OnStoreFailure::Open);
    let ask = Ask::new(&policy, "p").cost("requests", 2);
    for _ in 0..2 {
        admitted(&gate, &ask).await;
    }
    store.always(Trouble::Down);
    let since = clock.now();
    for _ in 0..3 {
        assert!(drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap().degraded);
    }
    pass(&clock, Span::from_mins(5)).await;
    assert!(gate.acquire(&ask).await.unwrap().into_permit().unwrap().degraded);
    store.always(Trouble::None);
    // The longest time between two probes.
    pass(&clock, Span::from_secs(30)).await;
    assert_eq!(used(&store, &policy, "p").await, 12);
    assert!(!gate.is_degraded() && gate.owing() == 0);
    let denial = gate.acquire(&ask).await.unwrap().into_denial().unwrap();
    assert!(!denial.degraded, "over by what was let through, and exact from here on");
    let told = heard.told.lock().unwrap();
    assert!(told.len() == 2 && told[1].starts_with("ended: "), "{told:?} since {since}");
}

/// Who waits for the share of an outage asks the store soon after it is back, not when the share would have had room.
#[tokio::test]
async fn a_waiter_leaves_the_share_when_the_store_is_back() {
    let policy = hourly(20, OnStoreFailure::Fallback);
    let (store, clock, gate) = away(&policy).await;
    let queue = Queue::new(gate, Arc::new(clock.clone()));
    store.always(Trouble::None);
    let since = clock.now();
    let ask = Ask::new(&policy, "p");
    let asked = queue.acquire_within(&ask, since + Span::from_hours(2));
    let permit = drive(&clock, asked).await.unwrap().into_permit().unwrap();
    assert!(!permit.degraded);
    let waited = clock.now().since(since);
    assert!(waited <= Span::from_secs(3), "{waited}");
}

/// Replies that are lost while the debt is posted: it is sent again under the same id, and charged once.
#[tokio::test]
async fn r000_12_a_debt_is_posted_once_though_replies_are_lost() {
    for lost in [Trouble::LosesReply, Trouble::HangsAfter] {
        let policy = hourly(100, OnStoreFailure::Open);
        let (store, clock, gate) = away(&policy).await;
        for _ in 0..5 {
            admitted(&gate, &Ask::new(&policy, "opens").cost("requests", 3)).await;
        }
        // The probe, which reads and writes, is answered, and then nothing is, for longer than one call is tried.
        store.always(lost);
        store.next_calls([Trouble::None; 2]);
        pass(&clock, Span::from_mins(2)).await;
        assert_eq!(
            used(&store, &policy, "opens").await,
            16,
            "the store has it, and nobody was told"
        );
        assert!(gate.is_degraded());
        store.always(Trouble::None);
        pass(&clock, Span::from_secs(30)).await;
        assert_eq!((used(&store, &policy, "opens").await, gate.is_degraded()), (16, false));
    }
}

/// An ask under the caller's id that the store charged without a reply is admitted here too, and is charged once.
#[tokio::test]
async fn r000_12_an_id_is_charged_once_by_the_store_and_by_fallback_together() {
    let (store, clock) = store();
    let (gate, _) = fallback(&store, &clock);
    let policy = hourly(100, OnStoreFailure::Open);
    let ask = Ask::new(&policy, "p").cost("requests", 4).id("order-1");
    store.always(Trouble::LosesReply);
    let first = drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap();
    assert!(first.degraded && used(&store, &policy, "p").await == 4);
    let again = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    assert_eq!(again.grant(), first.grant());
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(30)).await;
    assert_eq!((used(&store, &policy, "p").await, gate.is_degraded()), (4, false));
}

/// A second outage starts with the share used again, whatever the first one left.
#[tokio::test]
async fn every_outage_starts_with_the_share_used() {
    let policy = hourly(20, OnStoreFailure::Fallback);
    let (store, clock, gate) = away(&policy).await;
    let ask = Ask::new(&policy, "p");
    leap(&clock, Span::from_hours(1)).await;
    assert!(admitted(&gate, &ask).await.degraded);
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(30)).await;
    assert!(!gate.is_degraded() && used(&store, &policy, "p").await == 1);
    store.always(Trouble::Down);
    assert!(!drive(&clock, gate.acquire(&ask)).await.unwrap().is_admitted());
    leap(&clock, Span::from_mins(59)).await;
    assert!(!gate.acquire(&ask).await.unwrap().is_admitted());
    leap(&clock, Span::from_mins(1)).await;
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
}

/// A program that ends posts what it owes.
#[tokio::test]
async fn what_is_owed_is_posted_at_the_end() {
    let policy = hourly(10, OnStoreFailure::Open);
    let (store, clock, gate) = away(&policy).await;
    admitted(&gate, &Ask::new(&policy, "p")).await;
    assert!(drive(&clock, gate.shutdown(Timestamp::MAX)).await.is_err());
    store.always(Trouble::None);
    gate.shutdown(Timestamp::MAX).await.unwrap();
    assert_eq!((used(&store, &policy, "p").await, gate.owing()), (1, 0));
}
