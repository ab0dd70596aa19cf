//! Giving back: what a bucket credits after charges that recorded nothing, and many permits in flight.

use std::collections::VecDeque;
use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::clock::SystemClock;
use tollgate::gate::{Operation, Outcome};
use tollgate::internal::timeout;
use tollgate::{
    Ask, Clock, Costs, Decision, ErrorKind, GateExt, Permit, Policy, RollingWindow, Span, Standing,
    Timestamp, TokenBucket,
};
use tollgate_conformance::script::SingleEntry;

use crate::formats::old_gate;
use crate::{Dynamo, TestTable, admit, remaining, single, standing};

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Refill that would have come without the charge as well is no reason to give less back.
#[tokio::test]
async fn a_slow_call_gets_back_what_it_did_not_use() {
    let table = TestTable::new().await;
    let (one, other) = (table.gate().await, table.gate().await);
    let policy = single(TokenBucket::per_second(10).burst(100));
    let take = |subject: &'static str, cost| Ask::new(&policy, subject).cost("requests", cost);
    admit(&one, &take("p", 80)).await;
    let last = admit(&one, &take("p", 20)).await;
    admit(&one, &take("q", 50)).await;
    let estimate = admit(&one, &take("q", 50)).await;
    table.clock.advance(Span::from_secs(2));
    assert!(other.release(&last).await.unwrap());
    assert_eq!(remaining(&one, &policy, "p").await, [40]);
    table.clock.advance(Span::from_secs(1));
    assert!(other.settle(&estimate, &Costs::new().with("requests", 20)).await.unwrap());
    assert_eq!(remaining(&one, &policy, "q").await, [60]);
}

/// A run of charges without a settle between them is given back whole, by the instance that charged them.
#[tokio::test]
async fn a_run_of_charges_is_given_back_whole() {
    let table = TestTable::new().await;
    let gate = table.gate().await;
    let policy = single(TokenBucket::per_second(10).burst(1_000));
    let mut permits = Vec::new();
    for _ in 0..40 {
        table.clock.advance(Span::from_millis(100));
        permits.push(admit(&gate, &Ask::new(&policy, "p").cost("requests", 20)).await);
    }
    table.clock.advance(Span::from_secs(10));
    assert_eq!(remaining(&gate, &policy, "p").await, [339]);
    for permit in permits.iter().rev() {
        assert!(gate.settle(permit, &Costs::new().with("requests", 15)).await.unwrap());
    }
    // Had 15 been charged each time, 600 less 139 of refill would be used.
    assert_eq!(remaining(&gate, &policy, "p").await, [539]);
}

/// Callers that take and give back from 90 used find room, though charges by expression come between.
#[tokio::test]
async fn taking_and_giving_back_below_the_limit_is_never_refused() {
    let table = TestTable::new().await;
    let policy = single(TokenBucket::per(1, Span::from_hours(1)).burst(100));
    let gates = [table.gate().await, table.gate().await];
    admit(&gates[0], &Ask::new(&policy, "p").cost("requests", 90)).await;
    let mut held: VecDeque<Permit> = VecDeque::new();
    for call in 0..300 {
        table.clock.advance(Span::from_millis(17));
        held.push_back(admit(&gates[call % 2], &Ask::new(&policy, "p").cost("requests", 2)).await);
        if held.len() == 4 {
            let oldest = held.pop_front().unwrap();
            assert!(gates[call % 2].release(&oldest).await.unwrap());
        }
    }
}

/// Random stories on several instances beside the core, which is exact: whatever a bucket admits here the core admits, no
/// standing here is ever looser, and no credit is less than what the age of its charge alone allows.
#[tokio::test]
async fn credits_are_never_looser_than_the_core() {
    let table = TestTable::new().await;
    let gates = [table.gate().await, table.gate().await, table.gate().await];
    // A charge proves how low the bucket cannot have been.
    let floor =
        |estimate: u64, actual: u64, age: u64| estimate.saturating_sub(age).min(estimate - actual);
    compare_credits(&table, &gates, floor).await;
}

/// The same in format 1, where nothing is recorded for giving back: a credit is what has not refilled since the charge.
#[tokio::test]
async fn credits_in_format_1_are_never_looser_than_the_core() {
    let table = TestTable::new().await;
    let gates = [old_gate(&table).await, old_gate(&table).await, old_gate(&table).await];
    let floor = |estimate: u64, actual: u64, age: u64| (estimate - actual).saturating_sub(age);
    compare_credits(&table, &gates, floor).await;
}

