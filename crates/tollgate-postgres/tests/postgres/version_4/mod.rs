//! A schema of version 4, as this version installs it and writes to it.
//!
//! `rows.sql` is a dump (`pg_dump --inserts`) of a database to which this version told the [story] of version 3, and
//! `standings.txt` is what it said of it in the end: policy, limit, used, remaining.

use tollgate::audit::{AuditLog, Query};
use tollgate::clock::ManualClock;
use tollgate::core::{ChargeRecord, Grant};
use tollgate::overrides::OverrideStore;
use tollgate::{Ask, GateExt, Permit, Policy, Timestamp};
use tollgate_postgres::{Postgres, PostgresAudit};

use super::TestDatabase;
use super::version_3::rows::{END, standings};
use super::version_3::story;

const ROWS: &str = include_str!("rows.sql");

const STANDINGS: &str = include_str!("standings.txt");

/// Everything that belongs to entries. Rows are compared whole, so a column that is added is compared, too.
const CONTENTS: [&str; 3] = [
    "SELECT * FROM tollgate.entries ORDER BY policy, subject",
    "SELECT * FROM tollgate.settled ORDER BY policy, subject, first",
    "SELECT * FROM tollgate.ids ORDER BY policy, subject, id",
];

impl TestDatabase {
    /// A database of version 4 with the rows of the story.
    fn of_version_4() -> Self {
        let database = Self::new();
        database.psql(ROWS);
        database
    }

    fn contents(&self) -> [String; 3] {
        CONTENTS.map(|sql| self.psql(sql))
    }

    /// A gate for each setting of `format`. Both write version 4, because the schema is of that version.
    async fn gates(&self, clock: &ManualClock) -> [Postgres; 2] {
        let gates = [self.gate_3_by(clock).await, self.gate_by(clock).await];
        assert_eq!(gates.each_ref().map(Postgres::format), [4, 4]);
        gates
    }
}

fn policy(name: &str) -> Policy {
    story::policies().into_iter().find(|policy| policy.name() == name).unwrap()
}

/// The permit that the story got for `cost` requests at `at`, with the stamp `stamp`; both in microseconds.
fn permit(policy: &Policy, cost: u64, at: u64, stamp: u64) -> Permit {
    let ask = Ask::new(policy, "s").cost("requests", cost);
    let charge = ChargeRecord { at: Timestamp::from_micros(at), stamp };
    Permit::new(policy, "s", *ask.amounts(), Grant::new(charge, policy, ask.amounts()))
}

/// Rows mean what they meant when they were written, whatever `format` says, and reading changes none of them.
#[tokio::test]
async fn rows_of_version_4_are_read() {
    let (database, clock) = (TestDatabase::of_version_4(), ManualClock::new());
    clock.set(Timestamp::from_secs(END));
    let before = database.contents();
    for gate in database.gates(&clock).await {
        assert_eq!(standings(&gate).await, STANDINGS);
        assert_eq!(gate.permit_key().await.unwrap(), [7; 32]);
        let document = gate.read(0).await.unwrap().unwrap();
        assert_eq!((document.version, &*document.text), (1, "{}"));
    }
    assert_eq!((database.contents(), database.version().as_str()), (before, "4"));
    for options in [database.options_3(), database.options()] {
        let audit = PostgresAudit::open(options).await.unwrap();
        let found = audit.find(&Query::default()).await.unwrap().records;
        let seen: Vec<_> =
            found.iter().map(|record| (&*record.subject, record.by.as_deref())).collect();
        assert_eq!(seen, [("c", Some("ops")), ("a\0b", None)]);
    }
}

/// Ids that are stored are recognised, permits that were settled stay settled, and those that were not are settled once, with
/// the refund they are due.
#[tokio::test]
async fn rows_of_version_4_are_changed() {
    for place in [0, 1] {
        let (database, clock) = (TestDatabase::of_version_4(), ManualClock::new());
        clock.set(Timestamp::from_secs(END));
        let gate = &database.gates(&clock).await[place];
        let used = async |policy: &Policy| super::used(gate, policy, "s").await;

        let ids = policy("ids");
        let before = used(&ids).await;
        for (id, cost) in [("one", 1), ("back\\slash\0", 3)] {
            let ask = Ask::new(&ids, "s").cost("requests", cost).id(id);
            assert!(gate.acquire(&ask).await.unwrap().is_admitted());
            assert_eq!(used(&ids).await, before, "{id:?} was charged again");
        }
        // Released, so forgotten.
        assert!(gate.acquire(&Ask::new(&ids, "s").id("two")).await.unwrap().is_admitted());
        assert_eq!(used(&ids).await, before + 1);

        // Admitted one second apart; the second to the fourth and the last two were settled.
        let settled = policy("settled");
        let first = 1_749_990_907_000_000;
        let nth = |n: u64| permit(&settled, 4, first + n * 1_000_000, first + n);
        let before = used(&settled).await;
        for number in [1, 2, 3, 5, 6] {
            assert!(!gate.release(&nth(number)).await.unwrap(), "{number}");
        }
        assert_eq!(used(&settled).await, before);
        assert!(gate.release(&nth(4)).await.unwrap());
        assert!(!gate.release(&nth(4)).await.unwrap());
        assert_eq!(used(&settled).await, before - 4);

        let closed = gate.acquire(&Ask::new(&policy("closed"), "s")).await.unwrap();
        assert!(!closed.is_admitted());
        let slots = policy("slots");
        let free = gate.acquire(&Ask::new(&slots, "s").cost("requests", 2)).await.unwrap();
        assert!(free.is_admitted());
        assert!(!gate.acquire(&Ask::new(&slots, "s")).await.unwrap().is_admitted());
    }
}

/// The same operations at the same times write the same rows, in tables of the fixture and in tables that are installed now.
#[tokio::test]
async fn rows_are_written_as_version_4_has_them() {
    let expected = TestDatabase::of_version_4().contents();
    let stored = TestDatabase::of_version_4();
    let installed = TestDatabase::new();
    installed.gate().await;
    for (database, place) in [(&stored, 1), (&installed, 0), (&installed, 1)] {
        for table in ["entries", "settled", "ids"] {
            database.psql(&format!("DELETE FROM tollgate.{table}"));
        }
        let clock = ManualClock::new();
        story::tell(&database.gates(&clock).await[place], &clock).await;
        for (written, expected) in database.contents().iter().zip(&expected) {
            for (written, expected) in written.lines().zip(expected.lines()) {
                assert_eq!(written, expected);
            }
            assert_eq!(written, expected);
        }
    }
}
