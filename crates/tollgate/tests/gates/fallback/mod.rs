//! Fallback: the shared suite here, and beside it what it adds.

mod back;
mod balance;
mod crowd;
mod outage;
mod permits;
mod resume;
mod start;

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::ManualClock;
use tollgate::strategy::{Fallback, FallbackOptions};
use tollgate::{Ask, ErrorKind, GateExt, Permit, Policy};
use tollgate_conformance::faulty::Trouble;
use tollgate_conformance::{Capabilities, Fixture};

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
    gate.acquire(ask).await.unwrap().into_permit().unwrap()
}

tollgate_conformance::suite! {
    fn with_fallback() -> Fixture {
        let (store, clock) = store();
        Fixture::new(fallback(&store, &clock).0, clock)
            .with_capabilities(Capabilities { joint: true, ..Capabilities::default() })
    }
}

#[test]
fn wrong_settings_are_refused() {
    let (store, clock) = store();
    let of = |settings| Fallback::new(resend(&store, &clock), settings, Arc::new(clock.clone()));
    assert_eq!(of(FallbackOptions::new(0)).unwrap_err().kind(), ErrorKind::Invalid);
    let swapped =
        FallbackOptions { probe_min: Duration::from_secs(3_600), ..FallbackOptions::new(1) };
    assert_eq!(of(swapped).unwrap_err().kind(), ErrorKind::Invalid);
}
