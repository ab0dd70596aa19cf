//! Asks of several charges in a schema of version 3.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::{Ask, ErrorKind, GateExt, Permit, Span};

use super::super::joint::{Parties, numbers, shadow};
use super::super::{acquire, used};
use super::TestDatabase;

fn grants(permit: &Permit) -> Vec<tollgate::core::Grant> {
    permit.parts().map(|part| *part.grant()).collect()
}

/// All are charged or none, ids are remembered with every charge, and the functions of version 3 decide on the rows as
/// before. After an upgrade, what was used is used.
#[tokio::test]
async fn several_charges_are_all_charged_or_none() {
    let (database, clock) = (TestDatabase::empty_of_version_3(), ManualClock::new());
    let (gate, parties) = (database.gate_3_by(&clock).await, Parties::new(4, 2));
    let rows =
        || database.psql("SELECT t.ctid, t.xmin, t.xmax, t FROM tollgate.entries t ORDER BY 1");
    let ask = parties.ask(&[2, 0, 1]).id("one");
    let first = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    clock.advance(Span::from_secs(1));
    let before = rows();
    let again = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    assert_eq!(grants(&again), grants(&first));
    for other in [parties.ask(&[2]), parties.ask(&[2, 1]), parties.ask(&[2, 0, 1, 3])] {
        let error = gate.acquire(&other.id("one")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
    assert_eq!(rows(), before);
    assert!(acquire(&gate, &parties.0[1], "s").await.is_admitted());
    let before = rows();
    let shadow = shadow();
    for ask in [parties.ask(&[3, 0, 1]), parties.ask(&[3, 1]).id("two").and(&shadow, "s")] {
        let denial = gate.acquire(&ask).await.unwrap().into_denial().unwrap();
        assert_eq!(&*denial.policy, "party-1");
    }
    assert_eq!(rows(), before);
    // Of a broker of version 3.
    let spent = database.psql(
        "SELECT (tollgate.spend(e.policy, e.subject, e.shape, ARRAY[3, 1, 2, 3600000000, 0, 0, 0, 0]::bigint[], \
         ARRAY[1]::bigint[], 'three', 60000000, e.at_us, NULL, true))[1] FROM tollgate.entries e WHERE policy = 'party-0'",
    );
    assert_eq!(spent, "1");
    assert_eq!(parties.used(&gate).await, [2, 2, 1, 0]);
    assert!(gate.release(&again).await.unwrap());
    assert_eq!(parties.used(&gate).await, [1, 1, 0, 0]);
    let new = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    assert_ne!(grants(&new), grants(&first));
    let upgraded = database.gate_by(&clock).await;
    assert_eq!(parties.used(&upgraded).await, [2, 2, 1, 0]);
    // The gate that keeps version 3 follows.
    assert!(gate.acquire(&parties.ask(&[3, 2])).await.unwrap().is_admitted());
    assert_eq!(used(&upgraded, &parties.0[3], "s").await, 1);
}

/// An ask whose first policy is in shadow mode and would refuse charges the others; once released, it is a new ask.
#[tokio::test]
async fn a_released_ask_is_charged_again() {
    let (database, clock) = (TestDatabase::empty_of_version_3(), ManualClock::new());
    let (gate, parties, shadow) = (database.gate_3_by(&clock).await, Parties::new(1, 2), shadow());
    for _ in 0..5 {
        assert!(acquire(&gate, &shadow, "s").await.is_admitted());
    }
    let ask = Ask::new(&shadow, "s").and(&parties.0[0], "s").id("one");
    for _ in 0..2 {
        let permit = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
        assert!(permit.shadow_denied.is_some());
        assert_eq!(parties.used(&gate).await, [1]);
        clock.advance(Span::from_secs(1));
        assert!(gate.release(&permit).await.unwrap());
        assert_eq!(parties.used(&gate).await, [0]);
    }
}

/// Two gates and random orders: no deadlock, and sums are exact.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_orders_do_not_deadlock() {
    const CALLERS: u64 = 16;
    let (database, parties) = (TestDatabase::empty_of_version_3(), Arc::new(Parties::new(6, 150)));
    let mut gates = Vec::new();
    for _ in 0..2 {
        let options = database.options_3().lock_timeout(Span::from_secs(50));
        let options = options.reply_timeout(Span::from_secs(60));
        gates.push(Arc::new(tollgate_postgres::Postgres::open(options).await.unwrap()));
    }
    let tasks: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let gate = Arc::clone(&gates[usize::try_from(caller % 2).unwrap()]);
            let parties = Arc::clone(&parties);
            tokio::spawn(async move {
                let mut charged = [0; 6];
                for number in (caller..400).step_by(16) {
                    let chosen = numbers(number, 6, 4);
                    if gate.acquire(&parties.ask(&chosen)).await.unwrap().is_admitted() {
                        chosen.iter().for_each(|party| charged[*party] += 1);
                    }
                }
                charged
            })
        })
        .collect();
    let mut charged = [0_u64; 6];
    for task in tasks {
        charged.iter_mut().zip(task.await.unwrap()).for_each(|(sum, more)| *sum += more);
    }
    assert_eq!(parties.used(&*gates[0]).await, charged);
    assert!(charged.contains(&150), "nothing was used up: {charged:?}");
}