/// `floor` is the least credit of a charge, for an estimate, an actual cost and an age in microseconds of refill.
async fn compare_credits(
    table: &TestTable,
    gates: &[Dynamo; 3],
    floor: impl Fn(u64, u64, u64) -> u64,
) {
    let (mut credits, mut less) = (0, 0);
    for seed in 1..=24_u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let capacity = 10_u64.pow(1 + u32::try_from(seed % 6).unwrap());
        let per_second = capacity.div_ceil(1 + dice.roll(40));
        let policy = single(TokenBucket::per_second(per_second).burst(capacity));
        let (subject, mut core) = (format!("p{seed}"), SingleEntry::default());
        let mut held: Vec<(Permit, Permit)> = Vec::new();
        for _ in 0..60 {
            table.clock.advance(Span::from_micros(dice.roll(3) * dice.roll(1_500_000)));
            let now = table.clock.now();
            let gate = &gates[usize::try_from(dice.roll(3)).unwrap()];
            if held.is_empty() || dice.roll(5) < 3 {
                let cost = 1 + dice.roll(capacity.div_ceil(6));
                let ask = Ask::new(&policy, subject.as_str()).cost("requests", cost);
                let Decision::Admitted(here) = gate.acquire(&ask).await.unwrap() else { continue };
                let there = core.run(now, &Operation::Acquire(&ask)).unwrap();
                let Outcome::Decided(Decision::Admitted(there)) = there else {
                    panic!("seed {seed}: admitted here, {there:?} by the core")
                };
                held.push((here, there));
            } else {
                let place = usize::try_from(dice.roll(held.len() as u64)).unwrap();
                let (here, there) = held.swap_remove(place);
                let (estimate, actual) = (here.costs().get("requests").unwrap(), dice.roll(2));
                let actual = actual * dice.roll(here.costs().get("requests").unwrap() + 2);
                let before = used_for(&standing(gate, &policy, &subject).await, now);
                let costs = Costs::new().with("requests", actual);
                assert!(gate.settle(&here, &costs).await.unwrap());
                core.run(now, &Operation::Settle(&there, &costs)).unwrap();
                let after = used_for(&standing(gate, &policy, &subject).await, now);
                if actual < estimate {
                    let micros = |tokens: u64| tokens * 1_000_000 / per_second;
                    let age = now.since(here.grant().at).as_micros();
                    let floor = floor(micros(estimate), micros(actual), age).min(before);
                    assert!(floor <= before - after + 1, "seed {seed}: {floor} {before} {after}");
                    credits += 1;
                }
            }
            let (here, there) =
                (standing(gate, &policy, &subject).await, expected(&mut core, &policy, now));
            let (here, there) = (used_for(&here, now), used_for(&there, now));
            assert!(there <= here, "seed {seed}: {here} here, {there} by the core");
            less += u64::from(there < here);
        }
    }
    println!("{credits} credits; after {less} steps the core had more room");
}

fn expected(core: &mut SingleEntry, policy: &Policy, now: Timestamp) -> Vec<Standing> {
    match core.run(now, &Operation::Standing { policy, subject: "any" }).unwrap() {
        Outcome::Standings(standings) => standings,
        other => panic!("{other:?}"),
    }
}

/// How long the bucket needs to be full again, in microseconds.
fn used_for(standings: &[Standing], now: Timestamp) -> u64 {
    standings[0].full_at.map_or(0, |full_at| full_at.since(now).as_micros())
}

/// How many permits may be in flight on one subject.
const IN_FLIGHT: usize = tollgate::core::bounds::SETTLED_RUNS_MAX_SHARED;
const TASKS: usize = 64;

/// Admits [`IN_FLIGHT`] permits of one subject from [`TASKS`] tasks, and returns them in random order.
async fn fill(gates: &[Arc<Dynamo>], policy: &Policy) -> Vec<Permit> {
    let tasks = (0..TASKS).map(|task| {
        let (gate, policy) = (Arc::clone(&gates[task % gates.len()]), policy.clone());
        tokio::spawn(async move {
            let mut permits = Vec::new();
            for _ in (task..IN_FLIGHT).step_by(TASKS) {
                permits.push(admit(&gate, &Ask::new(&policy, "p")).await);
            }
            permits
        })
    });
    let mut permits = Vec::with_capacity(IN_FLIGHT);
    for task in tasks.collect::<Vec<_>>() {
        permits.extend(task.await.unwrap());
    }
    let mut dice = Dice(7);
    for place in (1..permits.len()).rev() {
        permits.swap(place, usize::try_from(dice.roll(place as u64 + 1)).unwrap());
    }
    permits
}

