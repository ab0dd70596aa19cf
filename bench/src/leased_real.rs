//! A fleet of leased instances on a real server, in real time: store writes per admitted ask, over-issue, and use of the
//! limit when more is asked for than it has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tollgate::clock::SystemClock;
use tollgate::policy::Rule;
use tollgate::strategy::{Leased, LeasedOptions};
use tollgate::{Ask, Gate, GateExt, Policy, RollingWindow, Span, Timestamp, TokenBucket};
use tollgate_testkit::servers;

use crate::dynamodb;
use crate::leased::{Counted, INSTANCES, USE_MIN, WRITES_MAX, policy};
use crate::load::runtime;

/// So much more is asked for than the limit has.
const DEMAND: f64 = 1.5;

/// Each instance asks in turns so far apart.
const TURN: Duration = Duration::from_millis(1);

const RATE: u64 = 6_000;
const WINDOW: Span = Span::from_secs(10);
const TTL: Span = Span::from_millis(250);

/// Three windows: what a bucket lacks at the start by its `block_ttl`, and what lies in blocks at the end, is then little.
const SECONDS: u64 = 30;

pub(crate) fn run() {
    println!(
        "\n# Leased on real servers: {INSTANCES} instances, one hot key, {DEMAND} times the limit asked for\n"
    );
    let runtime = runtime();
    let bucket = || Rule::from(TokenBucket::per_second(RATE));
    let window = RollingWindow::new(RATE * WINDOW.as_micros() / 1_000_000, WINDOW);
    let redis = servers::Redis::start().expect("a server");
    let connect = async || {
        let options = tollgate_redis::Options::single(redis.url());
        tollgate_redis::Redis::open(options).await.expect("it answers")
    };
    fleet(&runtime, "Redis, bucket", &bucket(), connect);
    fleet(&runtime, "Redis, window", &window.into(), connect);
    fleet(&runtime, "Redis, window of 50 slots", &window.resolution(50).into(), connect);
    let mut server = servers::DynamoDb::start().expect("a server");
    let direct = format!("http://{}", server.process().address());
    runtime.block_on(dynamodb::table(&direct));
    let connect = async || dynamodb::connect(&direct, Arc::new(SystemClock)).await;
    fleet(&runtime, "DynamoDB, bucket", &bucket(), connect);
}

/// So many admissions between two moments, in seconds from the start.
#[derive(Clone, Copy)]
struct Batch {
    before: f64,
    after: f64,
    admitted: u64,
}

fn fleet<G: Gate>(runtime: &Runtime, name: &str, rule: &Rule, connect: impl AsyncFn() -> G) {
    let policy = policy(rule.clone(), TTL);
    let (batches, writes) = runtime.block_on(drive(&policy, connect));
    let admitted: u64 = batches.iter().map(|batch| batch.admitted).sum();
    let lasted = batches.iter().fold(0.0, |last, batch| batch.after.max(last));
    let (over, usable) = match rule {
        Rule::TokenBucket(rule) => {
            let (capacity, rate) = (rule.capacity as f64, rule.refill as f64);
            (over_bucket(&batches, capacity, rate), capacity + rate * lasted)
        }
        Rule::RollingWindow(rule) => {
            let window = Duration::from(rule.window).as_secs_f64();
            let windows = (lasted / window).round();
            (over_window(&batches, rule.limit, window), rule.limit as f64 * windows)
        }
        other => unreachable!("{other:?}"),
    };
    let per_ask = writes as f64 / admitted as f64;
    let used = admitted as f64 / usable;
    let verdict =
        if per_ask <= WRITES_MAX && over <= 0.0 && USE_MIN <= used { "ok" } else { "MISSED" };
    println!(
        "{name:<28} ttl {TTL:<6} {:>6.0} admitted/s  {per_ask:.4} writes per ask (<= {WRITES_MAX})  over-issue {:.0}  \
         use {:.1} % (>= {:.0})  {verdict}",
        admitted as f64 / lasted,
        over.max(0.0),
        used * 100.0,
        USE_MIN * 100.0,
    );
}

/// Every admission of every instance, and the writes that reached the store.
async fn drive<G: Gate>(policy: &Policy, connect: impl AsyncFn() -> G) -> (Vec<Batch>, u64) {
    let writes = Arc::new(AtomicU64::new(0));
    let mut gates = Vec::new();
    for _ in 0..INSTANCES {
        let store = Counted::new(connect().await, Arc::clone(&writes));
        gates.push(Leased::new(store, LeasedOptions::default(), Arc::new(SystemClock)));
    }
    let started = Instant::now();
    let instances: Vec<_> = gates
        .into_iter()
        .map(|gate| tokio::spawn(instance(gate, policy.clone(), started)))
        .collect();
    let mut batches = Vec::new();
    for instance in instances {
        batches.extend(instance.await.expect("an instance"));
    }
    (batches, writes.load(Ordering::Relaxed))
}

/// Runs one instance with its part of the demand, and returns its unspent tokens.
async fn instance<G: Gate>(gate: Leased<G>, policy: Policy, started: Instant) -> Vec<Batch> {
    let rate = RATE as f64 * DEMAND / INSTANCES as f64;
    let (mut batches, mut asked) = (Vec::new(), 0);
    loop {
        let before = started.elapsed().as_secs_f64();
        if SECONDS as f64 <= before {
            break;
        }
        let (due, mut admitted) = ((before * rate) as u64, 0);
        while asked < due {
            asked += 1;
            let decision = gate.acquire(&Ask::new(&policy, "hot")).await.expect("decides");
            admitted += u64::from(decision.is_admitted());
        }
        let after = started.elapsed().as_secs_f64();
        batches.push(Batch { before, after, admitted });
        tokio::time::sleep(TURN).await;
    }
    gate.shutdown(Timestamp::MAX).await.expect("ends in time");
    batches
}

/// The most that was admitted between the beginning of one batch and the end of another beyond what a bucket allows for
/// that time.
fn over_bucket(batches: &[Batch], capacity: f64, rate: f64) -> f64 {
    let mut ends = batches.to_vec();
    ends.sort_by(|one, other| one.after.total_cmp(&other.after));
    let (mut count, mut least, mut over) = (0.0, f64::MAX, f64::MIN);
    for Batch { before, after, admitted } in ends {
        least = (count - rate * before).min(least);
        count += admitted as f64;
        over = (count - rate * after - least - capacity).max(over);
    }
    over
}

/// The most that whole batches within any window admitted beyond `limit`.
fn over_window(batches: &[Batch], limit: u64, window: f64) -> f64 {
    let mut ends = batches.to_vec();
    ends.sort_by(|one, other| one.after.total_cmp(&other.after));
    let (mut first, mut sum, mut over) = (0, 0, f64::MIN);
    for batch in &ends {
        sum += batch.admitted;
        while ends[first].before + window < batch.after {
            sum -= ends[first].admitted;
            first += 1;
        }
        over = (sum as f64 - limit as f64).max(over);
    }
    over
}
