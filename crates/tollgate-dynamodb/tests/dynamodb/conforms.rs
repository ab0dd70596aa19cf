//! The suite that every store passes, the golden vectors included: on one instance, and on several that take turns, so
//! that what each has last seen is mostly out of date.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate::{Ask, BoxFuture, Costs, Decision, Error, Gate, Permit, Policy, Standing, Timestamp};
use tollgate_dynamodb::DynamoDb;
use tollgate_testing::conformance::{self, Capabilities, Fixture};

use crate::Desk;

const FEW: Capabilities = Capabilities { stories: 60, tasks: 64 };
/// The second server is ten times slower.
const FEWER: Capabilities = Capabilities { stories: 10, tasks: 32 };

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
    let fixture = Fixture::new(gate, desk.clock.clone()).with_capabilities(capabilities);
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
    let gate = Arc::new(Turns { gates, next: AtomicUsize::new(0) });
    let fixture = Fixture::new(gate, desk.clock.clone()).with_capabilities(FEW);
    for (name, test) in conformance::ALL.iter().filter(|(name, _)| *name != "agrees_with_core") {
        test(&fixture).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

/// Several instances, each asked in its turn.
#[derive(Debug)]
struct Turns {
    gates: Vec<DynamoDb>,
    next: AtomicUsize,
}

impl Turns {
    fn next(&self) -> &DynamoDb {
        &self.gates[self.next.fetch_add(1, Ordering::Relaxed) % self.gates.len()]
    }
}

impl Gate for Turns {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        self.next().acquire(ask)
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.next().settle(permit, actual)
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        self.next().release(permit)
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        self.next().renew(permit)
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        self.next().charge(ask)
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.next().close_until(ask, limit, until)
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        self.next().standing(policy, subject)
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.next().reset(policy, subject)
    }
}
