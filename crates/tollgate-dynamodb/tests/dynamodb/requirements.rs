//! R000, scenario by scenario, on the store it was written for.

use std::sync::Arc;

use tollgate::core::Wait;
use tollgate::policy::Period;
use tollgate::{Ask, CalendarWindow, Clock, GateExt, Limit, Policy, Span, Timestamp, TokenBucket};

use crate::{MINUTE, TABLE, TestTable, admit, deny, gemini, remaining, single, standing};

fn tokens(capacity: u64) -> Policy {
    let bucket = TokenBucket::per_minute(250_000).burst(capacity);
    Policy::new("tokens", [Limit::new("tpm", "tokens", bucket)]).unwrap()
}

/// R000.1: of 5,000 tokens 3,750 are taken at once, 1,250 remain, and no other instance can use what was taken.
#[tokio::test]
async fn r000_1_takes_from_the_shared_bucket() {
    let table = TestTable::new().await;
    let (one, other, policy) = (table.gate().await, table.gate().await, tokens(5_000));
    let permit = admit(&one, &Ask::new(&policy, "p").cost("tokens", 3_750)).await;
    assert_eq!(permit.limits[0].remaining, 1_250);
    assert_eq!(remaining(&other, &policy, "p").await, [1_250]);
    deny(&other, &Ask::new(&policy, "p").cost("tokens", 1_251)).await;
    admit(&other, &Ask::new(&policy, "p").cost("tokens", 1_250)).await;
}

/// R000.3 and conflict 10: two at the same time. With room for one, one succeeds and one is denied; with room for
/// both, both succeed. Nothing is allocated twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r000_3_two_at_the_same_time() {
    let table = TestTable::new().await;
    let policy = tokens(5_000);
    for (round, (cost, expected)) in
        [(3_000, 1), (2_500, 2)].into_iter().cycle().take(40).enumerate()
    {
        let (one, other) = (Arc::new(table.gate().await), Arc::new(table.gate().await));
        let subject = format!("round-{round}");
        let ask = |gate: &Arc<_>| {
            let (gate, policy, subject) = (Arc::clone(gate), policy.clone(), subject.clone());
            tokio::spawn(async move {
                let gate: &crate::Dynamo = &gate;
                let ask = Ask::new(&policy, subject.as_str()).cost("tokens", cost);
                gate.acquire(&ask).await.unwrap().is_admitted()
            })
        };
        let (first, second) = (ask(&one), ask(&other));
        let through = u64::from(first.await.unwrap()) + u64::from(second.await.unwrap());
        assert_eq!(through, expected, "{cost} each of 5,000");
        assert_eq!(remaining(&one, &policy, &subject).await, [5_000 - through * cost]);
    }
}

/// R000.4: a minute after it was empty the bucket is full again, once, however many look; both ways of refilling.
#[tokio::test]
async fn r000_4_is_full_again_after_a_minute() {
    let table = TestTable::new().await;
    table.clock.set(Timestamp::from_secs(1_800_000_000));
    for (subject, mode) in [
        ("continuous", TokenBucket::per_minute(5)),
        ("interval", TokenBucket::per_minute(5).at_boundaries()),
    ] {
        let policy = Policy::new(
            subject,
            [
                Limit::new("rpm", "requests", mode),
                Limit::new("tpm", "tokens", TokenBucket::per_minute(250_000)),
            ],
        )
        .unwrap();
        let gates = [table.gate().await, table.gate().await];
        let all = Ask::new(&policy, "p").cost("requests", 5).cost("tokens", 250_000);
        admit(&gates[0], &all).await;
        deny(&gates[1], &all).await;
        table.clock.advance(MINUTE);
        for gate in &gates {
            assert_eq!(remaining(gate, &policy, "p").await, [5, 250_000]);
        }
        let standing = standing(&gates[0], &policy, "p").await;
        assert_eq!(standing[0].refilled_at, Some(table.clock.now()), "the minute boundary");
        admit(&gates[1], &all).await;
        deny(&gates[0], &all).await;
    }
}

/// R000.5: 30 s bring back 2.5 requests and 125,000 tokens; the half is not lost.
#[tokio::test]
async fn r000_5_refills_in_proportion() {
    let table = TestTable::new().await;
    let (gate, policy) = (table.gate().await, gemini());
    let all = Ask::new(&policy, "p").cost("requests", 5).cost("tokens", 250_000);
    admit(&gate, &all).await;
    table.clock.advance(Span::from_secs(30));
    assert_eq!(remaining(&gate, &policy, "p").await, [2, 125_000, 20]);
    admit(&gate, &Ask::new(&policy, "p").cost("requests", 2)).await;
    let denial = deny(&gate, &Ask::new(&policy, "p")).await;
    assert_eq!(denial.retry_after(), Some(Span::from_secs(6)), "half a request was there already");
}

