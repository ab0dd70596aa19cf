//! The suite that every store passes, the golden vectors included: on one instance, and on several that take turns, so
//! that what each has last seen is mostly out of date.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate::{Atomic, BoxFuture, Error, Operation, Outcome, Store};
use tollgate_testing::conformance::{self, Capabilities, Fixture};

use crate::{Desk, Dynamo};

const FEW: Capabilities = Capabilities { stories: 60, tasks: 64, arrears: true };
/// The second server is ten times slower.
const FEWER: Capabilities = Capabilities { stories: 10, tasks: 32, arrears: true };

#[test]
fn one_instance_conforms() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    one_instance(&runtime, &runtime.block_on(Desk::new()), FEW);
}

/// Another implementation of the service, from other hands, says the same.
#[test]
fn one_instance_conforms_on_ministack() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    one_instance(&runtime, &runtime.block_on(Desk::second()), FEWER);
}

fn one_instance(runtime: &tokio::runtime::Runtime, desk: &Desk, capabilities: Capabilities) {
    let gate = Arc::new(runtime.block_on(desk.gate()));
    let fixture = Fixture::new(gate, desk.clock.clone())
        .with_capabilities(capabilities)
        .with_bounded_refunds();
    conformance::run_all(&fixture).unwrap();
}

/// All but the random stories: in those the clock steps back by less than instances may differ, and an instance that has
/// not seen the later time decides at its own.
#[test]
fn instances_that_take_turns_conform() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let desk = runtime.block_on(Desk::new());
    let mut gates = Vec::new();
    for _ in 0..4 {
        gates.push(runtime.block_on(desk.gate()));
    }
    let gate = Arc::new(Atomic::new(Turns { gates, next: AtomicUsize::new(0) }));
    let fixture =
        Fixture::new(gate, desk.clock.clone()).with_capabilities(FEW).with_bounded_refunds();
    for (name, test) in conformance::ALL.iter().filter(|(name, _)| *name != "agrees_with_core") {
        test(&fixture).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

/// Several instances, each asked in its turn.
#[derive(Debug)]
struct Turns {
    gates: Vec<Dynamo>,
    next: AtomicUsize,
}

impl Store for Turns {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.gates.len();
        self.gates[next].store().run(operation)
    }
}
