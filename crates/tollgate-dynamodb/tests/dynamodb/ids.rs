//! Ask ids in items of their own, written with the charge in one transaction.

use std::sync::Arc;

use tollgate::{Ask, ErrorKind, GateExt, RollingWindow, Span, TokenBucket};
use tollgate_dynamodb::CONFLICT_RETRIES_MAX;
use tollgate_testkit::servers::dynamodb::Misbehaviour;

use crate::{MINUTE, TestTable, admit, deny, remaining, single};

/// Thousands of ids on one subject are all recognised, by any instance, and the entry stays as small as without them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_ids_on_one_subject_are_recognised() {
    const IDS: u64 = 2_000;
    let table = TestTable::new().await;
    let (one, other) = (Arc::new(table.gate().await), Arc::new(table.gate().await));
    let policy = single(TokenBucket::per(1, Span::from_hours(24)).burst(5_000));
    for gate in [one, other] {
        let tasks = (0..4).map(|task| {
            let (gate, policy) = (Arc::clone(&gate), policy.clone());
            tokio::spawn(async move {
                for number in (task..IDS).step_by(4) {
                    admit(&gate, &Ask::new(&policy, "p").id(format!("id-{number}"))).await;
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        assert_eq!(remaining(&gate, &policy, "p").await, [5_000 - IDS]);
        table.clock.advance(Span::from_secs(60));
    }
    let key = aws_sdk_dynamodb::types::AttributeValue::S("single/p".to_owned());
    let read = table.client().get_item().table_name(crate::TABLE).key("pk", key);
    let item = read.consistent_read(true).send().await.unwrap().item.unwrap();
    assert!(item.len() < 30, "{} attributes", item.len());
}

/// An ask with an id is one transaction, a repeat is one more request or two, and a denial is not remembered.
#[tokio::test]
async fn an_ask_with_an_id_is_one_transaction() {
    let table = TestTable::new().await;
    let (one, other) = (table.gate().await, table.gate().await);
    for policy in [single(TokenBucket::per_minute(5)), single(RollingWindow::new(5, MINUTE))] {
        let subject = if policy.derived().len() == 1 { "p" } else { "q" };
        let ask = Ask::new(&policy, subject).cost("requests", 4).id("given");
        table.server.proxy().reset_counts();
        let first = admit(&one, &ask).await;
        let counts = table.server.proxy().counts();
        assert_eq!(
            (counts.count("TransactWriteItems"), counts.requests.len()),
            (1, 1),
            "{counts:?}"
        );
        table.clock.advance(Span::from_secs(1));
        for gate in [&one, &other] {
            assert_eq!(admit(gate, &ask).await.grant(), first.grant(), "a repeat");
        }
        let conflict = other.acquire(&ask.clone().cost("requests", 3)).await.unwrap_err();
        assert_eq!(conflict.kind(), ErrorKind::Conflict, "{conflict}");
        let denied = Ask::new(&policy, subject).cost("requests", 2).id("denied");
        deny(&one, &denied).await;
        assert!(other.release(&first).await.unwrap());
        let second = admit(&one, &ask).await;
        assert_ne!(second.grant(), first.grant(), "released, so it is a new ask");
        assert!(!other.release(&first).await.unwrap(), "released before");
        assert_eq!(admit(&other, &ask).await.grant(), second.grant(), "its id is still known");
        assert!(one.release(&second).await.unwrap());
        admit(&other, &denied).await;
        one.reset(&policy, subject).await.unwrap();
        table.clock.advance(Span::from_secs(1));
        let third = admit(&one, &denied).await;
        assert_eq!(third.limits[0].remaining, 3, "an id from before the reset is void");
        one.reset(&policy, subject).await.unwrap();
    }
}

/// A transaction that has the item is waited for, and in the end the answer is Contended, never that the store is away.
#[tokio::test]
async fn conflicts_of_transactions_are_retried() {
    let table = TestTable::new().await;
    let (gate, policy) = (table.gate().await, single(TokenBucket::per_minute(5)));
    let conflict = Misbehaviour::Refuse("TransactionConflictException".to_owned());
    table.server.proxy().next("UpdateItem", 3, &conflict);
    admit(&gate, &Ask::new(&policy, "p")).await;
    table.server.proxy().next("TransactWriteItems", 3, &conflict);
    admit(&gate, &Ask::new(&policy, "p").id("given")).await;
    assert_eq!(remaining(&gate, &policy, "p").await, [3]);
    table.server.proxy().always(Some(("UpdateItem", conflict)));
    table.server.proxy().reset_counts();
    let error = gate.acquire(&Ask::new(&policy, "p")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
    assert!(!error.is_unavailable(), "{error}");
    let tries = table.server.proxy().counts().count("UpdateItem");
    assert_eq!(tries, u64::from(CONFLICT_RETRIES_MAX) + 1);
}
