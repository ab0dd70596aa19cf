//! Permits and an outage: settled, released and renewed where they were given, by the store or without it.

use tollgate::policy::{OnStoreFailure, Period, Rule};
use tollgate::{Ask, CalendarWindow, Clock, Concurrency, Costs, GateExt, RollingWindow, Span};
use tollgate_conformance::faulty::Trouble;

use super::{admitted, away};
use crate::faulty::{drive, fallback, hourly, leap, pass, store, used, with};

const HOUR: Span = Span::from_hours(1);

/// Permits given without the store: settled here, in the outage and after it.
#[tokio::test]
async fn permits_given_without_the_store_are_settled_where_they_were_given() {
    let policy = hourly(100, OnStoreFailure::Open);
    let (store, clock, gate) = away(&policy).await;
    let ask = Ask::new(&policy, "p").cost("requests", 10);
    let cost = |amount| Costs::new().with("requests", amount);
    let [less, more, not_made, late_more, late_less] = [
        admitted(&gate, &ask).await,
        admitted(&gate, &ask).await,
        admitted(&gate, &ask).await,
        admitted(&gate, &ask).await,
        admitted(&gate, &ask).await,
    ];
    assert!(gate.settle(&less, &cost(4)).await.unwrap());
    assert!(!gate.settle(&less, &cost(1)).await.unwrap(), "the second time changes nothing");
    assert!(gate.settle(&more, &cost(13)).await.unwrap());
    assert!(gate.release(&not_made).await.unwrap() && !gate.release(&not_made).await.unwrap());
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(30)).await;
    assert_eq!(used(&store, &policy, "p").await, 4 + 13 + 10 + 10);
    // What is posted cannot shrink, and what it cost beyond that is posted too.
    assert!(gate.settle(&late_more, &cost(15)).await.unwrap());
    assert!(!gate.settle(&late_less, &cost(1)).await.unwrap(), "nothing is given back");
    assert!(!gate.settle(&late_more, &cost(90)).await.unwrap());
    pass(&clock, Span::from_secs(30)).await;
    assert_eq!((used(&store, &policy, "p").await, gate.is_degraded()), (4 + 13 + 15 + 10, false));
    // Another instance knows nothing of it but what it cost more; however often it is told.
    let (other, _) = fallback(&store, &clock);
    for _ in 0..2 {
        assert!(other.settle(&late_less, &cost(12)).await.unwrap());
    }
    assert!(!other.release(&late_less).await.unwrap());
    assert_eq!(used(&store, &policy, "p").await, 4 + 13 + 15 + 10 + 2);
}

/// An ask with an id that may have been charged by the store is charged once, and settling its permit gives back exactly
/// what the store counts, whether it had charged the ask or not.
#[tokio::test]
async fn an_admission_in_doubt_is_settled_once_and_exactly() {
    let cost = |amount| Costs::new().with("requests", amount);
    for (trouble, in_store) in [(Trouble::LosesReply, true), (Trouble::Down, false)] {
        for rule in [
            Rule::from(RollingWindow::new(100, HOUR)),
            CalendarWindow::new(100, Period::Day).into(),
        ] {
            let policy = with(rule, OnStoreFailure::Open);
            let (store, clock) = store();
            let (gate, _) = fallback(&store, &clock);
            store.always(trouble);
            // All of them are under way when the store fails.
            let ask = |id| Ask::new(&policy, "p").cost("requests", 10).id(id);
            let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(ask);
            let of = |ask| admitted(&gate, ask);
            let permits = async { tokio::join!(of(&a), of(&b), of(&c), of(&d), of(&e)) };
            let (less, released, more, late_less, late_more) = drive(&clock, permits).await;
            let before = if in_store { 50 } else { 0 };
            assert_eq!(used(&store, &policy, "p").await, before, "{trouble:?}");
            store.always(Trouble::Down);
            assert!(gate.settle(&less, &cost(4)).await.unwrap());
            assert!(gate.release(&released).await.unwrap());
            assert!(gate.settle(&more, &cost(13)).await.unwrap());
            assert!(!gate.settle(&less, &cost(0)).await.unwrap());
            store.always(Trouble::None);
            pass(&clock, Span::from_secs(40)).await;
            assert!(!gate.is_degraded());
            let during = 4 + 13 + 10 + 10;
            assert_eq!(used(&store, &policy, "p").await, during, "{trouble:?}");
            // Arrears are final, and the answer says so; a charge of the store gives back.
            let changed = gate.settle(&late_less, &cost(1)).await.unwrap();
            assert_eq!(changed, in_store);
            assert!(gate.settle(&late_more, &cost(12)).await.unwrap());
            pass(&clock, Span::from_secs(40)).await;
            let after = during + 2 - if in_store { 9 } else { 0 };
            assert_eq!(used(&store, &policy, "p").await, after, "{trouble:?}");
        }
    }
}

/// Permits of the store that are settled or released in an outage: kept, and posted after it.
#[tokio::test]
async fn permits_of_the_store_are_settled_there_after_the_outage() {
    for action in [OnStoreFailure::Closed, OnStoreFailure::Fallback, OnStoreFailure::Open] {
        let (store, clock) = store();
        let (gate, _) = fallback(&store, &clock);
        let policy = hourly(100, action);
        let ask = Ask::new(&policy, "p").cost("requests", 10);
        let (settled, released) = (admitted(&gate, &ask).await, admitted(&gate, &ask).await);
        store.always(Trouble::Down);
        let actual = Costs::new().with("requests", 3);
        assert!(drive(&clock, gate.settle(&settled, &actual)).await.unwrap());
        assert!(gate.release(&released).await.unwrap());
        assert!(gate.renew(&settled).await.is_err());
        store.always(Trouble::None);
        pass(&clock, Span::from_secs(30)).await;
        assert_eq!((used(&store, &policy, "p").await, gate.is_degraded()), (3, false), "{action}");
    }
}

#[tokio::test]
async fn slots_of_the_share_are_renewed_and_freed_here() {
    let policy = with(Concurrency::new(20, Span::from_mins(1)), OnStoreFailure::Fallback);
    let (_store, clock, gate) = away(&policy).await;
    leap(&clock, Span::from_mins(1)).await;
    let ask = Ask::new(&policy, "p");
    let (first, second) = (admitted(&gate, &ask).await, admitted(&gate, &ask).await);
    pass(&clock, Span::from_secs(40)).await;
    let renewed = gate.renew(&first).await.unwrap();
    assert_eq!(renewed.expires_at(), Some(clock.now() + Span::from_mins(1)));
    assert!(!gate.acquire(&ask).await.unwrap().is_admitted());
    assert!(gate.release(&second).await.unwrap());
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    assert_eq!(gate.standing(&policy, "p").await.unwrap()[0].remaining, 0);
}
