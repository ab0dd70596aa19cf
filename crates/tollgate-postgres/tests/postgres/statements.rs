//! What a call costs the server: statements, and bytes of its log.

use tollgate::clock::ManualClock;
use tollgate::policy::{Period, Rule};
use tollgate::{
    Ask, CalendarWindow, Concurrency, Costs, GateExt, Limit, Policy, RollingWindow, Span,
    TokenBucket,
};
use tollgate_postgres::CLEAN_UP_EVERY;

use super::{TestDatabase, acquire, gemini, hourly};

/// How far the log of the server has been written, in bytes.
pub(crate) fn log_position(database: &TestDatabase) -> u64 {
    database.psql("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").parse().unwrap()
}

/// Counts calls from here on.
pub(crate) fn count_calls(database: &TestDatabase) {
    database.psql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements");
    database.psql("SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)");
}

/// How often each function was called since then.
pub(crate) fn calls(database: &TestDatabase) -> String {
    database.psql(
        "SELECT string_agg(substring(query FROM '\"tollgate\"\\.(\\w+)') || '=' || calls, ' ' ORDER BY substring(query FROM '\"tollgate\"\\.(\\w+)')) \
         FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid \
         WHERE d.datname = current_database() AND query LIKE 'SELECT %\"tollgate\".%($1%'",
    )
}

/// Promise 3, seen from the disk: a refusal writes no byte of the server's log. Another database may write meanwhile
/// (a checkpoint), so three quiet attempts are allowed.
#[tokio::test]
async fn a_refusal_writes_nothing() {
    let (database, policy) = (TestDatabase::alone(), hourly(1));
    let gate = database.gate().await;
    assert!(acquire(&gate, &policy, "full").await.is_admitted());
    let ask = Ask::new(&policy, "full").id("again");
    let mut written = Vec::new();
    for _ in 0..3 {
        let before = log_position(&database);
        for _ in 0..50 {
            assert!(!acquire(&gate, &policy, "full").await.is_admitted());
            assert!(!gate.acquire(&ask).await.unwrap().is_admitted());
        }
        written.push(log_position(&database) - before);
    }
    assert!(written.contains(&0), "100 refusals wrote {written:?} bytes");
}

/// One statement for each decision: those that create the row, those that are refused, and those that are repeated.
#[tokio::test]
async fn a_decision_is_one_statement() {
    let (database, clock, policy) = (TestDatabase::new(), ManualClock::new(), gemini());
    let gate = database.gate_by(&clock).await;
    count_calls(&database);
    let ask = Ask::new(&policy, "counted").cost("tokens", 1_000).id("one");
    let permit = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    gate.acquire(&ask).await.unwrap();
    for _ in 0..8 {
        acquire(&gate, &policy, "counted").await;
    }
    assert_eq!(calls(&database), "spend=10");
    clock.advance(Span::from_secs(1));
    assert!(gate.settle(&permit, &Costs::new().with("tokens", 10)).await.unwrap());
    assert!(!gate.settle(&permit, &Costs::new().with("tokens", 10)).await.unwrap());
    gate.charge(&Ask::new(&policy, "counted")).await.unwrap();
    gate.standing(&policy, "counted").await.unwrap();
    assert_eq!(calls(&database), "look=1 settle=2 spend=11");
    let jobs =
        Policy::new("jobs", [Limit::new("slots", "jobs", Concurrency::new(2, Span::from_mins(1)))])
            .unwrap();
    let slot =
        gate.acquire(&Ask::new(&jobs, "j").cost("jobs", 1)).await.unwrap().into_permit().unwrap();
    clock.advance(Span::from_secs(30));
    let renewed = gate.renew(&slot).await.unwrap();
    assert_eq!(renewed.expires_at(), slot.expires_at().map(|at| at + Span::from_secs(30)));
    assert!(gate.release(&renewed).await.unwrap());
    assert_eq!(calls(&database), "look=1 renew_slots=1 settle=3 spend=12");
}

