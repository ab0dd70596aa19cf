//! Limiters that are wrong in one way each, on the same server. Tests that pass them are worth nothing.

use std::sync::Arc;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::AttributeValue;
use tokio::sync::Barrier;
use tollgate::clock::ManualClock;
use tollgate::{Ask, Clock, GateExt, Span, TokenBucket};

use crate::{Dynamo, TABLE, TestTable, single};

/// 5 a minute: 12 s for each.
const STEP: u64 = 12_000_000;
const CAPACITY: u64 = 5;
const TASKS: usize = 64;

enum Limiter {
    /// The real one.
    Real(Box<Dynamo>),
    /// Adds to the time at which the bucket is full, or to now if it is missing: an idle bucket banks credit.
    OneBranch(Client),
    /// Reads, decides, and writes what it decided on the old state.
    ReadThenWrite(Client),
}

impl Limiter {
    async fn take(&self, subject: &str, clock: &ManualClock) -> bool {
        let now = clock.now().as_micros();
        let most = now + (CAPACITY - 1) * STEP;
        match self {
            Self::Real(gate) => {
                let policy = single(TokenBucket::per_minute(CAPACITY));
                gate.acquire(&Ask::new(&policy, subject)).await.unwrap().is_admitted()
            }
            Self::OneBranch(client) => client
                .update_item()
                .table_name(TABLE)
                .key("pk", text(subject))
                .update_expression("SET t = if_not_exists(t, :now) + :step")
                .condition_expression("attribute_not_exists(t) OR t <= :most")
                .expression_attribute_values(":now", number(now))
                .expression_attribute_values(":step", number(STEP))
                .expression_attribute_values(":most", number(most))
                .send()
                .await
                .is_ok(),
            Self::ReadThenWrite(client) => {
                let read = client.get_item().table_name(TABLE).key("pk", text(subject));
                let item = read.consistent_read(true).send().await.unwrap().item;
                let full_at =
                    item.and_then(|item| item["t"].as_n().ok()?.parse().ok()).unwrap_or(now);
                let full_at: u64 = full_at.max(now);
                if most < full_at {
                    return false;
                }
                let write = client.put_item().table_name(TABLE).item("pk", text(subject));
                write.item("t", number(full_at + STEP)).send().await.unwrap();
                true
            }
        }
    }
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

fn number(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// How many are admitted at once after an idle hour.
async fn after_an_idle_hour(limiter: &Limiter, clock: &ManualClock) -> u64 {
    limiter.take("idle", clock).await;
    clock.advance(Span::from_hours(1));
    let mut through = 0;
    while through < 1_000 && limiter.take("idle", clock).await {
        through += 1;
    }
    through
}

/// How many of many get through at the same moment.
async fn all_at_once(limiter: &Arc<Limiter>, clock: &ManualClock) -> usize {
    let barrier = Arc::new(Barrier::new(TASKS));
    let tasks = (0..TASKS).map(|_| {
        let (limiter, barrier, clock) = (Arc::clone(limiter), Arc::clone(&barrier), clock.clone());
        tokio::spawn(async move {
            barrier.wait().await;
            limiter.take("rush", &clock).await
        })
    });
    let mut through = 0;
    for task in tasks.collect::<Vec<_>>() {
        through += usize::from(task.await.unwrap());
    }
    through
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sabotaged_limiters_are_caught() {
    let table = TestTable::new().await;
    let real = Arc::new(Limiter::Real(Box::new(table.gate().await)));
    assert_eq!(after_an_idle_hour(&real, &table.clock).await, CAPACITY);
    assert_eq!(all_at_once(&real, &table.clock).await, 5);

    let table = TestTable::new().await;
    let one_branch = Limiter::OneBranch(table.client());
    let through = after_an_idle_hour(&one_branch, &table.clock).await;
    println!("one branch: {through} after an idle hour");
    assert!(CAPACITY < through);

    let table = TestTable::new().await;
    let read_then_write = Arc::new(Limiter::ReadThenWrite(table.client()));
    let through = all_at_once(&read_then_write, &table.clock).await;
    println!("read, then write: {through} at once");
    assert!(5 < through);
}
