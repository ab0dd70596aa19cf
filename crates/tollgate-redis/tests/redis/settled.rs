//! Permits in flight: settled in any order, each once, up to the bound on runs and beyond.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::core::bounds::{ABANDONED_AFTER, SETTLED_RUNS_MAX_SHARED};
use tollgate::{Ask, Costs, ErrorKind, GateExt, Limit, Permit, Policy, RollingWindow, Span};
use tollgate_redis::{Options, Redis};

use crate::agreement::{Both, draws};
use crate::storage::calls;
use crate::{admitted, connect, open_at, server, used};

/// How many calls are on their way at once.
const AT_ONCE: usize = 64;

fn tokens(limit: u64) -> Policy {
    let rule = RollingWindow::new(limit, Span::from_hours(24));
    Policy::new("tokens", [Limit::new("tpd", "tokens", rule)]).unwrap()
}

async fn acquire_many(gate: &Arc<Redis>, policy: &Policy, count: usize, cost: u64) -> Vec<Permit> {
    let mut permits = Vec::new();
    while permits.len() < count {
        let tasks: Vec<_> = (0..AT_ONCE.min(count - permits.len()))
            .map(|_| {
                let ask = Ask::new(policy, "p").cost("tokens", cost).into_owned();
                let gate = Arc::clone(gate);
                tokio::spawn(async move { gate.acquire(&ask).await.unwrap() })
            })
            .collect();
        for task in tasks {
            permits.push(admitted(task.await.unwrap()));
        }
    }
    permits.sort_by_key(|permit| permit.grant().stamp);
    permits
}

/// Settles `permits` in their order, and returns how many were not settled before.
async fn settle_many(gate: &Arc<Redis>, permits: &[Permit], actual: u64) -> usize {
    let mut done = 0;
    for some in permits.chunks(AT_ONCE) {
        let tasks: Vec<_> = some
            .iter()
            .cloned()
            .map(|permit| {
                let gate = Arc::clone(gate);
                let actual = Costs::new().with("tokens", actual);
                tokio::spawn(async move { gate.settle(&permit, &actual).await.unwrap() })
            })
            .collect();
        for task in tasks {
            done += usize::from(task.await.unwrap());
        }
    }
    done
}

fn shuffled(permits: &[Permit]) -> Vec<Permit> {
    let (mut all, mut draw) = (permits.to_vec(), draws(11));
    for last in (1..all.len()).rev() {
        all.swap(last, usize::try_from(draw(last as u64 + 1)).unwrap());
    }
    all
}

/// 10,000 permits in flight on one subject, settled in random order: each is settled exactly, and once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_in_flight_settle_exactly_in_random_order() {
    let redis = server();
    let gate = Arc::new(connect(Options::single(redis.url())).await);
    let policy = tokens(10_000_000);
    let permits = acquire_many(&gate, &policy, 10_000, 100).await;
    assert_eq!(used(&*gate, &policy, "p").await, 1_000_000);
    redis.command(&["config", "resetstat"]).unwrap();
    assert_eq!(settle_many(&gate, &shuffled(&permits), 40).await, 10_000);
    let stats = redis.command(&["info", "commandstats"]).unwrap();
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    println!("settled 10,000 in random order: {line}");
    let (_, time) = line.split_once("usec_per_call=").unwrap();
    let time: f64 = time.split(',').next().unwrap().parse().unwrap();
    assert!(time < 1_000.0, "{time} us for each");
    assert_eq!(used(&*gate, &policy, "p").await, 400_000);
    assert_eq!(calls(&redis, "hgetall"), 0);
    assert_eq!(settle_many(&gate, &permits, 0).await, 0, "a second time changes nothing");
    assert_eq!(used(&*gate, &policy, "p").await, 400_000);
    // All of it is one run again, and no field of older runs is left.
    let fields = redis.command(&["hlen", &gate.key(&policy, "p")]).unwrap();
    assert_eq!(fields, "3\n");
}

