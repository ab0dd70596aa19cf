//! Guesses that are wrong, both ways, and what an item says when its numbers change under a writer.

use tollgate::{Ask, Costs, GateExt, Limit, Policy, RollingWindow, Span, TokenBucket};

use crate::{MINUTE, TestTable, admit, coarse, deny, remaining, single};

/// Guessed idle, and it was busy: the write is refused, and done again the other way.
#[tokio::test]
async fn an_idle_guess_that_is_wrong_is_made_good() {
    let table = TestTable::new().await;
    let (one, other, policy) =
        (table.gate().await, table.gate().await, single(TokenBucket::per_minute(5)));
    admit(&one, &Ask::new(&policy, "p")).await;
    table.server.proxy().reset_counts();
    let permit = admit(&other, &Ask::new(&policy, "p")).await;
    assert_eq!(permit.limits[0].remaining, 3);
    let counts = table.server.proxy().counts();
    assert_eq!((counts.count("UpdateItem"), counts.refused), (2, 1));
}

/// Guessed busy, and it was idle: others gave back what was taken, or the item is gone.
#[tokio::test]
async fn a_busy_guess_that_is_wrong_is_made_good() {
    let table = TestTable::new().await;
    let (one, other, policy) =
        (table.gate().await, table.gate().await, single(TokenBucket::per_minute(5)));
    let permit = admit(&one, &Ask::new(&policy, "p")).await;
    admit(&other, &Ask::new(&policy, "q")).await;
    assert!(other.release(&permit).await.unwrap());
    table.server.proxy().reset_counts();
    let permit = admit(&one, &Ask::new(&policy, "p")).await;
    assert_eq!(permit.limits[0].remaining, 4);
    let counts = table.server.proxy().counts();
    assert_eq!((counts.count("UpdateItem"), counts.refused), (2, 1));
    // Deleted behind our back, as by its time to live: the refusal returns no item at all.
    let key = aws_sdk_dynamodb::types::AttributeValue::S("single/p".to_owned());
    table.client().delete_item().table_name(crate::TABLE).key("pk", key).send().await.unwrap();
    let permit = admit(&one, &Ask::new(&policy, "p")).await;
    assert_eq!(permit.limits[0].remaining, 4);
}

/// Several limits turn busy and idle on their own, and the bound on guesses holds.
#[tokio::test]
async fn each_limit_has_its_own_branch() {
    let table = TestTable::new().await;
    let limits = (1..=4).map(|place| {
        Limit::new(format!("l{place}"), format!("u{place}"), TokenBucket::per_minute(10))
    });
    let policy = Policy::new("several", limits).unwrap();
    let (one, other) = (table.gate().await, table.gate().await);
    for place in 1..=4 {
        let unit = format!("u{place}");
        admit(&one, &Ask::new(&policy, "p").cost(&unit, 1)).await;
    }
    table.server.proxy().reset_counts();
    let all = (1..=4).fold(Ask::new(&policy, "p"), |ask, place| ask.cost(&format!("u{place}"), 9));
    admit(&other, &all).await;
    assert_eq!(
        table.server.proxy().counts().count("UpdateItem"),
        2,
        "one refusal shows all branches"
    );
    assert_eq!(remaining(&one, &policy, "p").await, [0; 4]);
    deny(&one, &Ask::new(&policy, "p").cost("u3", 1)).await;
}

/// An idle hour gives no more than the capacity: the mistake of an update with one branch.
#[tokio::test]
async fn an_idle_hour_banks_nothing() {
    let table = TestTable::new().await;
    let (gate, policy) = (table.gate().await, single(TokenBucket::per_minute(5)));
    admit(&gate, &Ask::new(&policy, "p")).await;
    table.clock.advance(Span::from_hours(1));
    for _ in 0..5 {
        admit(&gate, &Ask::new(&policy, "p")).await;
    }
    deny(&gate, &Ask::new(&policy, "p")).await;
}

