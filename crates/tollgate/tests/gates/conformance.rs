//! Every gate of this crate passes the one suite, and every sabotaged gate fails it.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::observe::{Event, Observed, Observer};
use tollgate::{Gate, Queue};
use tollgate_conformance::sabotage::{Broken, Fault, JointFault, Unjoined};
use tollgate_conformance::{Capabilities, Fixture, run_all, run_case};

use crate::memory;

/// A fixture of a gate that decides several charges together.
fn joint(gate: Arc<dyn Gate>, clock: ManualClock) -> Fixture {
    Fixture::new(gate, clock)
        .with_capabilities(Capabilities { joint: true, ..Capabilities::default() })
}

tollgate_conformance::suite! {
    fn memory_store() -> Fixture {
        let (gate, clock) = memory();
        joint(gate, clock)
    }

    fn queue() -> Fixture {
        let (gate, clock) = memory();
        let queue = Queue::new(gate, Arc::new(clock.clone()));
        joint(Arc::new(queue), clock)
    }

    fn observed() -> Fixture {
        #[derive(Debug)]
        struct Deaf;
        impl Observer for Deaf {
            fn observe(&self, _event: &Event<'_>) {}
        }
        let (gate, clock) = memory();
        let observed = Observed::new(gate, Arc::new(Deaf), Arc::new(clock.clone()));
        joint(Arc::new(observed), clock)
    }
}

#[test]
fn the_suite_catches_every_sabotage_and_passes_the_control() {
    let broken = |fault| {
        let clock = ManualClock::new();
        let store = Broken::new(fault, Arc::new(clock.clone()));
        let gate: Arc<dyn Gate> = Arc::new(store);
        run_all(&Fixture::new(gate, clock))
    };
    assert_eq!(broken(Fault::None), Ok(()), "the control must pass, or the rest shows nothing");
    for fault in Fault::ALL {
        assert!(broken(fault).is_err(), "{fault:?} was not caught");
    }
}

/// Each defect is caught by a case of its own, whatever order the suite has.
#[test]
fn the_suite_catches_charges_that_are_taken_apart() {
    let run = |fault, case| {
        let (gate, clock) = memory();
        run_case(case, &joint(Arc::new(Unjoined::new(fault, gate)), clock))
    };
    let once = "charges_all_or_none_at_once";
    let meanwhile = "refused_asks_take_nothing_meanwhile";
    for case in [once, meanwhile, "agrees_with_the_joint_model"] {
        assert_eq!(run(JointFault::None, case), Ok(()), "the control must pass");
    }
    for (fault, case) in
        [(JointFault::ChargesAllButTheLast, once), (JointFault::RefundsByHand, meanwhile)]
    {
        for case in [case, "agrees_with_the_joint_model"] {
            assert!(run(fault, case).is_err(), "{fault:?} was not caught by {case}");
        }
    }
}
