//! Ask ids: kept beside the entries, charged once, removed when they are over.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::core::bounds::{ID_HORIZON, PERMIT_TTL};
use tollgate::{
    Ask, Concurrency, Costs, ErrorKind, Gate, GateExt, Limit, Permit, Policy, Span, TokenBucket,
};

use super::statements::log_position;
use super::{TestDatabase, hourly, used};

fn bucket() -> Policy {
    let rule = TokenBucket::per(1, Span::from_hours(1)).burst(100_000);
    Policy::new("bucket", [Limit::new("only", "requests", rule)]).unwrap()
}

async fn admit(gate: &impl Gate, ask: &Ask<'_>) -> Permit {
    gate.acquire(ask).await.unwrap().into_permit().unwrap()
}

/// Each id is in its table once, and goes with the permit that is released: also with one that is too old, whose slot is
/// handed back.
#[tokio::test]
async fn a_release_forgets_its_id_and_no_other() {
    let (database, clock) = (TestDatabase::new(), ManualClock::new());
    let gate = database.gate_by(&clock).await;
    let ids = || database.psql("SELECT string_agg(id, ',' ORDER BY stamp) FROM tollgate.ids");
    let rule = Concurrency::new(3, Span::from_hours(2));
    let policy = Policy::new("jobs", [Limit::new("slots", "jobs", rule)]).unwrap();
    let ask = |id: &'static str| Ask::new(&policy, "s").cost("jobs", 1).id(id);
    let (one, two) = (admit(&gate, &ask("one")).await, admit(&gate, &ask("two")).await);
    let three = admit(&gate, &ask("three")).await;
    assert!(gate.release(&two).await.unwrap());
    assert_eq!(ids(), "one,three");
    assert!(gate.settle(&one, &Costs::new()).await.unwrap());
    assert_eq!(ids(), "one,three");
    // Its slot is gone, so it is a new ask.
    let again = admit(&gate, &ask("one")).await;
    assert_ne!(one.grant(), again.grant());
    assert_eq!(admit(&gate, &ask("one")).await.grant(), again.grant());
    assert_eq!(ids(), "three,one");
    // A permit whose id was given to another ask since leaves it alone.
    assert!(!gate.release(&one).await.unwrap());
    assert_eq!(ids(), "three,one");
    clock.advance(PERMIT_TTL);
    assert!(gate.release(&three).await.unwrap());
    assert!(gate.release(&again).await.unwrap());
    assert_eq!(ids(), "");
}

/// Two thousand ids on one subject, all recognised; the same id with another cost is a conflict; a reset voids them.
#[tokio::test]
async fn two_thousand_ids_of_one_subject_are_all_recognised() {
    let (database, clock, policy) = (TestDatabase::new(), ManualClock::new(), bucket());
    let gate = database.gate_by(&clock).await;
    let (ids, mut permits) = (2_000_usize, Vec::new());
    for number in 0..ids {
        let ask = Ask::new(&policy, "s").id(format!("id-{number}"));
        permits.push(admit(&gate, &ask).await);
    }
    for (number, permit) in permits.iter().enumerate() {
        let ask = Ask::new(&policy, "s").id(format!("id-{number}"));
        assert_eq!(admit(&gate, &ask).await.grant(), permit.grant());
    }
    assert_eq!(used(&gate, &policy, "s").await, ids as u64);
    let other = Ask::new(&policy, "s").cost("requests", 2).id("id-0");
    assert_eq!(gate.acquire(&other).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert!(gate.reset(&policy, "s").await.unwrap());
    let again = admit(&gate, &Ask::new(&policy, "s").id("id-0")).await;
    assert_ne!(again.grant(), permits[0].grant());
    assert_eq!(used(&gate, &policy, "s").await, 1);
}

/// Promise 5 under concurrency: of sixteen asks with the same new id on a subject without a row, one is charged, and all
/// get its permit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn asks_with_the_same_new_id_are_charged_once() {
    let database = TestDatabase::new();
    let options = database.options().connections_max(8);
    let gate = Arc::new(tollgate_postgres::Postgres::open(options).await.unwrap());
    for round in 0..20 {
        let tasks: Vec<_> = (0..16)
            .map(|_| {
                let gate = Arc::clone(&gate);
                tokio::spawn(async move {
                    let (policy, subject) = (hourly(100), format!("s-{round}"));
                    let ask = Ask::new(&policy, subject.as_str()).id("same");
                    admit(&gate, &ask).await
                })
            })
            .collect();
        let mut stamps = Vec::new();
        for task in tasks {
            stamps.push(task.await.unwrap().grant().stamp);
        }
        assert!(stamps.iter().all(|stamp| *stamp == stamps[0]), "{stamps:?}");
        assert_eq!(used(&gate, &hourly(100), &format!("s-{round}")).await, 1);
    }
}

