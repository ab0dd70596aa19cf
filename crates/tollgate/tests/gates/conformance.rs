//! Every gate of this crate passes the one suite, and every sabotaged gate fails it.

use std::sync::Arc;

use tollgate::{Atomic, Event, Gate, ManualClock, Observed, Observer, Queue};
use tollgate_testing::conformance::{Fixture, run_all};
use tollgate_testing::sabotage::{Broken, Fault};

use crate::memory;

#[test]
fn memory_passes_the_suite() {
    let (gate, clock) = memory();
    run_all(&Fixture::new(gate, clock)).unwrap();
}

#[test]
fn the_queue_passes_the_suite() {
    let (gate, clock) = memory();
    let queue = Queue::new(gate, Arc::new(clock.clone()));
    run_all(&Fixture::new(Arc::new(queue), clock)).unwrap();
}

#[test]
fn an_observed_gate_passes_the_suite() {
    #[derive(Debug)]
    struct Deaf;
    impl Observer for Deaf {
        fn observe(&self, _event: &Event<'_>) {}
    }
    let (gate, clock) = memory();
    let observed = Observed::new(gate, Arc::new(Deaf), Arc::new(clock.clone()));
    run_all(&Fixture::new(Arc::new(observed), clock)).unwrap();
}

#[test]
fn the_suite_catches_every_sabotage_and_passes_the_control() {
    let broken = |fault| {
        let clock = ManualClock::new();
        let store = Broken::new(fault, Arc::new(clock.clone()));
        let gate: Arc<dyn Gate> = Arc::new(Atomic::new(store));
        run_all(&Fixture::new(gate, clock))
    };
    assert_eq!(broken(Fault::None), Ok(()), "the control must pass, or the rest shows nothing");
    for fault in Fault::ALL {
        assert!(broken(fault).is_err(), "{fault:?} was not caught");
    }
}
