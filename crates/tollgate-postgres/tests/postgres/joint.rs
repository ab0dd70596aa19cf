//! Asks of several charges: all are charged or none, whatever the order, the contention and the faults.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::core::bounds::CHARGES_MAX;
use tollgate::{Ask, Costs, ErrorKind, Gate, GateExt, Limit, Policy, RollingWindow, Span};
use tollgate_postgres::{BATCH_ASKS_MAX, Postgres};

use super::statements::{calls, count_calls};
use super::{TestDatabase, acquire, hourly, used};

/// The policies of the parties that asks are about.
pub(crate) struct Parties(pub(crate) Vec<Policy>);

impl Parties {
    /// `parties` at most `limit` times in any hour each.
    pub(crate) fn new(parties: usize, limit: u64) -> Self {
        let rule = || RollingWindow::new(limit, Span::from_hours(1));
        let policy = |number| {
            let name = format!("party-{number}");
            Policy::new(name, [Limit::new("rph", "requests", rule())]).unwrap()
        };
        Self((0..parties).map(policy).collect())
    }

    /// An ask of the parties with these numbers, in this order.
    pub(crate) fn ask(&self, numbers: &[usize]) -> Ask<'_> {
        let (first, others) = numbers.split_first().unwrap();
        let ask = Ask::new(&self.0[*first], "s");
        others.iter().fold(ask, |ask, number| ask.and(&self.0[*number], "s"))
    }

    pub(crate) async fn used(&self, gate: &impl Gate) -> Vec<u64> {
        let mut all = Vec::new();
        for policy in &self.0 {
            all.push(used(gate, policy, "s").await);
        }
        all
    }
}

/// A policy that never refuses, and counts up to five.
pub(crate) fn shadow() -> Policy {
    let limit = Limit::new("rph", "requests", RollingWindow::new(5, Span::from_hours(1)));
    Policy::builder("shadow").limits([limit]).shadow(true).build().unwrap()
}

/// `most` different numbers below `below`, in an order that `seed` determines.
pub(crate) fn numbers(mut seed: u64, below: usize, most: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (0..below).collect();
    let mut chosen = Vec::new();
    for _ in 0..most {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = usize::try_from(seed >> 33).unwrap() % all.len();
        chosen.push(all.swap_remove(place));
    }
    chosen
}

/// Every row, with its place in the table and the transactions that wrote and locked it.
fn rows(database: &TestDatabase) -> String {
    let sql = |table: &str| {
        format!(
            "SELECT coalesce(string_agg(concat_ws(' ', t.ctid, t.xmin, t.xmax, t::text), ';' ORDER BY t.ctid), '') \
             FROM tollgate.{table} t"
        )
    };
    format!("{}\n{}", database.psql(&sql("entries")), database.psql(&sql("ids")))
}

/// 64 callers, four charges each in random orders, through two gates: no deadlock, and what each party was charged is what
/// the admitted asks charged to it. Asks of one charge are among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_asks_in_random_orders_do_not_deadlock() {
    const CALLERS: u64 = 64;
    const ASKS: u64 = 10_000;
    let database = TestDatabase::new();
    let parties = Arc::new(Parties::new(10, 3_500));
    let mut gates = Vec::new();
    for _ in 0..2 {
        let options = database.options().lock_timeout(Span::from_secs(50));
        let options = options.reply_timeout(Span::from_secs(60));
        gates.push(Arc::new(Postgres::open(options).await.unwrap()));
    }
    let tasks: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let gate = Arc::clone(&gates[usize::try_from(caller).unwrap() % gates.len()]);
            let parties = Arc::clone(&parties);
            tokio::spawn(async move {
                let mut charged = vec![0; parties.0.len()];
                for number in (caller..ASKS).step_by(64) {
                    let most = if number % 8 == 0 { 1 } else { 4 };
                    let chosen = numbers(number, parties.0.len(), most);
                    if gate.acquire(&parties.ask(&chosen)).await.unwrap().is_admitted() {
                        chosen.iter().for_each(|party| charged[*party] += 1);
                    }
                }
                charged
            })
        })
        .collect();
    let mut charged = vec![0_u64; parties.0.len()];
    for task in tasks {
        charged.iter_mut().zip(task.await.unwrap()).for_each(|(sum, more)| *sum += more);
    }
    assert_eq!(parties.used(&*gates[0]).await, charged);
    assert!(charged.contains(&3_500), "nothing was used up: {charged:?}");
    drop(gates);
    // Sessions hand in what they counted when they end.
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    while database.psql(others) != "0" {
        tokio::task::yield_now().await;
    }
    let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    assert_eq!(database.psql(deadlocks), "0");
}

