//! Rows that the version before wrote, and rows as it would write them.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::{Clock, Gate, GateExt, Span};
use tollgate_conformance::{Capabilities, Fixture};
use tollgate_postgres::Postgres;

use super::{TestDatabase, story};

const STANDINGS: &str = include_str!("standings.txt");

/// Everything in a row of version 3. When it may be cleaned up at the earliest is not compared: a function of version 3 keeps a
/// later time that a row once had.
const COLUMNS: &str = "SELECT policy, subject, shape, revision, at_us, next_stamp, states, ids, id_numbers, settled, \
                       settled_floor, closed, changed FROM tollgate.entries ORDER BY policy, subject";

/// When the story ends.
pub(crate) const END: u64 = 1_749_990_942;

/// Policy, limit, used and remaining of every limit of the story.
pub(crate) async fn standings(gate: &impl Gate) -> String {
    let mut lines = String::new();
    for policy in story::policies() {
        for standing in gate.standing(&policy, "s").await.unwrap() {
            let (limit, used, remaining) = (&standing.name, standing.used, standing.remaining);
            lines.push_str(&format!("{} {limit} {used} {remaining}\n", policy.name()));
        }
    }
    lines
}

/// Rows of the version before mean what they meant there: left as they are, and after an upgrade.
#[tokio::test]
async fn rows_of_version_3_are_read() {
    let (database, clock) = (TestDatabase::of_version_3(), ManualClock::new());
    clock.set(tollgate::Timestamp::from_secs(END));
    let before = database.psql(COLUMNS);
    let gate = database.gate_3_by(&clock).await;
    assert_eq!(standings(&gate).await, STANDINGS);
    assert_eq!((gate.format(), database.psql(COLUMNS)), (3, before));
    let newest = database.gate_by(&clock).await;
    assert_eq!((newest.format(), database.version().as_str()), (4, "4"));
    assert_eq!(standings(&newest).await, STANDINGS);
    assert_eq!(standings(&gate).await, STANDINGS);
    assert_eq!(gate.format(), 4);
}

/// The same operations at the same times write the same rows as the version before wrote.
#[tokio::test]
async fn rows_are_written_as_version_3_has_them() {
    let (database, clock) = (TestDatabase::empty_of_version_3(), ManualClock::new());
    let gate = database.gate_3_by(&clock).await;
    story::tell(&gate, &clock).await;
    assert_eq!(clock.now(), tollgate::Timestamp::from_secs(END));
    let written = database.psql(COLUMNS);
    // This version leaves one stamp free behind a reset.
    let other = TestDatabase::of_version_3();
    other.psql("UPDATE tollgate.entries SET next_stamp = next_stamp + 1 WHERE policy = 'reset'");
    let expected = other.psql(COLUMNS);
    for (written, expected) in written.lines().zip(expected.lines()) {
        assert_eq!(written, expected);
    }
    assert_eq!(written, expected);
    assert_eq!(database.version(), "3");
    // Rows are removed once nothing in them counts, ids included.
    clock.advance(Span::from_mins(29));
    assert_eq!(gate.clean_up(3).await.unwrap(), 0);
    clock.advance(Span::from_mins(91));
    assert_eq!(gate.clean_up(3).await.unwrap(), 14);
}

fn fixture(transaction_pooling: bool, stories: u32) -> Fixture {
    let (database, clock) = (TestDatabase::empty_of_version_3(), ManualClock::new());
    let options = database.options_3().test_clock(Arc::new(clock.clone()));
    let options = if transaction_pooling { options.transaction_pooling() } else { options };
    let open = async {
        let gate = Postgres::open(options).await.unwrap();
        assert_eq!((gate.format(), database.version().as_str()), (3, "3"));
        Arc::new(gate) as Arc<dyn Gate>
    };
    Fixture::open(clock, open)
        .with_capabilities(Capabilities { stories, ..Capabilities::default() })
        .with_bounded_refunds()
        .with_exact_logs()
        .holding(database)
}

// As far as a row of version 3 can hold the cases.
tollgate_conformance::suite! {
    fn prepared_statements() -> Fixture {
        fixture(false, 200)
    }

    fn transaction_pooling() -> Fixture {
        fixture(true, 40)
    }
}