/// The bound is reached at acquire; what is settled later still counts, and costs beyond the estimate are charged though
/// the permit is too old for a refund.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bound_on_runs_is_an_error_at_acquire_and_never_loses_extra_cost() {
    let (redis, clock) = (server(), ManualClock::new());
    let gate = Arc::new(open_at(Options::single(redis.url()), &clock).await);
    let policy = tokens(10_000_000);
    let count = 2 * SETTLED_RUNS_MAX_SHARED + 6;
    let permits = acquire_many(&gate, &policy, count, 10).await;
    let (even, odd): (Vec<_>, Vec<_>) = permits
        .iter()
        .cloned()
        .partition(|permit| (permit.grant().stamp - permits[0].grant().stamp) % 2 == 0);
    let bound = SETTLED_RUNS_MAX_SHARED;
    assert_eq!(settle_many(&gate, &even[..bound - 1], 10).await, bound - 1);
    let ask = Ask::new(&policy, "p").cost("tokens", 10);
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    assert_eq!(
        settle_many(&gate, &even[bound - 1..=bound], 10).await,
        2,
        "nothing is refused at settle"
    );
    let error = gate.acquire(&ask).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contended);
    assert!(error.to_string().contains("10000 permits of this subject are"), "{error}");
    let denied = gate.acquire(&ask.clone().cost("tokens", 10_000_000)).await.unwrap();
    assert!(!denied.is_admitted(), "a denial stays one");
    assert!(gate.acquire(&ask.clone().without_refund()).await.unwrap().is_admitted());
    assert!(gate.charge(&ask).await.is_ok());
    // The oldest are abandoned: from now on they make room, one at a time.
    clock.advance(Span::from_micros(ABANDONED_AFTER.as_micros() - 1));
    assert_eq!(gate.acquire(&ask).await.unwrap_err().kind(), ErrorKind::Contended);
    clock.advance(Span::from_micros(1));
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    assert_eq!(settle_many(&gate, &even[bound + 1..=bound + 1], 10).await, 1);
    let before = used(&*gate, &policy, "p").await;
    // The run of the first was dropped, so it counts as too old, as it would if it had never been settled.
    assert_eq!(gate.release(&even[0]).await.unwrap_err().kind(), ErrorKind::Expired);
    let more = Costs::new().with("tokens", 25);
    assert!(gate.settle(&even[0], &more).await.unwrap());
    assert!(!gate.settle(&even[0], &more).await.unwrap());
    assert_eq!(used(&*gate, &policy, "p").await, before + 15);
    // The others are exact.
    assert!(gate.release(&odd[0]).await.unwrap());
    assert!(!gate.release(&odd[0]).await.unwrap());
    assert_eq!(used(&*gate, &policy, "p").await, before + 5);
}

/// Settled forwards, backwards and at random, with repeats, late ones and changed numbers in between: every answer is the
/// core's.
#[tokio::test]
async fn runs_in_many_fields_answer_as_the_core() {
    let redis = server();
    for (seed, step) in [(1_u64, 1_usize), (2, 3), (3, 7)] {
        let mut both = Both::new(&redis).await;
        let policies = [tokens(1_000_000 + seed), tokens(2_000_000 + seed)];
        let mut draw = draws(seed);
        let mut permits = Vec::new();
        for _ in 0..1_500 {
            both.clock.advance(Span::from_millis(draw(500)));
            let ask = Ask::new(&policies[0], "p").cost("tokens", 1 + draw(5));
            permits.push(admitted(both.acquire(&ask).await.unwrap()));
        }
        // Every other one, from the last to the first; then in an order that has nothing to do with theirs.
        let backwards: Vec<Permit> = permits.iter().rev().step_by(2).cloned().collect();
        let order = backwards.into_iter().chain(shuffled(&permits)).chain(shuffled(&permits));
        for (number, permit) in order.enumerate() {
            both.settle(&permit, &Costs::new().with("tokens", draw(8))).await;
            if number % 400 == 399 {
                let policy = &policies[number / 400 % 2];
                both.acquire(&Ask::new(policy, "p").cost("tokens", 1)).await.unwrap();
            }
            if number == 2_000 {
                // The first third is too old by now.
                both.clock.advance(Span::from_secs(3_600 - 250));
            }
        }
        for permit in permits.iter().step_by(step) {
            both.settle(permit, &Costs::new()).await;
        }
        // After an hour every run but the newest goes.
        both.clock.advance(Span::from_secs(3_600));
        let last =
            admitted(both.acquire(&Ask::new(&policies[0], "p").cost("tokens", 1)).await.unwrap());
        both.settle(&last, &Costs::new()).await;
        both.settle(&permits[0], &Costs::new()).await;
        redis.command(&["flushall"]).unwrap();
    }
}
