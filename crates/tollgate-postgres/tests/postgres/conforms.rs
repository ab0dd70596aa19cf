//! The suite that every store passes, and the golden vectors with it.

use std::sync::Arc;

use tollgate::{Gate, ManualClock};
use tollgate_postgres::{Options, Postgres};
use tollgate_testing::conformance::{self, Capabilities, Fixture};

use super::Desk;

fn conforms(options: impl Fn(Options) -> Options, stories: u32) {
    let (desk, clock) = (Desk::new(), ManualClock::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let options = options(desk.options()).decide_by(Arc::new(clock.clone()));
    let gate = Arc::new(runtime.block_on(Postgres::open(options)).unwrap());
    let capabilities = Capabilities { stories, ..Capabilities::default() };
    let fixture = Fixture::new(Arc::clone(&gate) as Arc<dyn Gate>, clock);
    conformance::run_all(&fixture.with_capabilities(capabilities)).unwrap();
}

/// Every promise, every vector and random stories, on a real server.
#[test]
fn passes_the_whole_suite() {
    conforms(|options| options, 200);
}

/// The same where statements are not prepared, as behind a pooler in transaction mode, in another schema.
#[test]
fn passes_the_whole_suite_without_prepared_statements() {
    conforms(|options| options.transaction_pooling().schema("my \"quotas\""), 40);
}
