//! Rolling windows on a grid: a sum, and a counter for each slot.

use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::{Ask, Clock, Costs, ErrorKind, GateExt, Limit, Permit, Policy, RollingWindow, Span};
use tollgate_dynamodb::{DynamoDb, SLOTS_PER_WINDOW_MAX};

use crate::{Dynamo, TABLE, TestTable, admit, coarse, deny, remaining, single};

/// The bytes that the service bills for an item: names and values.
fn bytes(item: &std::collections::HashMap<String, AttributeValue>) -> usize {
    let value = |value: &AttributeValue| match value {
        AttributeValue::N(number) => 1 + number.len().div_ceil(2),
        AttributeValue::S(text) => text.len(),
        AttributeValue::B(bytes) => bytes.as_ref().len(),
        _ => 0,
    };
    item.iter().map(|(name, of)| name.len() + value(of)).sum()
}

async fn item(table: &TestTable, key: &str) -> std::collections::HashMap<String, AttributeValue> {
    let read = table.client().get_item().table_name(TABLE);
    let read = read.key("pk", AttributeValue::S(key.to_owned())).consistent_read(true);
    read.send().await.unwrap().item.unwrap()
}

/// Three instances ask for two subjects, 300 times a second, below the limit: all are admitted, and few write twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_instances_below_the_limit_never_contend() {
    const ROUNDS: u64 = 150;
    let table = TestTable::new().await;
    // 3,200 per 10 s is a little more than the 150 a second that each subject gets.
    let policy = single(RollingWindow::new(3_200, Span::from_secs(10)));
    let mut gates = Vec::new();
    for _ in 0..3 {
        gates.push(Arc::new(table.gate().await));
    }
    table.server.proxy().reset_counts();
    for _ in 0..ROUNDS {
        // Twelve asks at once, every 40 ms.
        table.clock.advance(Span::from_millis(40));
        let asks = (0..12).map(|number| {
            let (gate, policy) = (Arc::clone(&gates[number % 3]), policy.clone());
            tokio::spawn(async move {
                let subject = if number < 6 { "one" } else { "other" };
                gate.acquire(&Ask::new(&policy, subject)).await.unwrap().is_admitted()
            })
        });
        for ask in asks.collect::<Vec<_>>() {
            assert!(ask.await.unwrap());
        }
    }
    let counts = table.server.proxy().counts();
    println!("{} asks: {counts:?}", ROUNDS * 12);
    for subject in ["one", "other"] {
        assert_eq!(remaining(&gates[0], &policy, subject).await, [3_200 - ROUNDS * 6]);
    }
    assert_eq!(counts.requests.len(), 1, "no read: {counts:?}");
    assert!(counts.count("UpdateItem") < ROUNDS * 12 * 13 / 10, "{counts:?}");
}

/// Evenly spaced demand at 95 % of the limit is never refused, and at 100 % at least 98 % of it goes through.
#[tokio::test]
async fn evenly_spaced_demand_uses_the_window() {
    let table = TestTable::new().await;
    let policy = single(RollingWindow::new(20_000, Span::from_secs(10)));
    for (subject, percent) in [("most", 95), ("all", 100)] {
        let (one, other) = (table.gate().await, table.gate().await);
        // Lots of 100, so that three windows are a few hundred asks.
        let pace = Span::from_micros(10_000_000 * 100 / 20_000 * 100 / percent);
        let (asks, mut through) = (3 * 200 * percent / 100, 0);
        for number in 0..asks {
            table.clock.advance(pace);
            let gate = if number % 2 == 0 { &one } else { &other };
            let ask = Ask::new(&policy, subject).cost("requests", 100);
            through += u64::from(gate.acquire(&ask).await.unwrap().is_admitted());
        }
        println!("{percent} %: {through} of {asks}");
        assert!(asks * if percent == 95 { 100 } else { 98 } <= through * 100, "{percent} %");
    }
    // The sum is the total of the slots, all of which count or expired a moment ago.
    let item = item(&table, "single/all").await;
    let number = |name: &str| item[name].as_n().unwrap().parse::<u64>().unwrap();
    let slots: Vec<&String> = item.keys().filter(|name| name.starts_with("j0.")).collect();
    assert_eq!(slots.iter().map(|name| number(name)).sum::<u64>(), number("q0"));
    assert!(slots.len() <= 66 + 8, "{}", slots.len());
    println!("a grid of {} slots: {} bytes", slots.len(), bytes(&item));
    assert!(bytes(&item) < 1_024, "{} bytes", bytes(&item));
}