/// A refusal by any charge leaves every row as it was, missing ones included: also of an ask that shares its statement with
/// one that is admitted, and of one that is decided on locked rows.
#[tokio::test]
async fn a_refused_ask_leaves_every_row_byte_identical() {
    let (database, clock, parties) = (TestDatabase::new(), ManualClock::new(), Parties::new(4, 1));
    let gate = Arc::new(database.gate_by(&clock).await);
    assert!(acquire(&gate, &parties.0[1], "s").await.is_admitted());
    let before = rows(&database);
    let denial = gate.acquire(&parties.ask(&[0, 1, 2])).await.unwrap().into_denial().unwrap();
    assert_eq!((&*denial.policy, denial.joint.unwrap().refused.len()), ("party-1", 1));
    assert!(!gate.acquire(&parties.ask(&[2, 1]).id("one")).await.unwrap().is_admitted());
    let shadow = shadow();
    let ask = parties.ask(&[2, 1]).and(&shadow, "s");
    assert!(!gate.acquire(&ask).await.unwrap().is_admitted());
    assert_eq!(rows(&database), before);
}

/// As above, where only the locked rows refuse: another transaction used up the last row meanwhile.
#[tokio::test]
async fn an_ask_that_locked_rows_refuse_leaves_nothing() {
    let (database, parties) = (TestDatabase::new(), Arc::new(Parties::new(3, 2)));
    let gate = Arc::new(database.gate().await);
    assert!(acquire(&gate, &parties.0[2], "s").await.is_admitted());
    let (holder, driver) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    let driver = tokio::spawn(driver);
    // The second of two charges, as another gate makes it.
    let other =
        "BEGIN; UPDATE tollgate.entries SET revision = revision + 1, states[3] = 2, states[5] = 2";
    holder.batch_execute(other).await.unwrap();
    let task = tokio::spawn({
        let (gate, parties) = (Arc::clone(&gate), Arc::clone(&parties));
        async move { gate.acquire(&parties.ask(&[0, 2, 1]).id("one")).await.unwrap().is_admitted() }
    });
    wait_for_lock(&database).await;
    holder.batch_execute("COMMIT").await.unwrap();
    assert!(!task.await.unwrap());
    assert_eq!(database.psql("SELECT string_agg(policy, ',') FROM tollgate.entries"), "party-2");
    assert_eq!(database.psql("SELECT count(*) FROM tollgate.ids"), "0");
    drop(holder);
    driver.await.unwrap().unwrap();
}

/// Waits until a session of the gate waits for a row.
async fn wait_for_lock(database: &TestDatabase) {
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tollgate' \
                 AND datname = current_database() AND wait_event_type = 'Lock'";
    while database.psql(waits) != "1" {
        tokio::task::yield_now().await;
    }
}

