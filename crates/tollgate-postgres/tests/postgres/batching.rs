//! Asks that find no free connection: they share statements, and nothing else.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::{Ask, ErrorKind, GateExt, Span};
use tollgate_postgres::{BATCH_ASKS_MAX, Postgres};

use super::statements::{calls, count_calls};
use super::{TestDatabase, acquire, gemini, hourly, used};

/// A gate with one connection, so that all but the first ask have to wait.
async fn narrow(database: &TestDatabase, clock: Option<&ManualClock>) -> Arc<Postgres> {
    let options = database.options().connections_max(1).lock_timeout(Span::from_secs(1));
    let options = match clock {
        Some(clock) => options.test_clock(Arc::new(clock.clone())),
        None => options,
    };
    Arc::new(Postgres::open(options).await.unwrap())
}

/// A full statement's worth of asks and two more, on as many rows and with three limits, are three statements: the one
/// that found the connection free, a full one, and the rest. Every ask is charged to its own row, and repeats and
/// refusals among them are what they would be alone.
#[tokio::test]
async fn asks_that_wait_share_a_statement() {
    let (database, clock) = (TestDatabase::new(), ManualClock::new());
    let gate = narrow(&database, Some(&clock)).await;
    count_calls(&database);
    let asks = BATCH_ASKS_MAX + 2;
    let tasks: Vec<_> = (0..asks)
        .map(|number| {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move {
                let (policy, subject) = (gemini(), format!("s-{}", number / 2));
                // Both asks of a subject have the same id, so one of them is a repeat.
                let id = format!("id-{}", number / 2);
                let ask = Ask::new(&policy, subject.as_str()).cost("tokens", 1_000).id(id.as_str());
                gate.acquire(&ask).await.unwrap().into_permit().unwrap()
            })
        })
        .collect();
    let mut permits = Vec::new();
    for task in tasks {
        permits.push(task.await.unwrap());
    }
    assert_eq!(calls(&database), "spend=2 spend_all=1");
    for (number, pair) in permits.chunks_exact(2).enumerate() {
        assert_eq!(pair[0].grant(), pair[1].grant());
        let standings = gate.standing(&gemini(), &format!("s-{number}")).await.unwrap();
        assert_eq!([standings[0].used, standings[1].used, standings[2].used], [1, 1_000, 1]);
    }
}

/// Promise 1 where asks of one row share statements (R000.3): sixty ask, twenty-five are let through.
#[tokio::test]
async fn asks_of_one_row_admit_exactly_the_limit() {
    let database = TestDatabase::new();
    let gate = narrow(&database, None).await;
    let tasks: Vec<_> = (0..60)
        .map(|_| {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move { acquire(&*gate, &hourly(25), "s").await.is_admitted() })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += u64::from(task.await.unwrap());
    }
    assert_eq!((admitted, used(&gate, &hourly(25), "s").await), (25, 25));
}

/// A row that a forgotten transaction holds is contended for asks about it, and not for the others of their
/// statement.
#[tokio::test]
async fn a_locked_row_does_not_delay_the_rest_of_its_batch() {
    let database = TestDatabase::new();
    let (gate, policy) = (narrow(&database, None).await, hourly(5));
    assert!(acquire(&gate, &policy, "s-3").await.is_admitted());
    let (holder, driver) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    let driver = tokio::spawn(driver);
    holder.batch_execute("BEGIN; SELECT FROM tollgate.entries FOR UPDATE").await.unwrap();
    let tasks: Vec<_> = (0..8)
        .map(|number| {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move {
                let (policy, subject) = (hourly(5), format!("s-{number}"));
                let decision = gate.acquire(&Ask::new(&policy, subject.as_str())).await;
                decision.map(|decision| decision.is_admitted()).map_err(|error| error.kind())
            })
        })
        .collect();
    for (number, task) in tasks.into_iter().enumerate() {
        let expected = if number == 3 { Err(ErrorKind::Contended) } else { Ok(true) };
        assert_eq!(task.await.unwrap(), expected, "s-{number}");
    }
    holder.batch_execute("ROLLBACK").await.unwrap();
    for number in 0..8 {
        assert_eq!(used(&gate, &policy, &format!("s-{number}")).await, 1, "s-{number}");
    }
    drop(holder);
    driver.await.unwrap().unwrap();
}

/// A cancelled ask is not charged and does not delay the others.
#[tokio::test]
async fn an_ask_that_was_given_up_is_not_sent() {
    let database = TestDatabase::new();
    let gate = narrow(&database, None).await;
    let mut tasks: Vec<_> = (0..10)
        .map(|_| {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move { acquire(&*gate, &hourly(50), "s").await.is_admitted() })
        })
        .collect();
    // All asks are sent, and none is answered.
    tokio::task::yield_now().await;
    for task in tasks.drain(1..9) {
        task.abort();
    }
    for task in tasks {
        assert!(task.await.unwrap());
    }
    assert_eq!(used(&gate, &hourly(50), "s").await, 2);
}
