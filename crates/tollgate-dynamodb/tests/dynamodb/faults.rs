//! Replies that are lost, writes that are throttled, servers that are slow or start again.

use std::time::Duration;

use tollgate::{Ask, Costs, ErrorKind, GateExt, Limit, Policy, RollingWindow, Span, TokenBucket};
use tollgate_dynamodb::THROTTLE_RETRIES_MAX;
use tollgate_testkit::servers::dynamodb::Misbehaviour;

use crate::{MINUTE, TestTable, admit, coarse, connect, gemini, remaining, single};

/// Promise 5, R000.12: the reply is lost after the write was applied. It is sent again and charged once, with an id
/// and without, by expression and by swap.
#[tokio::test]
async fn a_lost_reply_is_charged_once() {
    let table = TestTable::new().await;
    let exact = single(RollingWindow::new(5, MINUTE));
    for (name, policy) in [("buckets", gemini()), ("counters", coarse(5)), ("log", exact)] {
        let gate = table.gate().await;
        let subject = format!("{name}-subject");
        for (round, id) in [None, Some("given")].into_iter().enumerate() {
            let write = if id.is_some() { "TransactWriteItems" } else { "UpdateItem" };
            table.server.proxy().next(write, 2, &Misbehaviour::DropReply);
            let ask = Ask::new(&policy, subject.as_str());
            let ask = id.map_or_else(|| ask.clone(), |id| ask.clone().id(id));
            table.server.proxy().reset_counts();
            let permit = admit(&gate, &ask).await;
            assert_eq!(table.server.proxy().counts().count(write), 3, "{name}: sent three times");
            let left = 4 - u64::try_from(round).unwrap();
            assert_eq!(remaining(&gate, &policy, &subject).await[0], left, "{name}, {id:?}");
            // The permit is the one that was charged: it gives back exactly that, once.
            assert!(gate.release(&permit).await.unwrap());
            assert_eq!(remaining(&gate, &policy, &subject).await[0], left + 1, "{name}, {id:?}");
            assert!(!gate.release(&permit).await.unwrap());
            admit(&gate, &Ask::new(&policy, subject.as_str())).await;
        }
    }
}

/// The same for what follows an admission: the answer is that of the write that was applied.
#[tokio::test]
async fn a_lost_reply_settles_once() {
    let table = TestTable::new().await;
    let (gate, policy) = (table.gate().await, gemini());
    let permit = admit(&gate, &Ask::new(&policy, "p").cost("tokens", 3_750)).await;
    table.server.proxy().next("UpdateItem", 1, &Misbehaviour::DropReply);
    assert!(gate.settle(&permit, &Costs::new().with("tokens", 750)).await.unwrap());
    assert!(!gate.settle(&permit, &Costs::new().with("tokens", 0)).await.unwrap());
    assert_eq!(remaining(&gate, &policy, "p").await, [4, 249_250, 24]);
    table.server.proxy().next("UpdateItem", 1, &Misbehaviour::DropReply);
    let charged = gate.charge(&Ask::new(&policy, "p").cost("tokens", 250)).await.unwrap();
    assert!(charged.is_charged());
    assert_eq!(remaining(&gate, &policy, "p").await, [3, 249_000, 23]);
}

/// A reply that comes after the attempt timed out is a lost reply.
#[tokio::test]
async fn a_late_reply_is_charged_once() {
    let table = TestTable::new().await;
    // Two attempts are left for a machine that is busy with other tests.
    let options = table.options().attempt_timeout(Span::from_secs(2));
    let gate = connect(options).await;
    let policy = gemini();
    let late = Misbehaviour::Delay(Duration::from_secs(6));
    table.server.proxy().next("UpdateItem", 1, &late);
    let permit = admit(&gate, &Ask::new(&policy, "p")).await;
    assert_eq!(permit.limits[0].remaining, 4);
    assert_eq!(remaining(&table.gate().await, &policy, "p").await, [4, 250_000, 24]);
}