/// A log that was made under an exact window counts on after the window got slots, and back.
#[tokio::test]
async fn numbers_change_between_counters_and_logs() {
    let table = TestTable::new().await;
    let (gate, exact) = (table.gate().await, single(RollingWindow::new(5, MINUTE)));
    for _ in 0..3 {
        table.clock.advance(Span::from_micros(1_234_567));
        admit(&gate, &Ask::new(&exact, "p")).await;
    }
    let other = table.gate().await;
    for policy in [coarse(5), exact] {
        admit(&other, &Ask::new(&policy, "p")).await;
        assert_eq!(remaining(&gate, &policy, "p").await, remaining(&other, &policy, "p").await);
    }
    deny(&gate, &Ask::new(&coarse(5), "p")).await;
    table.clock.advance(Span::from_mins(2));
    for _ in 0..5 {
        admit(&gate, &Ask::new(&coarse(5), "p")).await;
    }
    deny(&other, &Ask::new(&coarse(5), "p")).await;
}

/// What settling gives back to a window of counters is there for every instance.
#[tokio::test]
async fn settling_moves_the_counters() {
    let table = TestTable::new().await;
    let (one, other) = (table.gate().await, table.gate().await);
    let policy = coarse(5);
    let permit = admit(&one, &Ask::new(&policy, "p").cost("requests", 4)).await;
    deny(&other, &Ask::new(&policy, "p").cost("requests", 2)).await;
    table.clock.advance(Span::from_secs(20));
    assert!(other.settle(&permit, &Costs::new().with("requests", 1)).await.unwrap());
    admit(&one, &Ask::new(&policy, "p").cost("requests", 4)).await;
    deny(&other, &Ask::new(&policy, "p")).await;
    assert!(!one.settle(&permit, &Costs::new()).await.unwrap(), "once");
    assert_eq!(remaining(&one, &policy, "p").await, [0]);
}

/// After numbers changed and changed back, an older permit gives nothing back, whichever instance settles it; the item remembers
/// for as long as such a permit lives, through charges by expression too.
#[tokio::test]
async fn numbers_that_changed_are_remembered() {
    let table = TestTable::new().await;
    let (one, other) = (table.gate().await, table.gate().await);
    let (slow, fast) =
        (single(TokenBucket::per(5, Span::from_hours(1))), single(TokenBucket::per_minute(5)));
    let older = admit(&one, &Ask::new(&slow, "p").id("older")).await;
    for policy in [&fast, &slow] {
        admit(&other, &Ask::new(policy, "p")).await;
    }
    let younger = admit(&one, &Ask::new(&slow, "p")).await;
    assert_eq!(remaining(&one, &slow, "p").await, [1]);
    assert!(one.release(&older).await.unwrap());
    assert_eq!(remaining(&other, &slow, "p").await, [1], "the refill since is unknown");
    assert!(other.release(&younger).await.unwrap());
    assert_eq!(remaining(&one, &slow, "p").await, [2]);
    assert!(has(&table, "y").await);
    table.clock.advance(Span::from_mins(61));
    let permit = admit(&one, &Ask::new(&slow, "p")).await;
    assert!(one.release(&permit).await.unwrap());
    assert!(!has(&table, "y").await);
}

async fn has(table: &TestTable, name: &str) -> bool {
    let items = table.client().scan().table_name(crate::TABLE).send().await.unwrap();
    items.items().iter().any(|item| item.contains_key(name))
}

/// Behind others an ask goes through if all of them have room, and it alone is charged; a denial is one read.
#[tokio::test]
async fn behind_others_it_takes_room_for_all() {
    let table = TestTable::new().await;
    let policies = [single(TokenBucket::per_minute(5)), coarse(5)];
    for (policy, subject) in policies.iter().zip(["bucket", "counters"]) {
        let (one, other) = (table.gate().await, table.gate().await);
        let front = *Ask::new(policy, subject).cost("requests", 2).amounts();
        let behind = Ask::new(policy, subject).behind(vec![front]);
        for left in [4, 3, 2] {
            admit(&one, &behind).await;
            assert_eq!(remaining(&other, policy, subject).await, [left]);
        }
        for gate in [&one, &other] {
            table.server.proxy().reset_counts();
            deny(gate, &behind).await;
            let counts = table.server.proxy().counts();
            assert_eq!((counts.count("GetItem"), counts.requests.len()), (1, 1), "{counts:?}");
        }
        admit(&other, &Ask::new(policy, subject).cost("requests", 2)).await;
    }
}
