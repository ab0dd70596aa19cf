//! Permits that are settled late, in any order, and many at once.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::core::bounds::{ABANDONED_AFTER, SETTLED_RUNS_MAX_SHARED};
use tollgate::core::{ChargeRecord, Grant};
use tollgate::{
    Ask, Costs, ErrorKind, Gate, GateExt, Limit, Permit, Policy, RollingWindow, Span, TokenBucket,
};
use tollgate_postgres::Postgres;

use super::statements::log_position;
use super::{TestDatabase, used};

/// Round trips at once.
const AT_ONCE: usize = 64;

fn bucket(rate: u64, capacity: u64) -> Policy {
    let rule = TokenBucket::per_second(rate).burst(capacity);
    Policy::new("bucket", [Limit::new("only", "requests", rule)]).unwrap()
}

fn window(limit: u64, window: Span) -> Policy {
    Policy::new("window", [Limit::new("only", "requests", RollingWindow::new(limit, window))])
        .unwrap()
}

async fn admit(gate: &impl Gate, ask: &Ask<'_>) -> Permit {
    gate.acquire(ask).await.unwrap().into_permit().unwrap()
}

/// Runs `work` on every item, [`AT_ONCE`] at a time.
async fn each<T, U, F>(items: Vec<T>, work: impl Fn(T) -> F) -> Vec<U>
where
    T: Send + 'static,
    U: Send + 'static,
    F: Future<Output = U> + Send + 'static,
{
    let (mut results, mut items) = (Vec::new(), items.into_iter().peekable());
    while items.peek().is_some() {
        let tasks: Vec<_> =
            items.by_ref().take(AT_ONCE).map(|item| tokio::spawn(work(item))).collect();
        for task in tasks {
            results.push(task.await.unwrap());
        }
    }
    results
}

/// The items in an order that is the same each time and no order at all.
fn shuffled<T>(mut items: Vec<T>) -> Vec<T> {
    let mut state: u64 = 0x2545_f491_4f6c_dd1d;
    for place in (1..items.len()).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(place, usize::try_from(state >> 33).unwrap() % (place + 1));
    }
    items
}

/// Ten thousand permits in flight on one subject, settled in random order for half of their estimate, and then once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_in_flight_settle_exactly_in_random_order() {
    let (database, clock, policy) =
        (TestDatabase::new(), ManualClock::new(), window(1_000_000, Span::from_hours(1)));
    let gate = Arc::new(database.gate_by(&clock).await);
    let ask = {
        let (gate, policy) = (Arc::clone(&gate), policy.clone());
        move |_| {
            let (gate, policy) = (Arc::clone(&gate), policy.clone());
            async move { admit(&gate, &Ask::new(&policy, "s").cost("requests", 4)).await }
        }
    };
    let permits = shuffled(each((0..SETTLED_RUNS_MAX_SHARED).collect(), ask).await);
    clock.advance(Span::from_secs(30));
    let settle = |permit: Permit| {
        let gate = Arc::clone(&gate);
        async move { gate.settle(&permit, &Costs::new().with("requests", 3)).await }
    };
    for settled in each(permits.clone(), settle).await {
        assert!(settled.unwrap());
    }
    let settled = 3 * SETTLED_RUNS_MAX_SHARED as u64;
    assert_eq!(used(&gate, &policy, "s").await, settled);
    let (again, _) = permits.split_at(500);
    for settled in each(again.to_vec(), settle).await {
        assert!(!settled.unwrap());
    }
    assert_eq!(used(&gate, &policy, "s").await, settled);
    let runs = "SELECT (SELECT settled_runs FROM tollgate.entries), count(*), max(last - first) + 1 FROM tollgate.settled";
    assert_eq!(database.psql(runs), format!("1|1|{SETTLED_RUNS_MAX_SHARED}"));
}

/// A permit with the stamp `stamp` of an entry that is `permit`'s.
fn with_stamp(permit: &Permit, stamp: u64) -> Permit {
    let charge = ChargeRecord { at: permit.grant().at, stamp };
    let grant = Grant::new(charge, permit.policy(), permit.charged().amounts);
    permit.clone().with_grant(grant)
}