/// Settles every permit at nothing from [`TASKS`] tasks over `gates`; each must be the first to.
async fn settle_all(gates: &[Arc<Dynamo>], permits: &[Permit]) {
    let tasks = (0..TASKS).map(|task| {
        let gate = Arc::clone(&gates[task % gates.len()]);
        let own: Vec<Permit> = permits.iter().skip(task).step_by(TASKS).cloned().collect();
        tokio::spawn(async move {
            for permit in own {
                assert!(gate.settle(&permit, &Costs::new().with("requests", 0)).await.unwrap());
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// As many permits in flight as a shared store keeps are settled in random order by many tasks: exactly, each once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_in_flight_settle_in_any_order() {
    let table = TestTable::new().await;
    let policy = single(RollingWindow::new(20_000, Span::from_hours(1)));
    let gates = [Arc::new(table.gate().await)];
    let permits = fill(&gates, &policy).await;
    assert_eq!(remaining(&gates[0], &policy, "p").await, [10_000]);
    settle_all(&gates, &permits).await;
    assert_eq!(remaining(&gates[0], &policy, "p").await, [20_000]);
    for permit in permits.iter().step_by(997) {
        assert!(!gates[0].release(permit).await.unwrap(), "settled before");
    }
}

/// Two instances that know nothing of each other settle together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_settle_ten_thousand_in_any_order() {
    let table = TestTable::new().await;
    let policy = single(RollingWindow::new(20_000, Span::from_hours(1)));
    let gates = [Arc::new(table.gate().await), Arc::new(table.gate().await)];
    let permits = fill(&gates, &policy).await;
    settle_all(&gates, &permits).await;
    assert_eq!(remaining(&gates[0], &policy, "p").await, [20_000]);
    for permit in permits.iter().step_by(997) {
        assert!(!gates[1].release(permit).await.unwrap(), "settled before");
    }
}

/// Of settles that are written together, one that is invalid fails alone, and each gets its own answer.
#[tokio::test]
async fn an_invalid_settle_fails_alone() {
    let table = TestTable::new().await;
    let gate = Arc::new(table.gate().await);
    let policy = single(TokenBucket::per_minute(100));
    let mut permits = Vec::new();
    for _ in 0..20 {
        permits.push(admit(&gate, &Ask::new(&policy, "p")).await);
    }
    let twice = permits[3].clone();
    assert!(gate.release(&twice).await.unwrap());
    let settles = permits.into_iter().enumerate().map(|(place, permit)| {
        let gate = Arc::clone(&gate);
        let costs = Costs::new().with(if place == 7 { "miles" } else { "requests" }, 0);
        tokio::spawn(async move { gate.settle(&permit, &costs).await })
    });
    for (place, answer) in settles.collect::<Vec<_>>().into_iter().enumerate() {
        match (place, answer.await.unwrap()) {
            (7, answer) => assert_eq!(answer.unwrap_err().kind(), ErrorKind::Invalid),
            (_, answer) => assert_eq!(answer.unwrap(), place != 3, "{place}"),
        }
    }
    assert_eq!(remaining(&gate, &policy, "p").await, [99]);
}

/// A caller that is cancelled while it writes for others takes nothing from them: each settle is answered as the first one
/// that it is, whether the write had been applied or not.
#[tokio::test]
async fn a_cancelled_caller_loses_no_other_settle() {
    let table = TestTable::new().await;
    let gate = table.gate().await;
    let policy = single(RollingWindow::new(1_000, Span::from_hours(1)));
    let nothing = Costs::new().with("requests", 0);
    for patience in (0..30).map(Span::from_millis) {
        let mut permits = Vec::new();
        for _ in 0..4 {
            permits.push(admit(&gate, &Ask::new(&policy, "p")).await);
        }
        // The first has the turn; the others wait, and the second leads them.
        let settle = |place: usize| gate.settle(&permits[place], &nothing);
        let leads = timeout(&SystemClock, patience, settle(1));
        let (first, _, third, fourth) = tokio::join!(settle(0), leads, settle(2), settle(3));
        assert!(first.unwrap() && third.unwrap() && fourth.unwrap(), "{patience:?}");
        settle(1).await.unwrap();
    }
    assert_eq!(remaining(&gate, &policy, "p").await, [1_000]);
}

/// Where too many permits wait to be settled, an ask that may be given back is Contended and charges nothing; one that never
/// is goes through.
#[tokio::test]
async fn too_many_in_flight_are_contended_when_they_ask() {
    let table = TestTable::new().await;
    let (one, other) = (table.gate().await, table.gate().await);
    let policy = single(TokenBucket::per_minute(5));
    admit(&one, &Ask::new(&policy, "p")).await;
    // What a settle writes at the bound.
    let until = (table.clock.now() + Span::from_secs(2)).as_micros();
    let write = table.client().update_item().table_name(crate::TABLE);
    let write = write.key("pk", AttributeValue::S("single/p".to_owned()));
    let write = write.update_expression("SET u = :u");
    let write = write.expression_attribute_values(":u", AttributeValue::N(until.to_string()));
    write.send().await.unwrap();
    for gate in [&one, &other] {
        for ask in [Ask::new(&policy, "p"), Ask::new(&policy, "p").id("given")] {
            let error = gate.acquire(&ask).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
            assert!(error.to_string().contains("10000 permits"), "{error}");
        }
    }
    assert_eq!(remaining(&other, &policy, "p").await, [4]);
    admit(&one, &Ask::new(&policy, "p").without_refund()).await;
    table.clock.advance(Span::from_secs(2));
    admit(&other, &Ask::new(&policy, "p")).await;
    assert_eq!(remaining(&one, &policy, "p").await, [2]);
}
