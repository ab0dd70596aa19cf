//! The number of keys is bounded, exact after restarts, and entries that hold nothing back make room.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinSet;
use tollgate::{Ask, ErrorKind, GateExt, Limit, Policy, Span, Timestamp, TokenBucket};
use tollgate_embedded::{Embedded, IDLE_MAX};

use crate::{TestFolder, admitted, pass};

/// An entry of this policy equals an absent one again after a second.
fn brief(name: &str, subjects_max: Option<u64>) -> Policy {
    let limit = Limit::new("burst", "requests", TokenBucket::per_second(1));
    Policy::builder(name).limit(limit).subjects_max(subjects_max).build().unwrap()
}

/// An entry of this policy holds something back for years.
fn lasting(name: &str) -> Policy {
    let years = TokenBucket::per(1, Span::from_hours(10 * 365 * 24));
    Policy::new(name, [Limit::new("burst", "requests", years)]).unwrap()
}

/// Returns the message of a store without room; `None` if there was room.
async fn full(gate: &Embedded, policy: &Policy, subject: &str) -> Option<String> {
    match gate.acquire(&Ask::new(policy, subject)).await {
        Ok(_) => None,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Full, "{error}");
            Some(error.to_string())
        }
    }
}

/// Rows in the database by policy, as another program counts them.
fn counted(folder: &TestFolder) -> BTreeMap<String, u32> {
    let database = folder.database();
    let sql = "SELECT CAST(substr(key, 1, instr(key, x'00') - 1) AS TEXT), count(*) FROM entries GROUP BY 1";
    let mut rows = database.prepare(sql).unwrap();
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

/// The saved counts by policy.
fn saved(folder: &TestFolder) -> BTreeMap<String, u32> {
    let database = folder.database();
    let sql = "SELECT substr(name, 6), value FROM meta WHERE name LIKE 'keys/%'";
    let mut rows = database.prepare(sql).unwrap();
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

#[tokio::test]
async fn a_full_store_evicts_entries_that_hold_nothing_back_first() {
    let folder = TestFolder::new();
    let (brief, lasting) = (brief("brief", None), lasting("lasting"));
    let gate = folder.try_open(folder.options().keys_max(10)).unwrap();
    for number in 0..5 {
        assert!(admitted(&gate, &brief, &format!("s{number}")).await);
        assert!(admitted(&gate, &lasting, &format!("s{number}")).await);
    }
    let message = full(&gate, &lasting, "new").await.unwrap();
    assert!(message.contains("10") && message.contains("keys_max"), "{message}");
    assert!(!admitted(&gate, &lasting, "s0").await, "a known key is decided");
    // Half of the entries equal an absent one now.
    pass(&folder, Span::from_secs(1));
    for number in 5..10 {
        assert_eq!(full(&gate, &lasting, &format!("s{number}")).await, None);
    }
    assert!(full(&gate, &brief, "s0").await.is_some());
    assert_eq!(gate.stats().keys, 10);
    gate.shutdown(Timestamp::MAX).await.unwrap();
    assert_eq!(counted(&folder), BTreeMap::from([("lasting".to_owned(), 10)]));
}

#[tokio::test]
async fn a_full_policy_leaves_room_for_others() {
    let folder = TestFolder::new();
    let bounded = brief("bounded", Some(3));
    let (flood, other) = (lasting("flood"), lasting("other"));
    let gate = folder.try_open(folder.options().keys_max(20).share_per_policy()).unwrap();
    for number in 0..12 {
        let subject = format!("s{number}");
        assert_eq!(full(&gate, &flood, &subject).await.is_some(), 10 <= number, "{number}");
        assert_eq!(full(&gate, &bounded, &subject).await.is_some(), 3 <= number, "{number}");
    }
    let message = full(&gate, &bounded, "new").await.unwrap();
    assert!(message.contains("\"bounded\" has 3") && message.contains("subjects_max"), "{message}");
    assert_eq!(full(&gate, &other, "s0").await, None);
    // Only keys of the policy make room for it.
    pass(&folder, Span::from_secs(1));
    assert_eq!(full(&gate, &bounded, "new").await, None);
    assert!(full(&gate, &flood, "new").await.is_some());
}

/// The bound counts the rows of earlier processes, however they ended.
#[tokio::test]
async fn counts_are_exact_after_a_restart() {
    let folder = TestFolder::new();
    let (brief, lasting) = (brief("brief", None), lasting("lasting"));
    let open = || folder.try_open(folder.options().keys_max(40)).unwrap();
    let gate = open();
    for number in 0..20 {
        assert!(admitted(&gate, &brief, &format!("s{number}")).await);
        assert!(admitted(&gate, &lasting, &format!("s{number}")).await);
    }
    drop(gate);
    assert_eq!(saved(&folder), counted(&folder));
    let gate = open();
    assert_eq!(gate.stats().keys, 40);
    assert!(full(&gate, &lasting, "new").await.is_some());
    pass(&folder, IDLE_MAX);
    assert_eq!(gate.clean_up().await.unwrap(), 20);
    assert!(admitted(&gate, &brief, "s0").await);
    drop(gate);
    let expected = BTreeMap::from([("brief".to_owned(), 1), ("lasting".to_owned(), 20)]);
    assert_eq!((saved(&folder), counted(&folder)), (expected.clone(), expected));
    assert_eq!(open().stats().keys, 21);
}

/// A program that saves no counts leaves its commits or its clean-up cursor behind.
#[tokio::test]
async fn counts_are_taken_again_after_an_older_program() {
    let folder = TestFolder::new();
    let lasting = lasting("lasting");
    let gate = folder.open();
    for number in 0..5 {
        assert!(admitted(&gate, &lasting, &format!("s{number}")).await);
    }
    drop(gate);
    for (key, older) in [
        (b"lasting\0s0", "UPDATE meta SET value = value + 1 WHERE name = 'commits'"),
        (b"lasting\0s1", "REPLACE INTO meta (name, value) VALUES ('cleaned_up_to', x'')"),
    ] {
        let database = folder.database();
        assert_eq!(database.execute("DELETE FROM entries WHERE key = ?1", [key]).unwrap(), 1);
        database.execute(older, []).unwrap();
        drop(database);
        let before = folder.rows();
        let gate = folder.open();
        assert_eq!(gate.stats().keys, u64::from(before));
        // A commit saves the new counts.
        assert!(admitted(&gate, &lasting, older).await);
        drop(gate);
        assert_eq!(saved(&folder), counted(&folder));
    }
    assert_eq!(folder.rows(), 5);
}

/// 3,000 new keys a second, on the store's clock: faster than clean-up visits rows by time alone.
#[tokio::test]
async fn eviction_keeps_up_with_a_flood_of_new_keys() {
    const PER_SECOND: u64 = 3_000;
    let folder = TestFolder::new();
    let brief = brief("brief", None);
    let gate = Arc::new(folder.try_open(folder.options().keys_max(2 * PER_SECOND)).unwrap());
    for second in 0..6 {
        let mut callers = JoinSet::new();
        for number in 0..PER_SECOND {
            let (gate, brief) = (Arc::clone(&gate), brief.clone());
            callers
                .spawn(async move { admitted(&gate, &brief, &format!("{number}-{second}")).await });
        }
        assert!(callers.join_all().await.into_iter().all(|is_admitted| is_admitted));
        assert!(gate.stats().keys <= 2 * PER_SECOND);
        pass(&folder, Span::from_secs(1));
    }
    drop(gate);
    assert!(u64::from(folder.rows()) <= 2 * PER_SECOND);
}

/// Clean-up goes on as rows are created, whatever the clock says, even if few of the rows that it visits can go.
#[tokio::test]
async fn clean_up_keeps_up_with_creation() {
    let folder = TestFolder::new();
    let (brief, lasting) = (brief("brief", None), lasting("lasting"));
    let gate = Arc::new(folder.open());
    let mut callers = JoinSet::new();
    for number in 0..4_000 {
        let policy = if number % 4 == 0 { &brief } else { &lasting };
        let (gate, policy) = (Arc::clone(&gate), policy.clone());
        callers.spawn(async move { admitted(&gate, &policy, &format!("s{number}")).await });
    }
    assert!(callers.join_all().await.into_iter().all(|is_admitted| is_admitted));
    pass(&folder, IDLE_MAX);
    let mut created = 0;
    while gate.stats().cleaned_up < 1_000 {
        assert!(created < 10_000, "{} removed", gate.stats().cleaned_up);
        assert!(admitted(&gate, &lasting, &format!("new{created}")).await);
        created += 1;
    }
    assert_eq!(gate.stats().keys, 3_000 + created);
}