/// So are a charge and its repeat, closing a limit, and forgetting a subject: where there is a row, where there is none,
/// and where there is nothing to do.
#[tokio::test]
async fn whatever_is_done_by_hand_is_one_statement() {
    let (database, clock, policy) = (TestDatabase::new(), ManualClock::new(), gemini());
    let gate = database.gate_by(&clock).await;
    count_calls(&database);
    let ask = Ask::new(&policy, "s").cost("tokens", 1_000).id("one");
    let charged = gate.charge(&ask).await.unwrap();
    assert_eq!(gate.charge(&ask).await.unwrap().grant(), charged.grant());
    assert_eq!(calls(&database), "spend=2");
    let until = |minutes| charged.grant().at + Span::from_mins(minutes);
    for (subject, minutes, does) in
        [("s", 5, true), ("s", 4, false), ("s", 6, true), ("new", 5, true), ("new", 0, false)]
    {
        let ask = Ask::new(&policy, subject);
        assert_eq!(gate.close_until(&ask, "tpm", until(minutes)).await.unwrap(), does);
    }
    assert_eq!(calls(&database), "close_limit=5 spend=2");
    for subject in ["s", "new"] {
        let ask = Ask::new(&policy, subject).cost("tokens", 1);
        let denial = gate.acquire(&ask).await.unwrap().into_denial().unwrap();
        let minutes = if subject == "s" { 6 } else { 5 };
        assert_eq!(denial.reset_at(), Some(until(minutes)));
    }
    for (subject, does) in [("s", true), ("s", false), ("new", true), ("never", false)] {
        assert_eq!(gate.reset(&policy, subject).await.unwrap(), does, "{subject}");
    }
    assert_eq!(calls(&database), "close_limit=5 forget=4 spend=4");
    // What was forgotten is not given back.
    assert!(!gate.release(&charged).await.unwrap());
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    assert_eq!(super::used(&gate, &policy, "s").await, 1);
}

/// No rule needs a second statement: what the functions decide, the core agrees with.
#[tokio::test]
async fn every_rule_is_decided_in_one_statement() {
    let (database, clock, minute) = (TestDatabase::new(), ManualClock::new(), Span::from_mins(1));
    let gate = database.gate_by(&clock).await;
    let day = CalendarWindow::new(3, Period::Day).in_zone("America/Los_Angeles");
    let rules: [Rule; 6] = [
        TokenBucket::per_minute(3).into(),
        TokenBucket::per_minute(3).at_boundaries().into(),
        RollingWindow::new(3, minute).into(),
        RollingWindow::new(3, minute).resolution(6).into(),
        day.into(),
        Concurrency::new(3, minute).into(),
    ];
    for (number, rule) in rules.into_iter().enumerate() {
        count_calls(&database);
        let policy =
            Policy::new(format!("rule-{number}"), [Limit::new("only", "requests", rule)]).unwrap();
        let mut permits = Vec::new();
        // Over several refills, windows and pages.
        for _ in 0..12 {
            permits.extend(acquire(&gate, &policy, "each").await.into_permit());
            clock.advance(Span::from_secs(9));
        }
        clock.advance(Span::from_hours(24));
        permits.extend(acquire(&gate, &policy, "each").await.into_permit());
        assert!(gate.release(permits.last().unwrap()).await.unwrap());
        gate.charge(&Ask::new(&policy, "each")).await.unwrap();
        assert_eq!(calls(&database), "settle=1 spend=14", "rule {number}");
    }
}

/// Rows that say what an absent one says are removed in batches; those that hold something, or are held, stay.
#[tokio::test]
async fn cleaning_up_removes_what_is_over() {
    let (database, clock) = (TestDatabase::new(), ManualClock::new());
    let (gate, policy) = (database.gate_by(&clock).await, hourly(3));
    for number in 0..25 {
        acquire(&gate, &policy, &format!("old-{number}")).await;
    }
    clock.advance(Span::from_mins(30));
    acquire(&gate, &policy, "young").await;
    clock.advance(Span::from_mins(30));
    assert_eq!(gate.clean_up(10).await.unwrap(), 25);
    assert_eq!(database.psql("SELECT string_agg(subject, ',') FROM tollgate.entries"), "young");
    assert_eq!(super::used(&gate, &policy, "young").await, 1);
    clock.advance(Span::from_mins(30));
    assert_eq!(gate.clean_up(10).await.unwrap(), 1);
}

/// A broker does so now and then, until it ends.
#[tokio::test]
async fn a_broker_keeps_the_table_clean() {
    let (database, clock) = (TestDatabase::new(), ManualClock::new());
    let gate = std::sync::Arc::new(database.gate_by(&clock).await);
    for number in 0..3 {
        acquire(&gate, &hourly(3), &format!("old-{number}")).await;
    }
    let rows = || database.psql("SELECT count(*) FROM tollgate.entries");
    let chore = tokio::spawn({
        let gate = std::sync::Arc::clone(&gate);
        async move { gate.keep_clean(CLEAN_UP_EVERY).await }
    });
    let mut looks = 0;
    while rows() != "0" {
        looks += 1;
        assert!(looks < 1_000, "nothing was removed");
        clock.advance(CLEAN_UP_EVERY);
        tokio::task::yield_now().await;
    }
    assert!(6 <= looks, "rows that say something were removed");
    chore.abort();
    assert!(chore.await.unwrap_err().is_cancelled());
}
