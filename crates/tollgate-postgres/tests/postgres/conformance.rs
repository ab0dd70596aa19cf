//! The conformance suite on a real server.

use std::sync::Arc;

use tollgate::Gate;
use tollgate::clock::ManualClock;
use tollgate_conformance::{Capabilities, Fixture};
use tollgate_postgres::{Options, Postgres};

use super::TestDatabase;

fn fixture(options: impl Fn(Options) -> Options, stories: u32) -> Fixture {
    let (database, clock) = (TestDatabase::new(), ManualClock::new());
    let options = options(database.options()).test_clock(Arc::new(clock.clone()));
    let open = async { Arc::new(Postgres::open(options).await.unwrap()) as Arc<dyn Gate> };
    let capabilities = Capabilities { stories, joint: true, ..Capabilities::default() };
    Fixture::open(clock, open).with_capabilities(capabilities).holding(database)
}

tollgate_conformance::suite! {
    fn prepared_statements() -> Fixture {
        fixture(|options| options, 200)
    }

    /// As behind a pooler in transaction mode, in another schema.
    fn transaction_pooling() -> Fixture {
        fixture(|options| options.transaction_pooling().schema("my \"quotas\""), 40)
    }
}
