//! Data folders of each format, as a program of that format left them: `entries.sql` is a dump of `entries.sqlite`.

use tollgate::clock::ManualClock;
use tollgate::policy::{Period, Rule};
use tollgate::{
    Ask, CalendarWindow, Clock, Concurrency, Costs, Gate, GateExt, Limit, Permit, Policy,
    RollingWindow, Span, Timestamp, TokenBucket,
};

use super::TestFolder;

type Files = [(&'static str, &'static str); 3];

macro_rules! files {
    ($format:literal) => {
        [
            ("entries.sql", include_str!(concat!("formats/", $format, "/entries.sql"))),
            ("format", include_str!(concat!("formats/", $format, "/format"))),
            ("commits", include_str!(concat!("formats/", $format, "/commits"))),
        ]
    };
}

const FORMAT_1: Files = files!("1");
const FORMAT_2: Files = files!("2");

/// 2025-06-15T12:34:56Z.
const START: Timestamp = Timestamp::from_secs(1_749_990_896);

fn one(name: &str, rule: impl Into<Rule>) -> Policy {
    Policy::new(name, [Limit::new("only", "requests", rule)]).unwrap()
}

fn policies() -> [Policy; 6] {
    let minute = Span::from_mins(1);
    let bucket = || TokenBucket::per_second(10).burst(100);
    [
        one("bucket", bucket()),
        one("window", RollingWindow::new(100, minute).resolution(6)),
        one("calendar", CalendarWindow::new(100, Period::Day).in_zone("America/Los_Angeles")),
        one("slots", Concurrency::new(3, minute)),
        one("closed", bucket()),
        one("reset", TokenBucket::per_minute(10).burst(100)),
    ]
}

/// What the programs did to the subject `s` of each policy. Returns the first permits.
async fn play(gate: &impl Gate, clock: &ManualClock) -> Vec<Permit> {
    clock.set(START);
    let policies = policies();
    let mut permits = Vec::new();
    for policy in &policies {
        let ask = Ask::new(policy, "s").cost("requests", 2).id("order-7");
        permits.push(gate.acquire(&ask).await.unwrap().into_permit().unwrap());
    }
    clock.advance(Span::from_secs(1));
    for policy in &policies[..3] {
        let ask = Ask::new(policy, "s").cost("requests", 20);
        let permit = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
        assert!(gate.settle(&permit, &Costs::new().with("requests", 5)).await.unwrap());
    }
    let until = clock.now() + Span::from_mins(30);
    assert!(gate.close_until(&Ask::new(&policies[4], "s"), "only", until).await.unwrap());
    assert!(gate.reset(&policies[5], "s").await.unwrap());
    permits
}

/// A folder with `files`, and with the database of the dump.
fn unpack(files: Files) -> TestFolder {
    let folder = TestFolder::new();
    std::fs::create_dir(folder.path()).unwrap();
    for (name, text) in files {
        if name == "entries.sql" {
            folder.database().execute_batch(text).unwrap();
        } else {
            std::fs::write(folder.file(name), text).unwrap();
        }
    }
    folder
}

async fn standings(gate: &impl Gate) -> Vec<(u64, u64)> {
    let mut standings = Vec::new();
    for policy in policies() {
        let limits = gate.standing(&policy, "s").await.unwrap();
        standings.push((limits[0].used, limits[0].remaining));
    }
    standings
}

/// The rows of a table with three columns, the first two in hexadecimal digits.
fn rows(folder: &TestFolder, table: &str, last: &str) -> Vec<(String, String, i64)> {
    let database = folder.database();
    let sql = format!("SELECT hex(key), hex(value), {last} FROM {table} ORDER BY key");
    let mut statement = database.prepare(&sql).unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

/// What was used is used, permits from before are settled, and the folder is of the newest format from then on.
#[tokio::test]
async fn folders_of_each_format_are_read() {
    let (fresh, policies) = (TestFolder::new(), policies());
    let permits = play(&fresh.open(), &fresh.clock).await;
    let expected = [(5, 95), (7, 93), (7, 93), (2, 1), (0, 0), (0, 100)];
    for (format, files) in [(1, FORMAT_1), (2, FORMAT_2)] {
        let folder = unpack(files);
        folder.clock.set(fresh.clock.now());
        let gate = folder.open();
        assert_eq!(standings(&gate).await, expected, "format {format}");
        let closed = Ask::new(&policies[4], "s");
        assert!(!gate.acquire(&closed).await.unwrap().is_admitted(), "format {format}");
        let again = Ask::new(&policies[3], "s").cost("requests", 2).id("order-7");
        let again = gate.acquire(&again).await.unwrap().into_permit();
        // The ids in entries of format 1 are not read, so a repeat is decided anew, and the slots are in use.
        let known = (format == 2).then(|| *permits[3].grant());
        assert_eq!(again.map(|permit| *permit.grant()), known, "format {format}");
        for settles in [true, false] {
            assert_eq!(gate.release(&permits[3]).await.unwrap(), settles, "format {format}");
        }
        assert_eq!(standings(&gate).await[3], (0, 3), "format {format}");
        let ask = Ask::new(&policies[3], "s").id("order-8");
        for _ in 0..2 {
            assert!(gate.acquire(&ask).await.unwrap().is_admitted(), "format {format}");
        }
        assert_eq!(standings(&gate).await[3], (1, 2), "format {format}");
        gate.shutdown(Timestamp::MAX).await.unwrap();
        let version = "SELECT user_version FROM pragma_user_version";
        let version: u32 = folder.database().query_row(version, [], |row| row.get(0)).unwrap();
        assert_eq!(version, 2);
    }
}

/// Nothing writes format 1 any more: a folder belongs to one process, which brings it to format 2.
#[tokio::test]
async fn format_2_is_written_as_its_programs_write_it() {
    let (written, stored) = (TestFolder::new(), unpack(FORMAT_2));
    let gate = written.open();
    play(&gate, &written.clock).await;
    gate.shutdown(Timestamp::MAX).await.unwrap();
    for (table, last) in [("entries", "written_at"), ("ids", "expires_at")] {
        assert_eq!(rows(&written, table, last), rows(&stored, table, last), "{table}");
    }
    assert_eq!(std::fs::read_to_string(written.file("format")).unwrap(), FORMAT_2[1].1);
}
