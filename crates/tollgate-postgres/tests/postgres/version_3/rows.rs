//! Rows that the version before wrote, and rows as it would write them.

use std::sync::Arc;

use tollgate::{Clock, Gate, ManualClock, Span};
use tollgate_postgres::Postgres;
use tollgate_testing::conformance::{self, Capabilities, Fixture};

use super::{Desk, story};

const STANDINGS: &str = include_str!("standings.txt");

/// Everything in a row of version 3. When it may be cleaned up at the earliest is not compared: a function of version 3 keeps a
/// later time that a row once had.
const COLUMNS: &str = "SELECT policy, subject, shape, revision, at_us, next_stamp, states, ids, id_numbers, settled, \
                       settled_floor, closed, changed FROM tollgate.entries ORDER BY policy, subject";

/// When the story ends.
const END: u64 = 1_749_990_942;

async fn standings(gate: &impl Gate) -> String {
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
    let (desk, clock) = (Desk::of_version_3(), ManualClock::new());
    clock.set(tollgate::Timestamp::from_secs(END));
    let before = desk.psql(COLUMNS);
    let gate = desk.gate_3_by(&clock).await;
    assert_eq!(standings(&gate).await, STANDINGS);
    assert_eq!((gate.format(), desk.psql(COLUMNS)), (3, before));
    let newest = desk.gate_by(&clock).await;
    assert_eq!((newest.format(), desk.version().as_str()), (4, "4"));
    assert_eq!(standings(&newest).await, STANDINGS);
    assert_eq!(standings(&gate).await, STANDINGS);
    assert_eq!(gate.format(), 4);
}

/// The same operations at the same times write the same rows as the version before wrote.
#[tokio::test]
async fn rows_are_written_as_version_3_has_them() {
    let (desk, clock) = (Desk::empty_of_version_3(), ManualClock::new());
    let gate = desk.gate_3_by(&clock).await;
    story::tell(&gate, &clock).await;
    assert_eq!(clock.now(), tollgate::Timestamp::from_secs(END));
    let written = desk.psql(COLUMNS);
    // This version leaves one stamp free behind a reset.
    let other = Desk::of_version_3();
    other.psql("UPDATE tollgate.entries SET next_stamp = next_stamp + 1 WHERE policy = 'reset'");
    let expected = other.psql(COLUMNS);
    for (written, expected) in written.lines().zip(expected.lines()) {
        assert_eq!(written, expected);
    }
    assert_eq!(written, expected);
    assert_eq!(desk.version(), "3");
    // Rows are removed once nothing in them counts, ids included.
    clock.advance(Span::from_mins(29));
    assert_eq!(gate.clean_up(3).await.unwrap(), 0);
    clock.advance(Span::from_mins(91));
    assert_eq!(gate.clean_up(3).await.unwrap(), 14);
}

fn conforms(transaction_pooling: bool, stories: u32) {
    let (desk, clock) = (Desk::empty_of_version_3(), ManualClock::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let options = desk.options_3().decide_by(Arc::new(clock.clone()));
    let options = if transaction_pooling { options.transaction_pooling() } else { options };
    let gate = Arc::new(runtime.block_on(Postgres::open(options)).unwrap());
    let capabilities = Capabilities { stories, ..Capabilities::default() };
    let fixture = Fixture::new(Arc::clone(&gate) as Arc<dyn Gate>, clock)
        .with_capabilities(capabilities)
        .with_bounded_refunds()
        .with_exact_logs();
    conformance::run_all(&fixture).unwrap();
    assert_eq!((gate.format(), desk.version().as_str()), (3, "3"));
}

/// Every promise, every vector and random stories, as far as a row of version 3 can hold them.
#[test]
fn passes_the_suite_on_version_3() {
    conforms(false, 200);
}

#[test]
fn passes_the_suite_on_version_3_without_prepared_statements() {
    conforms(true, 40);
}