/// A row that was written since the id was looked up undoes the charge: never charged twice, even where the entry that
/// orders the two was removed in between.
#[tokio::test]
async fn an_id_that_another_ask_got_meanwhile_undoes_the_charge() {
    let (database, policy) = (TestDatabase::new(), bucket());
    let gate = database.gate().await;
    admit(&gate, &Ask::new(&policy, "s").id("one")).await;
    for known in ["NULL", "1"] {
        let refused = database.psql_fails(&format!(
            "SELECT tollgate.remember('bucket', 's', 'one', {known}, 2, 3, 4, 5)"
        ));
        assert!(refused.contains("40001"), "{refused}");
    }
}

/// An id lives as long as it says, whether or not its entry does; cleaning up removes it afterwards, in batches.
#[tokio::test]
async fn ids_outlive_their_entry_and_are_cleaned_up() {
    let (database, clock) = (TestDatabase::new(), ManualClock::new());
    let rule = TokenBucket::per_second(1_000);
    let policy = Policy::new("fast", [Limit::new("only", "requests", rule)]).unwrap();
    let gate = database.gate_by(&clock).await;
    let ask = |number: usize| Ask::new(&policy, "s").id(format!("id-{number}"));
    let first = admit(&gate, &ask(0)).await;
    for number in 1..25 {
        admit(&gate, &ask(number)).await;
    }
    clock.advance(Span::from_secs(1));
    assert_eq!(gate.clean_up(10).await.unwrap(), 1, "the entry");
    assert_eq!(admit(&gate, &ask(0)).await.grant(), first.grant());
    assert_eq!(database.psql("SELECT count(*) FROM tollgate.entries"), "0", "nothing was charged");
    clock.advance(ID_HORIZON);
    assert_eq!(gate.clean_up(10).await.unwrap(), 25);
    assert_eq!(database.psql("SELECT count(*) FROM tollgate.ids"), "0");
    assert_ne!(admit(&gate, &ask(0)).await.grant(), first.grant());
}

/// Ids add at most 1 KB to the server's log for each ask, however many a subject has.
#[tokio::test]
async fn an_id_writes_at_most_a_kilobyte() {
    let (database, policy) = (TestDatabase::alone(), bucket());
    let gate = database.gate().await;
    let mut plain = 0;
    for ids in [false, true, true] {
        let (asks, before) = (1_000_u64, log_position(&database));
        for number in 0..asks {
            let ask = Ask::new(&policy, "s").without_refund();
            // As random as those of a broker, so that neighbours in the index are not neighbours in time.
            let id = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ before;
            let ask = if ids { ask.id(format!("{id:016x}-{id:019}")) } else { ask };
            admit(&gate, &ask).await;
        }
        let each = (log_position(&database) - before) / asks;
        if ids {
            assert!(each <= plain + 1_024, "{each} bytes for each ask, {plain} without ids");
        } else {
            plain = each;
        }
        println!("ids: {ids}: {each} bytes of log for each ask");
    }
    assert_eq!(database.psql("SELECT count(*) FROM tollgate.ids"), "2000");
}
