//! Fallback: the shared suite here, and beside it what it adds.

mod back;
mod balance;
mod crowd;
mod outage;
mod permits;
mod resume;
mod start;

use std::sync::Arc;

use tollgate::{
    Ask, ErrorKind, Fallback, FallbackSettings, Gate, ManualClock, Permit, Policy, Span,
};
use tollgate_testing::conformance::{Fixture, run_all};
use tollgate_testing::faulty::Trouble;

use crate::faulty::{Gated, Store, drive, fallback, resend, store};

/// A store that is away, and a gate that noticed.
async fn away(policy: &Policy) -> (Store, ManualClock, Arc<Gated>) {
    let (store, clock) = store();
    let (gate, _) = fallback(&store, &clock);
    store.always(Trouble::Down);
    drop(drive(&clock, gate.acquire(&Ask::new(policy, "opens"))).await);
    assert!(gate.is_degraded());
    (store, clock, gate)
}

async fn admitted(gate: &Gated, ask: &Ask<'_>) -> Permit {
    gate.acquire(ask).await.unwrap().permit().unwrap()
}

#[test]
fn a_gate_with_fallback_passes_the_suite() {
    let (store, clock) = store();
    run_all(&Fixture::new(fallback(&store, &clock).0, clock)).unwrap();
}

#[test]
fn wrong_settings_are_refused() {
    let (store, clock) = store();
    let of = |settings| Fallback::new(resend(&store, &clock), settings, Arc::new(clock.clone()));
    assert_eq!(of(FallbackSettings::new(0)).unwrap_err().kind(), ErrorKind::Invalid);
    let swapped = FallbackSettings { probe_min: Span::from_hours(1), ..FallbackSettings::new(1) };
    assert_eq!(of(swapped).unwrap_err().kind(), ErrorKind::Invalid);
}