/// What was admitted in many slots and is released leaves nothing used.
#[tokio::test]
async fn releasing_everything_leaves_nothing() {
    let table = TestTable::new().await;
    let policy = single(RollingWindow::new(20_000, Span::from_secs(60)));
    let (one, other) = (table.gate().await, table.gate().await);
    let mut permits: Vec<Permit> = Vec::new();
    for number in 0..300 {
        table.clock.advance(Span::from_millis(100));
        let gate = if number % 2 == 0 { &one } else { &other };
        permits.push(admit(gate, &Ask::new(&policy, "p").cost("requests", 10)).await);
    }
    assert_eq!(remaining(&one, &policy, "p").await, [17_000]);
    for (number, permit) in permits.iter().enumerate() {
        let gate = if number % 3 == 0 { &one } else { &other };
        assert!(gate.release(permit).await.unwrap());
    }
    assert_eq!(remaining(&other, &policy, "p").await, [20_000]);
    admit(&one, &Ask::new(&policy, "p").cost("requests", 20_000)).await;
    deny(&other, &Ask::new(&policy, "p")).await;
}

/// Slots expire while instances hold different views, one of them with a clock that is behind: nothing is lost or counted
/// twice, and after a long pause the whole limit is there again.
#[tokio::test]
async fn expired_slots_are_subtracted_once() {
    let table = TestTable::new().await;
    let policy = single(RollingWindow::new(1_000, Span::from_millis(640)));
    let late = Arc::new(tollgate::clock::ManualClock::at(table.clock.now()));
    let gates = [table.gate().await, table.gate().await, table.gate().await];
    for round in 0..200_u64 {
        table.clock.advance(Span::from_micros(7_013));
        // One that has seen nothing yet decides at its own time, in a slot that expires or has expired.
        late.set(table.clock.now() - Span::from_millis(580 + round % 8 * 20));
        let behind = crate::connect(table.options().clock(late.clone())).await;
        behind.acquire(&Ask::new(&policy, "p").cost("requests", 2)).await.unwrap();
        let gate = &gates[usize::try_from(round % 3).unwrap()];
        gate.acquire(&Ask::new(&policy, "p").cost("requests", 3)).await.unwrap();
        if round % 50 == 49 {
            table.clock.advance(Span::from_secs(5));
            late.set(table.clock.now());
        }
        let item = item(&table, "single/p").await;
        let number = |name: &str| item[name].as_n().unwrap().parse::<u64>().unwrap();
        let slots: Vec<&String> = item.keys().filter(|name| name.starts_with("j0.")).collect();
        assert_eq!(slots.iter().map(|name| number(name)).sum::<u64>(), number("q0"), "{round}");
        let slot =
            |name: &String| name[3..].bytes().fold(0, |slot, digit| slot * 64 + value(digit));
        let below = slots.iter().filter(|name| slot(name) < number("f0")).count();
        assert_eq!(below, 0, "{round}");
    }
    table.clock.advance(Span::from_secs(1));
    for gate in &gates {
        assert_eq!(remaining(gate, &policy, "p").await, [1_000]);
    }
    admit(&gates[1], &Ask::new(&policy, "p").cost("requests", 1_000)).await;
}

/// The value of a digit in the name of a slot.
fn value(digit: u8) -> u64 {
    let digits = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz-";
    digits.iter().position(|other| *other == digit).unwrap() as u64
}