/// R000.6 and conflict 6: 25 a day go through, number 26 is refused with the next midnight, and the day starts afresh;
/// with headroom 1 it is number 25 that is refused, to the letter.
#[tokio::test]
async fn r000_6_counts_the_day() {
    let table = TestTable::new().await;
    let gate = table.gate().await;
    table.clock.set("2026-11-15T20:00:00Z".parse().unwrap());
    let midnight: Timestamp = "2026-11-16T08:00:00Z".parse().unwrap();
    let day = CalendarWindow::new(25, Period::Day).in_zone("America/Los_Angeles");
    let literal =
        Limit::new("rpd", "requests", day.clone()).headroom(tollgate::policy::Headroom::Units(1));
    let literal = Policy::new("literal", [literal]).unwrap();
    for (policy, allowed) in [(single(day), 25), (literal, 24)] {
        table.clock.set("2026-11-15T20:00:00Z".parse().unwrap());
        for _ in 0..allowed {
            admit(&gate, &Ask::new(&policy, "p")).await;
        }
        let denial = deny(&gate, &Ask::new(&policy, "p")).await;
        assert_eq!(denial.wait, Wait::Until(midnight));
        table.clock.set(midnight - Span::from_micros(1));
        deny(&gate, &Ask::new(&policy, "p")).await;
        table.clock.set(midnight);
        assert_eq!(remaining(&gate, &policy, "p").await, [allowed]);
        admit(&gate, &Ask::new(&policy, "p")).await;
    }
}

/// R000.7: the first ask makes the item, in one conditional write, with every limit full before it and a time to live
/// of seven days.
#[tokio::test]
async fn r000_7_creates_on_first_use() {
    let table = TestTable::new().await;
    let (gate, policy) = (table.gate().await, gemini());
    table.server.proxy().reset_counts();
    let permit = admit(&gate, &Ask::new(&policy, "p").cost("tokens", 3_750)).await;
    let left: Vec<u64> = permit.limits.iter().map(|limit| limit.remaining).collect();
    assert_eq!(left, [4, 246_250, 24]);
    let counts = table.server.proxy().counts();
    assert_eq!((counts.count("UpdateItem"), counts.requests.len()), (1, 1), "{counts:?}");
    let items = table.client().scan().table_name(TABLE).send().await.unwrap();
    let item = &items.items()[0];
    let week = table.clock.now() + Span::from_hours(7 * 24);
    assert_eq!(item["ttl"].as_n().unwrap(), &(week.as_micros() / 1_000_000).to_string());
    assert_eq!(item["pk"].as_s().unwrap(), "gemini/p");
}

/// R000.8: 10,000 − 3,750 is exactly 6,250, and a write that lost a race is done again.
#[tokio::test]
async fn r000_8_counts_exactly() {
    let table = TestTable::new().await;
    let (one, other, policy) = (table.gate().await, table.gate().await, tokens(10_000));
    // Both guess that the bucket is idle, so the second is refused first and does it again.
    admit(&one, &Ask::new(&policy, "p").cost("tokens", 3_750)).await;
    assert_eq!(remaining(&one, &policy, "p").await, [6_250]);
    table.server.proxy().reset_counts();
    admit(&other, &Ask::new(&policy, "p").cost("tokens", 250)).await;
    let counts = table.server.proxy().counts();
    assert_eq!((counts.count("UpdateItem"), counts.refused), (2, 1));
    assert_eq!(remaining(&one, &policy, "p").await, [6_000]);
}

/// R000.9: an item that is past its time to live but still there is as good as none: a fresh bucket, in one write.
#[tokio::test]
async fn r000_9_an_expired_item_counts_as_absent() {
    let table = TestTable::new().await;
    let (gate, other, policy) = (table.gate().await, table.gate().await, gemini());
    for _ in 0..5 {
        admit(&gate, &Ask::new(&policy, "p").cost("tokens", 50_000).id("same")).await;
        admit(&gate, &Ask::new(&policy, "q")).await;
    }
    table.clock.advance(Span::from_hours(8 * 24));
    let present = table.client().scan().table_name(TABLE).send().await.unwrap();
    assert_eq!(present.count(), 3, "the two entries and the id are still stored");
    assert_eq!(remaining(&gate, &policy, "p").await, [5, 250_000, 25]);
    table.server.proxy().reset_counts();
    for gate in [&gate, &other] {
        let permit = admit(gate, &Ask::new(&policy, "q")).await;
        assert_eq!(permit.grant().at, table.clock.now());
    }
    assert_eq!(remaining(&gate, &policy, "q").await, [3, 250_000, 23]);
    // The id is forgotten, so it is a new charge.
    let permit = admit(&gate, &Ask::new(&policy, "p").cost("tokens", 1).id("same")).await;
    assert_eq!(permit.limits[1].remaining, 249_999);
}
