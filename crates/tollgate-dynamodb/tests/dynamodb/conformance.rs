//! The conformance suite on one instance, and on several that take turns, so that what each has last seen is mostly out of
//! date.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate::clock::ManualClock;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Error, Gate};
use tollgate_conformance::{Capabilities, Fixture};
use tollgate_dynamodb::create_table;
use tollgate_testkit::servers::{Ministack, unique_name};

use crate::{Dynamo, TestTable, connect, options_for};

const FEW: Capabilities = Capabilities { stories: 60, tasks: 64, arrears: true, joint: true };
/// The second server is ten times slower.
const FEWER: Capabilities = Capabilities { stories: 10, tasks: 32, arrears: true, joint: true };

tollgate_conformance::suite! {
    fn one_instance() -> Fixture {
        let table = block_on(TestTable::new());
        let open = async { Arc::new(table.gate().await) as Arc<dyn Gate> };
        let fixture = Fixture::open(table.clock.clone(), open);
        fixture.with_capabilities(FEW).with_bounded_refunds().holding(table)
    }

    /// Another implementation of the service. It takes seconds to start, so the tests share one, with a table each.
    fn on_ministack() -> Fixture {
        let clock = ManualClock::new();
        let endpoint = Ministack::shared().unwrap();
        let options = options_for(&unique_name(), &endpoint, Arc::new(clock.clone()));
        let options = options.skew_max(None);
        let open = async {
            assert!(create_table(options.clone()).await.unwrap());
            Arc::new(connect(options).await) as Arc<dyn Gate>
        };
        Fixture::open(clock, open).with_capabilities(FEWER).with_bounded_refunds()
    }

    /// Without random scripts: in those the clock steps back by less than instances may differ, and an instance that has
    /// not seen the later time decides at its own.
    fn instances_that_take_turns() -> Fixture {
        let table = block_on(TestTable::new());
        let open = async {
            let mut gates = Vec::new();
            for _ in 0..4 {
                gates.push(table.gate().await);
            }
            Arc::new(Turns { gates, next: AtomicUsize::new(0) }) as Arc<dyn Gate>
        };
        let fixture = Fixture::open(table.clock.clone(), open);
        let capabilities = Capabilities { stories: 0, ..FEW };
        fixture.with_capabilities(capabilities).with_bounded_refunds().holding(table)
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new().unwrap().block_on(future)
}

/// Several instances, each asked in its turn.
#[derive(Debug)]
struct Turns {
    gates: Vec<Dynamo>,
    next: AtomicUsize,
}

impl Gate for Turns {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.gates.len();
        self.gates[next].run(operation)
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
