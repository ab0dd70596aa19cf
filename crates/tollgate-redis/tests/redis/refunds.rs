//! Giving back to a token bucket: what time has not given back already.

use tollgate::clock::ManualClock;
use tollgate::core::Operation;
use tollgate::gate::Outcome;
use tollgate::{Ask, Clock, Costs, GateExt, Limit, Permit, Policy, Span, TokenBucket};
use tollgate_redis::Options;

use crate::agreement::{Both, draws};
use crate::{admitted, open_at, server, used};

fn bucket(capacity: u64, per_second: u64) -> Policy {
    let rule = TokenBucket::per_second(per_second).burst(capacity);
    Policy::new("bucket", [Limit::new("burst", "tokens", rule)]).unwrap()
}

/// A slow call gets its whole estimate back as long as the bucket was never empty since.
#[tokio::test]
async fn slow_calls_are_refunded() {
    let (redis, clock) = (server(), ManualClock::new());
    let gate = open_at(Options::single(redis.url()), &clock).await;
    let policy = bucket(100, 10);
    let ask = |subject: &'static str, cost| Ask::new(&policy, subject).cost("tokens", cost);
    admitted(gate.acquire(&ask("released", 80)).await.unwrap());
    let released = admitted(gate.acquire(&ask("released", 20)).await.unwrap());
    let settled = admitted(gate.acquire(&ask("settled", 50)).await.unwrap());
    admitted(gate.acquire(&ask("settled", 50)).await.unwrap());
    clock.advance(Span::from_secs(2));
    assert!(gate.release(&released).await.unwrap());
    assert_eq!(used(&gate, &policy, "released").await, 60);
    clock.advance(Span::from_secs(1));
    assert!(gate.settle(&settled, &Costs::new().with("tokens", 20)).await.unwrap());
    assert_eq!(used(&gate, &policy, "settled").await, 40);
}

/// Taking 10, waiting until they are back, taking 10 and releasing the first makes no room for more.
#[tokio::test]
async fn what_time_gave_back_is_not_given_back_again() {
    let (redis, clock) = (server(), ManualClock::new());
    let gate = open_at(Options::single(redis.url()), &clock).await;
    let (policy, take) = (bucket(10, 1), |policy| Ask::new(policy, "p").cost("tokens", 10));
    let first = admitted(gate.acquire(&take(&policy)).await.unwrap());
    clock.advance(Span::from_secs(10));
    admitted(gate.acquire(&take(&policy)).await.unwrap());
    assert!(gate.release(&first).await.unwrap());
    assert!(!gate.acquire(&take(&policy)).await.unwrap().is_admitted());
}

/// An ask without refund leaves no record, so that its entry stays small, and gets nothing back.
#[tokio::test]
async fn an_ask_without_refund_starts_no_record() {
    let (redis, clock) = (server(), ManualClock::new());
    let gate = open_at(Options::single(redis.url()), &clock).await;
    let policy = bucket(100, 10);
    let key = gate.key(&policy, "p");
    let bytes =
        || -> u64 { redis.command(&["hstrlen", &key, "e"]).unwrap().trim().parse().unwrap() };
    let plain = Ask::new(&policy, "p").cost("tokens", 10).without_refund();
    let mut sizes = Vec::new();
    let permit = admitted(gate.acquire(&plain).await.unwrap());
    sizes.push(bytes());
    admitted(gate.acquire(&plain).await.unwrap());
    sizes.push(bytes());
    assert!(gate.release(&permit).await.unwrap());
    assert_eq!(used(&gate, &policy, "p").await, 20);
    let refunded =
        admitted(gate.acquire(&Ask::new(&policy, "p").cost("tokens", 10)).await.unwrap());
    sizes.push(bytes());
    // The record goes on until the bucket was empty, whichever client asks.
    admitted(gate.acquire(&plain).await.unwrap());
    sizes.push(bytes());
    assert_eq!(sizes, [76, 76, 90, 104]);
    assert!(gate.release(&refunded).await.unwrap());
    assert_eq!(used(&gate, &policy, "p").await, 30);
    clock.advance(Span::from_secs(3));
    admitted(gate.acquire(&plain).await.unwrap());
    assert_eq!(bytes(), 76);
}

/// Hundreds in flight on a large bucket, with more lows than are recorded, extra costs, debt, changed capacities and rates:
/// every answer is the core's.
#[tokio::test]
async fn hundreds_in_flight_are_refunded_as_in_the_core() {
    let redis = server();
    for seed in 1..=3 {
        let mut both = Both::new(&redis).await;
        let mut draw = draws(seed);
        let [wide, narrow, slow] = [(1_000_000, 5_000), (900_000, 5_000), (1_000_000, 4_999)]
            .map(|(capacity, rate)| bucket(capacity, rate));
        let mut permits: Vec<Permit> = Vec::new();
        for step in 0..2_500_u64 {
            both.clock.advance(Span::from_micros(draw(if seed == 1 { 40_000 } else { 2_000_000 })));
            if draw(200) == 0 {
                both.clock.advance(Span::from_secs(120));
            }
            let policy = match draw(60) {
                0 => &slow,
                1 | 2 => &narrow,
                _ => &wide,
            };
            let mut ask = Ask::new(policy, "p").cost("tokens", draw(4) * draw(6_000));
            if draw(5) == 0 {
                ask = ask.without_refund();
            }
            let place = usize::try_from(draw(permits.len() as u64 + 1)).unwrap();
            let permit = permits.get(place).cloned();
            match (draw(12), permit) {
                (0..=5, _) | (_, None) => {
                    permits.extend(both.acquire(&ask).await.unwrap().into_permit());
                }
                (6, _) => {
                    let got = both.gate.charge(&ask).await.unwrap();
                    let expected = both.core.run(both.clock.now(), &Operation::Charge(&ask));
                    assert_eq!(Outcome::Permitted(got.clone()), expected.unwrap(), "step {step}");
                    permits.push(got);
                }
                (7..=9, Some(permit)) => {
                    let actual = Costs::new().with("tokens", draw(12_000));
                    both.settle(&permit, &actual).await;
                    permits.swap_remove(place);
                }
                (_, Some(permit)) => {
                    both.release(&permit).await;
                    permits.swap_remove(place);
                }
            }
            both.standing(policy).await;
        }
        redis.command(&["flushall"]).unwrap();
    }
}