/// A backend that is ended after it locked some rows leaves no charge and no id; the same ask again is charged once. One
/// ask is a single statement, the other a transaction of several.
#[tokio::test]
async fn a_killed_backend_leaves_all_or_none() {
    for is_in_shadow in [false, true] {
        let (database, parties) = (TestDatabase::new(), Arc::new(Parties::new(3, 5)));
        let gate = Arc::new(database.gate().await);
        for party in [1, 2] {
            assert!(acquire(&gate, &parties.0[party], "s").await.is_admitted());
        }
        let (holder, driver) =
            tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
        let driver = tokio::spawn(driver);
        let lock = "BEGIN; SELECT FROM tollgate.entries WHERE policy = 'party-2' FOR UPDATE";
        holder.batch_execute(lock).await.unwrap();
        let ask = move |parties: &Parties, gate: Arc<Postgres>| {
            let (parties, shadow) = (Parties(parties.0.clone()), shadow());
            async move {
                let mut ask = parties.ask(&[2, 0, 1]).id("one");
                if is_in_shadow {
                    ask = ask.and(&shadow, "s");
                }
                gate.acquire(&ask).await
            }
        };
        let task = tokio::spawn(ask(&parties, Arc::clone(&gate)));
        wait_for_lock(&database).await;
        database.psql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE application_name = 'tollgate' AND datname = current_database()",
        );
        let error = task.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        holder.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(parties.used(&gate).await, [0, 1, 1]);
        assert_eq!(database.psql("SELECT count(*) FROM tollgate.ids"), "0");
        assert_eq!(database.psql("SELECT count(*) FROM tollgate.entries"), "2");
        for _ in 0..2 {
            let decision = ask(&parties, Arc::clone(&gate)).await.unwrap();
            assert!(decision.is_admitted());
            assert_eq!(parties.used(&gate).await, [1, 2, 2]);
        }
        let others = database.psql("SELECT cardinality(others) FROM tollgate.ids");
        assert_eq!(others, if is_in_shadow { "6" } else { "4" });
        drop(holder);
        driver.await.unwrap().unwrap();
    }
}

/// Backends are ended again and again while callers ask with ids and repeat after an error: each id is charged once, to
/// every party.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_backends_charge_each_id_once() {
    const CALLERS: usize = 8;
    const ASKS: usize = 25;
    let (database, parties) = (TestDatabase::new(), Arc::new(Parties::new(4, 1_000)));
    let gate = Arc::new(database.gate().await);
    let tasks: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (gate, parties) = (Arc::clone(&gate), Arc::clone(&parties));
            tokio::spawn(async move {
                for number in 0..ASKS {
                    let id = format!("{caller}-{number}");
                    // The id belongs to the first charge.
                    let mut order = numbers(u64::try_from(number).unwrap(), 4, 4);
                    order.sort_by_key(|party| *party != 0);
                    let ask = parties.ask(&order).id(id.as_str());
                    while let Err(error) = gate.acquire(&ask).await {
                        let kind = error.kind();
                        let is_expected =
                            [ErrorKind::Unavailable, ErrorKind::Contended].contains(&kind);
                        assert!(is_expected, "{error}");
                    }
                }
            })
        })
        .collect();
    let mut kills = 0;
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        database.psql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE application_name = 'tollgate' AND datname = current_database()",
        );
        kills += 1;
        tokio::task::yield_now().await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(0 < kills);
    let all = u64::try_from(CALLERS * ASKS).unwrap();
    let charged = loop {
        if gate.standing(&parties.0[0], "s").await.is_ok() {
            break parties.used(&gate).await;
        }
    };
    assert_eq!(charged, [all; 4]);
    let ids = database.psql("SELECT count(*), min(cardinality(others)) FROM tollgate.ids");
    assert_eq!(ids, format!("{all}|6"));
}

