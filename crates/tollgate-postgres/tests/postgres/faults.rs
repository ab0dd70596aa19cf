//! Locks that are held, connections that are cut, servers that stop.

use tollgate::clock::ManualClock;
use tollgate::{Ask, Clock, ErrorKind, GateExt, Span};
use tollgate_postgres::Postgres;

use super::{TestDatabase, acquire, gemini, hourly, used};

/// A row that a forgotten transaction holds makes callers wait at most `lock_timeout`, and then Contended: no ask is
/// admitted on an error, refusals need no lock and go on, and other subjects do not notice.
#[tokio::test]
async fn a_held_row_is_contended_and_refusals_go_on() {
    let (database, policy) = (TestDatabase::new(), hourly(2));
    let options = database.options().lock_timeout(Span::from_millis(50));
    let gate = Postgres::open(options).await.unwrap();
    for subject in ["held", "full", "full"] {
        assert!(acquire(&gate, &policy, subject).await.is_admitted());
    }
    let (holder, driver) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    let driver = tokio::spawn(driver);
    holder.batch_execute("BEGIN; SELECT FROM tollgate.entries FOR UPDATE").await.unwrap();
    let error = gate.acquire(&Ask::new(&policy, "held")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
    assert!(error.to_string().contains("lock_timeout"), "{error}");
    assert!(!acquire(&gate, &policy, "full").await.is_admitted());
    assert!(acquire(&gate, &policy, "other").await.is_admitted());
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert!(acquire(&gate, &policy, "held").await.is_admitted());
    assert_eq!(used(&gate, &policy, "held").await, 2);
    drop(holder);
    driver.await.unwrap().unwrap();
}

/// A killed backend is an error at most, never a lost or a double charge, and the gate opens another connection.
#[tokio::test]
async fn killed_backends_are_replaced() {
    let (database, policy) = (TestDatabase::new(), hourly(50));
    let gate = database.gate().await;
    let mut answered = 0;
    for number in 0..20 {
        let id = format!("ask-{number}");
        let ask = Ask::new(&policy, "cut").id(id.as_str());
        if number % 5 == 0 {
            database.psql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'tollgate' AND datname = current_database()");
        }
        // The first try may find its connection dead; the second opens a new one.
        let mut tries = 0;
        while let Err(error) = gate.acquire(&ask).await {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            tries += 1;
            assert!(tries < 5, "{error}");
        }
        answered += 1;
    }
    assert_eq!(used(&gate, &policy, "cut").await, answered);
}

/// Sessions stay read-only after the setting was reset, so the gate does not keep them, nor the idle ones beside them.
#[tokio::test]
async fn a_read_only_session_is_not_kept() {
    let (database, policy) = (TestDatabase::new(), hourly(50));
    let gate = database.gate().await;
    let admin = |sql: &str| drop(database.server.psql("postgres", sql).unwrap());
    let set = |what: &str| admin(&format!("ALTER DATABASE {} {what}", database.name));
    set("SET default_transaction_read_only = on");
    admin(&format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{}'",
        database.name
    ));
    // Reads open several sessions, which are idle when the write is refused.
    let read = || gate.standing(&policy, "p");
    let _ = tokio::join!(read(), read(), read(), read());
    let refused = async || loop {
        let error = gate.acquire(&Ask::new(&policy, "p")).await.unwrap_err();
        // The first try may find its connection dead.
        if !error.to_string().contains("closed the connection") {
            return error;
        }
    };
    let error = refused().await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let text = error.to_string();
    assert!(text.contains("standby") && text.contains("default_transaction_read_only"), "{text}");
    set("RESET default_transaction_read_only");
    assert!(acquire(&gate, &policy, "p").await.is_admitted());
}

/// R004.5: what was used before a crash of the server and a restart of ours is used after it, and so are ids.
#[tokio::test]
async fn r004_5_a_crash_and_a_restart_keep_the_state() {
    let (mut database, clock, policy) = (TestDatabase::alone(), ManualClock::new(), gemini());
    let ask = Ask::new(&policy, "kept").cost("tokens", 9_000).id("first");
    let gate = database.gate_by(&clock).await;
    let first = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    for _ in 0..4 {
        assert!(acquire(&gate, &policy, "kept").await.is_admitted());
    }
    let before = gate.standing(&policy, "kept").await.unwrap();
    drop(gate);
    let server = database.own();
    server.process().kill().unwrap();
    server.restart().unwrap();
    let gate = database.gate_by(&clock).await;
    assert_eq!(gate.standing(&policy, "kept").await.unwrap(), before);
    assert!(!acquire(&gate, &policy, "kept").await.is_admitted());
    let again = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    assert_eq!(again.grant(), first.grant());
    assert!(gate.release(&first).await.unwrap());
    assert_eq!(used(&gate, &policy, "kept").await, 4);
}

/// A server that does not answer, and one that is gone, are given up on in time; the same gate asks again when the server
/// is back.
#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up_on_in_time() {
    let (mut database, policy) = (TestDatabase::alone(), hourly(5));
    // Only who must not be answered is in a hurry: a busy machine may be slower than that.
    let hasty = database.options().reply_timeout(Span::from_millis(200));
    let gate = database.gate().await;
    assert!(acquire(&gate, &policy, "p").await.is_admitted());
    let server = database.own();
    // A new connection is not answered.
    server.process().pause().unwrap();
    let error = Postgres::open(hasty).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("no reply within"), "{error}");
    server.process().resume().unwrap();
    server.process().stop().unwrap();
    let error = gate.acquire(&Ask::new(&policy, "p")).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    server.restart().unwrap();
    assert!(acquire(&gate, &policy, "p").await.is_admitted());
    assert_eq!(used(&gate, &policy, "p").await, 2);
}

/// A closed limit stays closed for an ask whose id was let through before its horizon and is forgotten now.
#[tokio::test]
async fn a_forgotten_id_does_not_open_a_closed_limit() {
    let (database, clock, policy) = (TestDatabase::new(), ManualClock::new(), hourly(5));
    let gate = database.gate_by(&clock).await;
    let ask = Ask::new(&policy, "closed").id("old");
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    assert!(gate.close_until(&ask, "rph", clock.now() + Span::from_mins(30)).await.unwrap());
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    clock.advance(Span::from_mins(3));
    assert!(!gate.acquire(&ask).await.unwrap().is_admitted());
    assert_eq!(used(&gate, &policy, "closed").await, 1);
}