/// A release forgets the id of its ask, but not the mark of a write that may still be on its way: arriving late, it
/// would be charged.
#[tokio::test]
async fn a_release_keeps_the_mark_of_a_late_write() {
    let table = TestTable::new().await;
    let policy = gemini();
    for (subject, id) in [("p", None), ("q", Some("given"))] {
        let gate = table.gate().await;
        let write = if id.is_some() { "TransactWriteItems" } else { "UpdateItem" };
        table.server.proxy().next(write, 1, &Misbehaviour::DropReply);
        let ask = Ask::new(&policy, subject);
        let permit = admit(&gate, &id.map_or_else(|| ask.clone(), |id| ask.clone().id(id))).await;
        let marks = marks(&table, subject).await;
        assert_eq!(marks.len(), 1, "{id:?}");
        assert!(gate.release(&permit).await.unwrap());
        for _ in 0..2 {
            admit(&gate, &ask).await;
        }
        assert!(self::marks(&table, subject).await.contains(&marks[0]), "{id:?}");
    }
}

/// Promise 5: an abandoned write arrives after its id was asked for again, and released. It is not
/// charged, also when other writes came between; a new use of the id is.
#[tokio::test]
async fn a_write_that_arrives_after_the_release_is_not_charged() {
    let table = TestTable::new().await;
    let policy = gemini();
    for (subject, swaps) in [("p", 0), ("q", 3)] {
        let gate = table.gate().await;
        let other = admit(&gate, &Ask::new(&policy, subject).id("other")).await;
        let ask = Ask::new(&policy, subject).id("given");
        table.clock.advance(Span::from_millis(10));
        table.server.proxy().next("TransactWriteItems", 3, &Misbehaviour::Hold);
        let error = gate.acquire(&ask).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        table.clock.advance(Span::from_millis(100));
        let permit = admit(&gate, &ask).await;
        assert!(gate.release(&permit).await.unwrap());
        for _ in 0..swaps {
            table.clock.advance(Span::from_millis(10));
            gate.settle(&other, &Costs::new()).await.unwrap();
            gate.charge(&Ask::new(&policy, subject).cost("requests", 0)).await.unwrap();
        }
        let before = remaining(&gate, &policy, subject).await;
        assert_eq!(table.server.proxy().deliver_held().unwrap(), 0);
        assert_eq!(remaining(&gate, &policy, subject).await, before);
        let left = admit(&gate, &ask).await.limits[0].remaining;
        assert_eq!(left, before[0] - 1);
        assert_eq!(admit(&gate, &ask).await.limits[0].remaining, left, "a repeat");
    }
}

async fn marks(table: &TestTable, subject: &str) -> Vec<String> {
    let key = aws_sdk_dynamodb::types::AttributeValue::S(format!("gemini/{subject}"));
    let read = table.client().get_item().table_name(crate::TABLE).key("pk", key);
    let item = read.consistent_read(true).send().await.unwrap().item.unwrap();
    item.into_keys().filter(|name| name.starts_with('o')).collect()
}