/// A window of more slots than an expression holds is refused before anything is asked, with what would be right.
#[tokio::test]
async fn too_fine_a_grid_is_refused() {
    let table = TestTable::new().await;
    let gate = table.gate().await;
    let rule = |slots| single(RollingWindow::new(5_000, Span::from_secs(100)).resolution(slots));
    assert!(DynamoDb::check(&rule(64)).is_ok());
    table.server.proxy().reset_counts();
    let error = gate.acquire(&Ask::new(&rule(100), "p")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    for word in ["only", "single", "100 slots", &SLOTS_PER_WINDOW_MAX.to_string(), "resolution"] {
        assert!(error.to_string().contains(word), "{word:?} is not in: {error}");
    }
    assert!(gate.standing(&rule(100), "p").await.is_err());
    assert_eq!(table.server.proxy().counts().requests.len(), 0);
    let limits = (0..3).map(|place| {
        Limit::new(format!("l{place}"), "jobs", tollgate::Concurrency::new(10_000, crate::MINUTE))
    });
    let error = DynamoDb::check(&Policy::new("jobs", limits).unwrap()).unwrap_err();
    assert!(error.to_string().contains("concurrency"), "{error}");
}

/// An item of format 1, with overlapping counters, ids and fixed-width lists, counts on and is written anew.
#[tokio::test]
async fn an_item_of_format_1_counts_on() {
    let table = TestTable::new().await;
    let (gate, policy) = (table.gate().await, coarse(5));
    table.clock.set(tollgate::Timestamp::from_secs(1_800_000_001));
    let now = table.clock.now().as_micros();
    // Twelve slots of 5 s: 3 charged in the slot before this one, 1 in this one.
    let slot = now / 5_000_000;
    let mut write = table.client().put_item().table_name(TABLE);
    let number = |number: u64| AttributeValue::N(number.to_string());
    for counter in slot - 13..=slot {
        let used = u64::from(counter < slot) * 3 + u64::from(slot - 13 < counter);
        write = write.item(format!("w0.{counter}"), number(used));
    }
    let shape = [&[1], policy.shape_bytes()].concat();
    write = write
        .item("pk", AttributeValue::S("single/p".to_owned()))
        .item("sh", AttributeValue::B(shape.into()))
        .item("v", number(now))
        .item("n", number(now + 2))
        .item("a", number(now))
        .item("ttl", number(now / 1_000_000 + 604_800))
        .item("x:old", number(now + 120_000_000))
        .item("s:old", number(now))
        .item("r:old", AttributeValue::S(format!("{now};requests=3")))
        .item("z", AttributeValue::B([0_u64, now, now, now].map(u64::to_le_bytes).concat().into()));
    write.send().await.unwrap();
    assert_eq!(remaining(&gate, &policy, "p").await, [1]);
    let permit = admit(&gate, &Ask::new(&policy, "p")).await;
    assert_eq!(permit.grant().stamp, now + 2);
    deny(&gate, &Ask::new(&policy, "p")).await;
    let item = item(&table, "single/p").await;
    let old = item.keys().filter(|name| name.starts_with('w') || name.contains(':'));
    assert_eq!(old.count(), 0, "{:?}", item.keys());
    assert_eq!(item["sh"].as_b().unwrap().as_ref()[0], 2);
    // The three expire with the slot before this one, one slot earlier than the rest.
    table.clock.set(tollgate::Timestamp::from_micros(slot * 5_000_000 + 60_000_000));
    assert_eq!(remaining(&gate, &policy, "p").await, [3]);
}

/// The bytes of small items, printed for the README.
#[tokio::test]
async fn items_are_small() {
    let table = TestTable::new().await;
    let gate: Dynamo = table.gate().await;
    let bucket = single(tollgate::TokenBucket::per_minute(1_000));
    let permit = admit(&gate, &Ask::new(&bucket, "bucket").cost("requests", 5)).await;
    println!("a bucket: {} bytes", bytes(&item(&table, "single/bucket").await));
    admit(&gate, &Ask::new(&bucket, "bucket").cost("requests", 5)).await;
    assert!(gate.settle(&permit, &Costs::new().with("requests", 2)).await.unwrap());
    println!("a bucket after a settle: {} bytes", bytes(&item(&table, "single/bucket").await));
    let exact = single(RollingWindow::new(128, crate::MINUTE));
    for _ in 0..128 {
        table.clock.advance(Span::from_millis(400));
        admit(&gate, &Ask::new(&exact, "log")).await;
    }
    let log = bytes(&item(&table, "single/log").await);
    println!("an exact log of 128: {log} bytes");
    assert!(log < 1_024, "{log} bytes");
}