/// The bound is reached at acquire, never at settle: with as many runs as may be, a permit that could be given back is
/// refused with an error and one that could not is given. Once the oldest are abandoned, they make room; what one of those
/// cost beyond its estimate is charged all the same.
#[tokio::test]
async fn the_bound_on_settled_permits_is_an_error_at_acquire() {
    let (database, clock, policy) = (TestDatabase::new(), ManualClock::new(), bucket(1, 1_000_000));
    let gate = database.gate_by(&clock).await;
    let first = admit(&gate, &Ask::new(&policy, "s").cost("requests", 10)).await;
    let stamp = first.grant().stamp;
    // Every second one of as many permits as lead there is settled already.
    let runs = SETTLED_RUNS_MAX_SHARED as u64;
    database.psql(&format!(
        "UPDATE tollgate.entries SET settled_runs = {runs}, next_stamp = {next}; \
         INSERT INTO tollgate.settled SELECT policy, subject, {stamp} + 2 * n, {stamp} + 2 * n, at_us \
         FROM tollgate.entries, generate_series(1, {runs}) n",
        next = stamp + 2 * runs + 10,
    ));
    let error = gate.acquire(&Ask::new(&policy, "s")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
    assert!(error.to_string().contains("are not settled"), "{error}");
    // The same where the core decides, because the row is in other numbers.
    let error = gate.acquire(&Ask::new(&bucket(2, 1_000_000), "s")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
    let last = admit(&gate, &Ask::new(&policy, "s").without_refund()).await;
    // A settle is not refused for want of room.
    assert!(gate.settle(&last, &Costs::new()).await.unwrap());
    let count = || {
        database.psql("SELECT settled_runs || ' ' || (SELECT count(*) FROM tollgate.settled) FROM tollgate.entries")
    };
    assert_eq!(count(), format!("{0} {0}", runs + 1));
    clock.advance(ABANDONED_AFTER);
    let next = admit(&gate, &Ask::new(&policy, "s")).await;
    assert!(gate.release(&next).await.unwrap());
    assert_eq!(count(), format!("{runs} {runs}"), "it joined the one before and the oldest went");
    let before = used(&gate, &policy, "s").await;
    let floor: u64 = database.psql("SELECT settled_floor FROM tollgate.entries").parse().unwrap();
    assert!(stamp < floor, "{floor}");
    let error = gate.release(&with_stamp(&first, stamp + 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Expired, "{error}");
    database.psql(
        "DELETE FROM tollgate.settled WHERE first = (SELECT max(first) FROM tollgate.settled); \
         UPDATE tollgate.entries SET settled_runs = settled_runs - 1",
    );
    assert!(gate.settle(&first, &Costs::new().with("requests", 25)).await.unwrap());
    assert_eq!(used(&gate, &policy, "s").await, before + 15, "extra cost is charged");
    assert!(!gate.settle(&first, &Costs::new().with("requests", 25)).await.unwrap());
}

/// A settle with a thousand in flight writes little more to the server's log than one alone, and an acquire nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settle_with_a_thousand_in_flight_writes_little() {
    let (database, clock) = (TestDatabase::alone(), ManualClock::new());
    let policy = window(1_000_000, Span::from_hours(1));
    let gate = database.gate_by(&clock).await;
    let mut permits = Vec::new();
    for _ in 0..2_000 {
        permits.push(admit(&gate, &Ask::new(&policy, "s")).await);
    }
    let permits = shuffled(permits);
    for (at_once, permits) in [1_000, 0].into_iter().zip(permits.chunks(1_000)) {
        let before = log_position(&database);
        for permit in permits {
            assert!(gate.settle(permit, &Costs::new()).await.unwrap());
        }
        let each = (log_position(&database) - before) / 1_000;
        println!(
            "{each} bytes of log for each settle with {at_once} to {} others open",
            at_once + 1_000
        );
        assert!(each <= 1_024, "{each} bytes");
    }
    println!("{}", database.psql("SELECT settled_runs FROM tollgate.entries"));
}

/// What an entry takes on the disk: a bucket with one record and with a full one, a full grid, a full log.
#[tokio::test]
async fn an_entry_is_small() {
    let (database, clock) = (TestDatabase::new(), ManualClock::new());
    let gate = database.gate_by(&clock).await;
    let minute = Span::from_mins(1);
    let bucket = || bucket(1, 1_000_000);
    for (name, policy, asks, every, most) in [
        ("a bucket", bucket(), 1, Span::ZERO, 256),
        ("a bucket with 64 lows", bucket(), 70, Span::from_millis(1), 1_400),
        ("a grid of 64 slots", window(20_000, minute), 70, Span::from_millis(938), 1_400),
        ("a log of 128", window(128, minute), 128, Span::from_millis(400), 2_560),
    ] {
        for _ in 0..asks {
            admit(&gate, &Ask::new(&policy, name)).await;
            clock.advance(every);
        }
        let row =
            format!("SELECT pg_column_size(e.*) FROM tollgate.entries e WHERE subject = '{name}'");
        let bytes: u64 = database.psql(&row).parse().unwrap();
        println!("{name}: {bytes} bytes");
        assert!(bytes <= most, "{name}: {bytes} bytes");
    }
}

/// Expired runs go, two with each new one, so a subject keeps those of the last hour.
#[tokio::test]
async fn expired_runs_are_removed_as_new_ones_come() {
    let (database, clock, policy) = (TestDatabase::new(), ManualClock::new(), bucket(1, 1_000_000));
    let gate = database.gate_by(&clock).await;
    for round in 0..2 {
        for _ in 0..20 {
            let permit = admit(&gate, &Ask::new(&policy, "s")).await;
            admit(&gate, &Ask::new(&policy, "s")).await;
            assert!(gate.release(&permit).await.unwrap());
        }
        let runs = database.psql("SELECT settled_runs || ' ' || (SELECT count(*) FROM tollgate.settled) FROM tollgate.entries");
        assert_eq!(runs, "20 20", "round {round}");
        clock.advance(Span::from_hours(1));
    }
}

/// A slow call gets back what it did not use: refill that would have come without it as well is no reason to give less.
#[tokio::test]
async fn a_slow_call_gets_back_what_it_did_not_use() {
    let (database, clock, policy) = (TestDatabase::new(), ManualClock::new(), bucket(10, 100));
    let gate = database.gate_by(&clock).await;
    let ask = |subject: &'static str, cost| Ask::new(&policy, subject).cost("requests", cost);
    admit(&gate, &ask("release", 80)).await;
    let last = admit(&gate, &ask("release", 20)).await;
    clock.advance(Span::from_secs(2));
    assert!(gate.release(&last).await.unwrap());
    assert_eq!(used(&gate, &policy, "release").await, 60);

    admit(&gate, &ask("settle", 50)).await;
    let estimate = admit(&gate, &ask("settle", 50)).await;
    clock.advance(Span::from_secs(3));
    assert!(gate.settle(&estimate, &Costs::new().with("requests", 20)).await.unwrap());
    assert_eq!(used(&gate, &policy, "settle").await, 40);

    // Taking and giving back below the limit is never refused.
    admit(&gate, &ask("churn", 90)).await;
    let mut held = std::collections::VecDeque::new();
    for _ in 0..300 {
        clock.advance(Span::from_micros(250));
        held.push_back(admit(&gate, &ask("churn", 2)).await);
        if held.len() == 4 {
            assert!(gate.release(&held.pop_front().unwrap()).await.unwrap());
        }
    }

    // Room is not made twice: 10 are taken, come back by time, are taken again, and then the first are released.
    let policy = bucket(1, 10);
    let ask = Ask::new(&policy, "twice").cost("requests", 10);
    let first = admit(&gate, &ask).await;
    clock.advance(Span::from_secs(10));
    admit(&gate, &ask).await;
    assert!(gate.release(&first).await.unwrap());
    assert!(!gate.acquire(&ask).await.unwrap().is_admitted());
}

/// An ask that cannot be given back leaves no record in its row.
#[tokio::test]
async fn an_ask_without_refund_records_nothing() {
    let (database, clock, policy) = (TestDatabase::new(), ManualClock::new(), bucket(1, 100));
    let gate = database.gate_by(&clock).await;
    let states = || database.psql("SELECT cardinality(states) FROM tollgate.entries");
    for _ in 0..3 {
        admit(&gate, &Ask::new(&policy, "s").without_refund()).await;
    }
    assert_eq!(states(), "3");
    for pairs in 1..=3 {
        admit(&gate, &Ask::new(&policy, "s")).await;
        assert_eq!(states(), (5 + 2 * pairs).to_string());
    }
}

/// Far beyond 1,024 admissions a rolling window is as exact: everything released leaves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_thousand_admitted_and_released_leave_nothing() {
    let (database, clock, policy) =
        (TestDatabase::new(), ManualClock::new(), window(20_000, Span::from_secs(10)));
    let gate = Arc::new(database.gate_by(&clock).await);
    let mut permits = Vec::new();
    for _ in 0..3_000 {
        permits.push(admit(&gate, &Ask::new(&policy, "s")).await);
        clock.advance(Span::from_millis(2));
    }
    assert_eq!(used(&gate, &policy, "s").await, 3_000);
    let release = |permit: Permit| {
        let gate = Arc::clone(&gate);
        async move { gate.release(&permit).await.unwrap() }
    };
    assert!(each(shuffled(permits), release).await.into_iter().all(|done| done));
    assert_eq!(used(&gate, &policy, "s").await, 0);
}

/// Evenly spaced demand at 95 % of a rolling window is never refused.
#[tokio::test]
async fn evenly_spaced_demand_below_the_limit_is_never_refused() {
    let (database, clock, policy) =
        (TestDatabase::new(), ManualClock::new(), window(20_000, Span::from_secs(10)));
    let gate: Postgres = database.gate_by(&clock).await;
    // 19,000 per window in 950 asks, for three windows.
    let ask = Ask::new(&policy, "s").cost("requests", 20);
    for number in 0..3 * 950 {
        assert!(gate.acquire(&ask).await.unwrap().is_admitted(), "ask {number}");
        clock.advance(Span::from_micros(10_000_000 / 950));
    }
}