/// R000.12: after temporary errors the same amount is asked for again, and nothing is lost or doubled; after three
/// failures the answer is an error that a fallback understands.
#[tokio::test]
async fn r000_12_recovers_from_temporary_errors() {
    let table = TestTable::new().await;
    let (gate, policy) = (table.gate().await, gemini());
    table.server.proxy().next("UpdateItem", 2, &Misbehaviour::Fail);
    admit(&gate, &Ask::new(&policy, "p").cost("tokens", 3_750)).await;
    assert_eq!(remaining(&gate, &policy, "p").await, [4, 246_250, 24]);
    table.server.proxy().next("UpdateItem", 3, &Misbehaviour::Fail);
    let error = gate.acquire(&Ask::new(&policy, "p")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    admit(&gate, &Ask::new(&policy, "p")).await;
    assert_eq!(remaining(&gate, &policy, "p").await, [3, 246_250, 23]);
}

/// R000.11 and conflict 12: throttling is tried again five times, then it is an error of its own; nothing is charged.
#[tokio::test]
async fn throttling_is_retried_and_then_said() {
    let table = TestTable::new().await;
    let (gate, policy) = (table.gate().await, gemini());
    let retries = usize::try_from(THROTTLE_RETRIES_MAX).unwrap();
    table.server.proxy().next("UpdateItem", retries, &Misbehaviour::Throttle);
    admit(&gate, &Ask::new(&policy, "p")).await;
    table.server.proxy().always(Some(("UpdateItem", Misbehaviour::Throttle)));
    table.server.proxy().reset_counts();
    let error = gate.acquire(&Ask::new(&policy, "p")).await.unwrap_err();
    assert_eq!(table.server.proxy().counts().count("UpdateItem"), 6);
    assert_eq!(error.kind(), ErrorKind::Throttled, "{error:?}");
    assert!(error.to_string().contains("throttling table \"tollgate\""), "{error}");
    table.server.proxy().always(None);
    assert_eq!(remaining(&gate, &policy, "p").await, [4, 250_000, 24]);
}

/// Promise 1 across a crash of the server: what was answered is there after `kill -9` and a restart.
#[tokio::test]
async fn state_survives_a_restart() {
    let mut table = TestTable::durable().await;
    let (gate, policy) = (table.gate().await, gemini());
    for _ in 0..3 {
        admit(&gate, &Ask::new(&policy, "p")).await;
    }
    table.server.process().kill().unwrap();
    let error = gate.acquire(&Ask::new(&policy, "p")).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    table.server.process().restart().unwrap();
    assert_eq!(remaining(&gate, &policy, "p").await, [2, 250_000, 22]);
    admit(&gate, &Ask::new(&policy, "p")).await;
}

/// Marks of writes do not pile up: after many grants of one instance the item is as small as after one.
#[tokio::test]
async fn an_item_stays_small() {
    let table = TestTable::new().await;
    let gate = table.gate().await;
    let policy = Policy::new(
        "busy",
        [
            Limit::new("burst", "requests", TokenBucket::per_second(1_000)),
            Limit::new(
                "window",
                "requests",
                RollingWindow::new(1_000, Span::from_secs(1)).resolution(10),
            ),
        ],
    )
    .unwrap();
    for step in 0..200 {
        table.clock.advance(Span::from_millis(100));
        let ask = Ask::new(&policy, "p");
        admit(&gate, &if step % 50 == 0 { ask.id(format!("id-{step}")) } else { ask }).await;
    }
    table.clock.advance(Span::from_mins(10));
    for _ in 0..20 {
        table.clock.advance(Span::from_millis(100));
        admit(&gate, &Ask::new(&policy, "p")).await;
    }
    let items = table.client().scan().table_name(crate::TABLE).send().await.unwrap();
    let attributes = items.items()[0].len();
    assert!(attributes < 80, "{attributes} attributes: {:?}", items.items()[0].keys());
}

/// A reset of very many slots writes the whole item at once, and is known when its reply is lost too.
#[tokio::test]
async fn a_large_reset_is_one_write() {
    let table = TestTable::new().await;
    let gate = table.gate().await;
    let limits = (0..3).map(|place| {
        let rule = RollingWindow::new(1_000, Span::from_secs(64)).resolution(64);
        Limit::new(format!("w{place}"), "requests", rule)
    });
    let policy = Policy::new("windows", limits).unwrap();
    let mut first = None;
    for _ in 0..60 {
        table.clock.advance(Span::from_secs(1));
        first.get_or_insert(admit(&gate, &Ask::new(&policy, "p")).await);
    }
    table.server.proxy().reset_counts();
    table.server.proxy().next("PutItem", 1, &Misbehaviour::DropReply);
    assert!(gate.reset(&policy, "p").await.unwrap());
    let counts = table.server.proxy().counts();
    assert_eq!((counts.count("PutItem"), counts.count("UpdateItem")), (2, 0), "{counts:?}");
    assert_eq!(remaining(&gate, &policy, "p").await, [1_000; 3]);
    assert!(!gate.release(&first.unwrap()).await.unwrap(), "the reset gave it back");
    assert!(!gate.reset(&policy, "p").await.unwrap());
}
