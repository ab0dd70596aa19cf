//! What the share counts as when the store goes away.

use tollgate::policy::OnStoreFailure;
use tollgate::strategy::{FallbackOptions, ShareStart};
use tollgate::{Ask, GateExt, Span};
use tollgate_conformance::faulty::Trouble;

use super::admitted;
use crate::faulty::{drive, fallback_with, hourly, leap, pass, store};

/// R000.10: a share that starts unused is spent at once, and once in a window however often the store goes away in it.
#[tokio::test]
async fn r000_10_a_share_that_starts_unused_can_be_spent_at_once_and_only_once_in_a_window() {
    let (store, clock) = store();
    let settings = FallbackOptions { start: ShareStart::Share, ..FallbackOptions::new(10) };
    let (gate, _) = fallback_with(&store, &clock, settings);
    let policy = hourly(20, OnStoreFailure::Fallback);
    let ask = Ask::new(&policy, "p");
    for _ in 0..20 {
        assert!(!admitted(&gate, &ask).await.degraded);
    }
    store.always(Trouble::Down);
    // 20 by the store and 2 of 20 by one of ten: the bound of the window.
    let first = drive(&clock, gate.acquire(&ask)).await.unwrap().into_permit().unwrap();
    assert!(first.degraded && admitted(&gate, &ask).await.degraded);
    assert!(gate.acquire(&ask).await.unwrap().into_denial().unwrap().degraded);
    store.always(Trouble::None);
    pass(&clock, Span::from_mins(1)).await;
    assert!(!gate.is_degraded());
    assert!(
        !gate.acquire(&ask).await.unwrap().into_denial().unwrap().degraded,
        "the store knows of all"
    );
    store.always(Trouble::Down);
    let denial = drive(&clock, gate.acquire(&ask)).await.unwrap().into_denial().unwrap();
    assert!(denial.degraded, "the share of this window is spent");
    leap(&clock, Span::from_hours(1)).await;
    for _ in 0..2 {
        assert!(admitted(&gate, &ask).await.degraded);
    }
    assert!(gate.acquire(&ask).await.unwrap().into_denial().unwrap().degraded);
}
