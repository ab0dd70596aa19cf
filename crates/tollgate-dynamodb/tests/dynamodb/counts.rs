//! How many requests a decision takes, counted where they arrive.

use std::sync::Arc;

use tollgate::{Ask, Concurrency, Costs, GateExt, Limit, Policy, RollingWindow, Span, TokenBucket};

use crate::{Dynamo, MINUTE, TestTable, admit, coarse, deny, gemini, single};

/// One UpdateItem and no read for an uncontended acquire of three limits, whatever the rules; a denial takes one request.
#[tokio::test]
async fn an_acquire_is_one_write_and_no_read() {
    let table = TestTable::new().await;
    let exact = Policy::new(
        "exact",
        [
            Limit::new("rpm", "requests", RollingWindow::new(5, MINUTE)),
            Limit::new("tpm", "tokens", RollingWindow::new(250_000, MINUTE)),
            Limit::new("jobs", "requests", Concurrency::new(5, MINUTE)),
        ],
    );
    let counted = Policy::new(
        "counted",
        [
            Limit::new("rpm", "requests", RollingWindow::new(5, MINUTE).resolution(12)),
            Limit::new("tpm", "tokens", RollingWindow::new(250_000, MINUTE).resolution(12)),
            Limit::new("burst", "requests", TokenBucket::per_minute(5).at_boundaries()),
        ],
    );
    for policy in [gemini(), exact.unwrap(), counted.unwrap()] {
        let gate = table.gate().await;
        table.server.proxy().reset_counts();
        for step in 1..=5 {
            table.clock.advance(Span::from_millis(10));
            admit(&gate, &Ask::new(&policy, "p").cost("tokens", 3_750)).await;
            let counts = table.server.proxy().counts();
            assert_eq!(counts.count("UpdateItem"), step, "{}: {counts:?}", policy.name());
            assert_eq!((counts.requests.len(), counts.refused), (1, 0), "{counts:?}");
        }
        table.server.proxy().reset_counts();
        deny(&gate, &Ask::new(&policy, "p").cost("tokens", 3_750)).await;
        let total: u64 = table.server.proxy().counts().requests.values().sum();
        assert_eq!(total, 1, "{}: a denial", policy.name());
    }
}

/// A settled permit costs one write more, if there was no write in between.
#[tokio::test]
async fn a_settle_is_one_write() {
    let table = TestTable::new().await;
    let (gate, policy) = (table.gate().await, gemini());
    let permit = admit(&gate, &Ask::new(&policy, "p").cost("tokens", 3_750)).await;
    table.server.proxy().reset_counts();
    assert!(gate.settle(&permit, &Costs::new().with("tokens", 3_000)).await.unwrap());
    let counts = table.server.proxy().counts();
    assert_eq!((counts.count("UpdateItem"), counts.requests.len()), (1, 1), "{counts:?}");
}

/// Ten instances ask together 600 times, more than the limit gives. Writes that do not end in a denial are few per grant.
async fn saturate(name: &'static str, policy: Policy, pace: Span, tenths: u64) {
    let table = TestTable::new().await;
    let mut gates = Vec::new();
    for _ in 0..10 {
        gates.push(Arc::new(table.gate().await));
    }
    table.server.proxy().reset_counts();
    let (mut grants, mut denials) = (0_u64, 0_u64);
    for _ in 0..600 {
        table.clock.advance(pace);
        let asks =
            gates.iter().map(|gate| tokio::spawn(ask(Arc::clone(gate), policy.clone(), name)));
        for asked in asks.collect::<Vec<_>>() {
            match asked.await.unwrap() {
                true => grants += 1,
                false => denials += 1,
            }
        }
    }
    let counts = table.server.proxy().counts();
    let writes = counts.count("UpdateItem") - denials;
    println!(
        "{name}: {grants} grants, {denials} denials, {writes} writes that do not end in a denial: {}.{:03} per grant",
        writes / grants,
        writes * 1_000 / grants % 1_000
    );
    assert!(writes * 10 <= grants * tenths, "{name}: {writes} writes for {grants} grants");
    assert_eq!(counts.requests.len(), 1, "{name}: {counts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_instances_saturate_a_slow_bucket() {
    saturate("bucket 5/min", single(TokenBucket::per_minute(5)), Span::from_secs(2), 12).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_instances_saturate_a_fast_bucket() {
    let bucket = single(TokenBucket::per_second(20).burst(50));
    saturate("bucket 20/s", bucket, Span::from_millis(200), 12).await;
}

/// All ten see the slot expire that makes room, and one of them takes it off the sum.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_instances_saturate_a_small_grid() {
    saturate("resolution 5/min", coarse(5), Span::from_secs(2), 30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_instances_saturate_a_grid() {
    let window = single(RollingWindow::new(300, MINUTE));
    saturate("window 300/min", window, Span::from_secs(1), 20).await;
}

async fn ask(gate: Arc<Dynamo>, policy: Policy, subject: &'static str) -> bool {
    gate.acquire(&Ask::new(&policy, subject)).await.unwrap().is_admitted()
}

/// Ten instances acquire and settle on one subject at the same time: nothing is lost, no call fails, and a settle takes
/// few writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_instances_settle_on_one_subject() {
    const ROUNDS: u64 = 20;
    let table = TestTable::new().await;
    let policy =
        Policy::new("tokens", [Limit::new("tpm", "tokens", TokenBucket::per_minute(1_000_000))])
            .unwrap();
    let mut tasks = Vec::new();
    table.server.proxy().reset_counts();
    for _ in 0..10 {
        let (gate, policy) = (table.gate().await, policy.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let ask = Ask::new(&policy, "p").cost("tokens", 100);
                let permit = gate.acquire(&ask).await.unwrap().into_permit().unwrap();
                assert!(gate.settle(&permit, &Costs::new().with("tokens", 60)).await.unwrap());
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let writes = table.server.proxy().counts().count("UpdateItem");
    let calls = 2 * 10 * ROUNDS;
    println!("{calls} acquires and settles of ten instances: {writes} writes");
    let gate = table.gate().await;
    assert_eq!(crate::remaining(&gate, &policy, "p").await, [1_000_000 - 10 * ROUNDS * 60]);
}