/// A row that a forgotten transaction holds is contended for an ask that needs it. Refusals need no lock and go on, and so
/// do asks of other rows.
#[tokio::test]
async fn a_held_row_is_contended_and_nothing_is_charged() {
    let (database, parties) = (TestDatabase::new(), Parties::new(4, 1));
    let options = database.options().lock_timeout(Span::from_millis(50));
    let gate = Postgres::open(options).await.unwrap();
    let held = hourly(5);
    assert!(acquire(&gate, &held, "s").await.is_admitted());
    assert!(acquire(&gate, &parties.0[1], "s").await.is_admitted());
    let (holder, driver) =
        tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    let driver = tokio::spawn(driver);
    holder.batch_execute("BEGIN; SELECT FROM tollgate.entries FOR UPDATE").await.unwrap();
    let error = gate.acquire(&parties.ask(&[0, 2]).and(&held, "s")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
    assert!(!gate.acquire(&parties.ask(&[0, 1]).and(&held, "s")).await.unwrap().is_admitted());
    assert!(gate.acquire(&parties.ask(&[3, 2])).await.unwrap().is_admitted());
    holder.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(parties.used(&gate).await, [0, 1, 1, 1]);
    assert_eq!(used(&gate, &held, "s").await, 1);
    drop(holder);
    driver.await.unwrap().unwrap();
}

/// An ask of eight charges is one statement: one that creates the rows, one that changes them, and one that is refused. An
/// ask of one charge is the statement that it was.
#[tokio::test]
async fn a_joint_decision_is_one_statement() {
    let (database, clock, parties) = (TestDatabase::new(), ManualClock::new(), Parties::new(8, 2));
    let gate = database.gate_by(&clock).await;
    count_calls(&database);
    let all = numbers(7, CHARGES_MAX, CHARGES_MAX);
    let mut permits = Vec::new();
    for admitted in [true, true, false] {
        let decision = gate.acquire(&parties.ask(&all)).await.unwrap();
        assert_eq!(decision.is_admitted(), admitted);
        permits.extend(decision.into_permit());
    }
    gate.charge(&parties.ask(&all)).await.unwrap();
    assert!(!acquire(&gate, &parties.0[0], "s").await.is_admitted());
    assert_eq!(calls(&database), "spend=1 spend_joint=4");
    assert!(gate.settle(&permits[0], &Costs::new().with("requests", 0)).await.unwrap());
    assert!(gate.release(&permits[1]).await.unwrap());
    assert_eq!(parties.used(&gate).await, [1; 8]);
}

/// Asks that share a row with one under way wait for it and share a statement, whether of one charge or of several: the
/// limit of the shared row is met exactly.
#[tokio::test]
async fn asks_that_share_a_row_share_a_statement() {
    let (database, clock) = (TestDatabase::new(), ManualClock::new());
    let parties = Arc::new(Parties::new(12, 10));
    let gate = Arc::new(database.gate_by(&clock).await);
    count_calls(&database);
    let tasks: Vec<_> = (0..=BATCH_ASKS_MAX)
        .map(|number| {
            let (gate, parties) = (Arc::clone(&gate), Arc::clone(&parties));
            tokio::spawn(async move {
                let private = 1 + number % 11;
                let chosen = [[private, 0], [0, private]][number % 2];
                let ask = parties.ask(if number % 5 == 4 { &[0] } else { &chosen });
                gate.acquire(&ask).await.unwrap().is_admitted()
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += u64::from(task.await.unwrap());
    }
    let used = parties.used(&*gate).await;
    assert_eq!((admitted, used[0]), (10, 10));
    assert!(used[1..].iter().sum::<u64>() <= 10, "{used:?}");
    assert!(calls(&database).starts_with("look=12 spend_joint=2"), "{}", calls(&database));
}

/// An id of an ask of several charges is remembered for all of them: a repeat gets the same permit, another ask conflicts, a
/// release forgets it.
#[tokio::test]
async fn an_id_is_remembered_with_every_charge() {
    let (database, clock, parties) = (TestDatabase::new(), ManualClock::new(), Parties::new(3, 5));
    let gate = database.gate_by(&clock).await;
    let ask = parties.ask(&[2, 0]).id("one");
    let first = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    clock.advance(Span::from_secs(1));
    let again = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
    let grants = |permit: &tollgate::Permit| -> Vec<_> {
        permit.parts().map(|part| *part.grant()).collect()
    };
    assert_eq!(grants(&again), grants(&first));
    for other in [parties.ask(&[2]), parties.ask(&[2, 1]), parties.ask(&[2, 0, 1])] {
        let error = gate.acquire(&other.id("one")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    }
    assert_eq!(parties.used(&gate).await, [1, 0, 1]);
    assert!(gate.release(&again).await.unwrap());
    assert_eq!(parties.used(&gate).await, [0, 0, 0]);
    assert_eq!(database.psql("SELECT count(*) FROM tollgate.ids"), "0");
    // The record of an ask of one charge has no others.
    gate.acquire(&parties.ask(&[2]).id("one")).await.unwrap();
    assert_eq!(database.psql("SELECT others IS NULL FROM tollgate.ids"), "t");
}
