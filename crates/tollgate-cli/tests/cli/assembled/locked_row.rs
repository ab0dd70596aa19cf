//! A row of PostgreSQL, or the table, is locked by another transaction.

use tollgate_testkit::servers::{Postgres, eventually};

use super::{Assembled, lines, only};

/// How long the row is locked, in seconds.
const LOCKED: u32 = 5;

/// Its asks fail as contended; every other subject is served by the store, and every limit holds.
#[test]
fn a_locked_row_is_the_trouble_of_its_subject_alone() {
    let postgres = Postgres::start().expect("a server");
    let store = format!("{}attempt_timeout = \"2s\"\n", postgres.snippet());
    let assembled = Assembled::start(&store);
    assert_eq!(assembled.ask("open", "hot").0, 200);
    let lock = format!(
        "BEGIN; SELECT 1 FROM tollgate.entries WHERE subject = 'hot' FOR UPDATE; SELECT pg_sleep({LOCKED}); COMMIT"
    );
    std::thread::scope(|scope| {
        let locking = scope.spawn(|| postgres.psql("postgres", &lock));
        let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        eventually(|| (postgres.psql("postgres", sleeps).ok()? == "1").then_some(()))
            .expect("the row is locked");
        let (hot, others) = assembled.crowd(20, || {
            for subject in ["one", "two", "three"] {
                assembled.admits_five(subject);
                let (status, answer) = assembled.ready();
                assert_eq!(status, 200, "{answer}");
            }
        });
        assert!(!locking.is_finished(), "others had to wait until the row was free");
        assert!(only(&others, &[(200, "")]), "{others:?}");
        assert!(only(&hot, &[(503, "contended")]), "{hot:?}");
        let body = assembled.is_contended();
        assert!(body["detail"].to_string().contains("holds the row"), "{body}");
        locking.join().expect("no panic").expect("psql runs");
    });
    let served = || (assembled.ask("open", "hot").0 == 200).then_some(());
    eventually(served).expect("the row is free again");
    let log = assembled.log();
    assert!(!log.contains("RateLimiterFallbackActivated"), "{log}");
    assert_eq!(lines(&log, "ERROR"), 0, "{log}");
    assert!(log.contains("could not answer") && log.contains("contended"), "{log}");
    assert!((1..=3).contains(&lines(&log, "WARN")), "{log}");
}

/// A lock on the whole table is an outage of the store, not contention on each subject.
#[test]
fn a_locked_table_is_an_outage() {
    let postgres = Postgres::start().expect("a server");
    let assembled = Assembled::start(&postgres.snippet());
    assert_eq!(assembled.ask("open", "alice").0, 200);
    let lock = format!(
        "BEGIN; LOCK TABLE tollgate.entries IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep({LOCKED}); COMMIT"
    );
    std::thread::scope(|scope| {
        let locking = scope.spawn(|| postgres.psql("postgres", &lock));
        let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        eventually(|| (postgres.psql("postgres", sleeps).ok()? == "1").then_some(()))
            .expect("the table is locked");
        let degraded = || (assembled.ask("open", "alice").1["degraded"] == true).then_some(());
        eventually(degraded).expect("on_store_failure applies");
        let (status, body) = assembled.ask("closed", "bob");
        assert_eq!((status, &body["kind"]), (503, &"unavailable".into()), "{body}");
        assert!(!locking.is_finished(), "it was noticed too late");
        locking.join().expect("no panic").expect("psql runs");
    });
    let served = || (assembled.ask("closed", "bob").0 == 200).then_some(());
    eventually(served).expect("the table is free again");
    let log = assembled.log();
    assert!(log.contains("RateLimiterFallbackActivated"), "{log}");
}
