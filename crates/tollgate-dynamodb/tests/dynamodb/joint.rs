//! Asks with several charges: one transaction for all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use tokio::sync::Barrier;
use tollgate::policy::{Period, Rule};
use tollgate::{
    Ask, CalendarWindow, Concurrency, ErrorKind, GateExt, Limit, Permit, Policy, RollingWindow,
    Span, TokenBucket,
};
use tollgate_dynamodb::CONFLICT_RETRIES_MAX;
use tollgate_testkit::servers::dynamodb::Misbehaviour;

use crate::formats::old_gate;
use crate::{Dynamo, MINUTE, TABLE, TestTable, admit, deny, standing};

fn policy(name: &str, rule: impl Into<Rule>) -> Policy {
    Policy::new(name, [Limit::new("only", "requests", rule)]).unwrap()
}

/// Policies that an expression charges.
fn additive() -> [Policy; 3] {
    [
        policy("user", TokenBucket::per(1, Span::from_hours(24)).burst(10)),
        policy("team", RollingWindow::new(8, MINUTE).resolution(12)),
        policy("account", CalendarWindow::new(6, Period::Month)),
    ]
}

/// Policies of which two are lists, which only a swap charges.
fn mixed() -> [Policy; 3] {
    [
        policy("user", RollingWindow::new(10, MINUTE)),
        policy("team", TokenBucket::per(1, Span::from_hours(24)).burst(8)),
        policy("account", Concurrency::new(6, MINUTE)),
    ]
}

fn ask<'a>(policies: &'a [Policy; 3], subject: &'a str) -> Ask<'a> {
    let [user, team, account] = policies;
    Ask::new(user, subject).and(team, subject).and(account, subject)
}

async fn used(gate: &Dynamo, policies: &[Policy; 3], subject: &str) -> [u64; 3] {
    let mut used = [0; 3];
    for (used, policy) in used.iter_mut().zip(policies) {
        *used = standing(gate, policy, subject).await[0].used;
    }
    used
}

/// Every item of the table.
async fn items(table: &TestTable) -> BTreeMap<String, BTreeMap<String, String>> {
    let scan = table.client().scan().table_name(TABLE).consistent_read(true);
    let items = scan.send().await.unwrap().items.unwrap();
    let text = |value: AttributeValue| format!("{value:?}");
    let item = |item: std::collections::HashMap<String, AttributeValue>| {
        let key = item["pk"].as_s().unwrap().clone();
        (key, item.into_iter().map(|(name, value)| (name, text(value))).collect())
    };
    items.into_iter().map(item).collect()
}

/// The requests since the last call: transactions, reads of several items, and all others.
fn requests(table: &TestTable) -> [u64; 3] {
    let counts = table.server.proxy().counts();
    table.server.proxy().reset_counts();
    let (writes, reads) = (counts.count("TransactWriteItems"), counts.count("BatchGetItem"));
    [writes, reads, counts.requests.values().sum::<u64>() - writes - reads]
}

#[tokio::test]
async fn an_admission_is_one_transaction_and_one_read() {
    let table = TestTable::new().await;
    let (gate, policies) = (table.gate().await, additive());
    requests(&table);
    for number in 0..6 {
        table.clock.advance(Span::from_millis(10));
        let permit = admit(&gate, &ask(&policies, "s")).await;
        assert_eq!(requests(&table), [1, 1, 0], "admission {number}");
        assert_eq!(permit.parts().count(), 3);
    }
    deny(&gate, &ask(&policies, "s")).await;
    assert_eq!(requests(&table), [0, 1, 0], "a denial that was expected");
    deny(&table.gate().await, &ask(&policies, "s")).await;
    assert_eq!(requests(&table), [1, 1, 1], "a denial for an instance that just opened the table");
}

/// An ask with an id is all swaps, so that its stamps and standings are known without a read.
#[tokio::test]
async fn an_ask_with_an_id_is_one_transaction() {
    let table = TestTable::new().await;
    let (gate, policies) = (table.gate().await, additive());
    requests(&table);
    let with_id = ask(&policies, "s").id("given");
    let first = admit(&gate, &with_id).await;
    assert_eq!(requests(&table), [1, 0, 0], "an admission");
    let grants = |permit: &Permit| permit.parts().map(|part| *part.grant()).collect::<Vec<_>>();
    let repeated = admit(&gate, &with_id).await;
    assert_eq!(requests(&table), [1, 1, 0], "a repeat");
    assert_eq!(grants(&repeated), grants(&first));
    let conflict = gate.acquire(&with_id.clone().cost("requests", 2)).await.unwrap_err();
    assert_eq!(conflict.kind(), ErrorKind::Conflict, "{conflict}");
    assert_eq!(used(&gate, &policies, "s").await, [1; 3]);
    assert!(gate.release(&first).await.unwrap());
    assert_eq!(used(&gate, &policies, "s").await, [0; 3]);
    assert!(!items(&table).await.keys().any(|key| key.ends_with("given")), "the id is forgotten");
}

/// Whichever charge refuses, and whether the instance expects it or not, no item changes.
#[tokio::test]
async fn a_refused_ask_leaves_every_item_as_it_was() {
    let table = TestTable::new().await;
    for policies in [additive(), mixed()] {
        for full in 0..3 {
            let gate = table.gate().await;
            let subject = format!("{full}");
            let taken = Ask::new(&policies[full], subject.as_str());
            admit(&gate, &taken.cost("requests", [9, 7, 5][full])).await;
            let before = items(&table).await;
            for gate in [&gate, &table.gate().await] {
                let refused = ask(&policies, &subject).cost("requests", 2);
                for refused in [refused.clone(), refused.id("given")] {
                    let denial = deny(gate, &refused).await;
                    assert_eq!(&*denial.policy, policies[full].name());
                    assert_eq!(denial.joint.unwrap().charges.len(), 3);
                }
            }
            assert_eq!(items(&table).await, before, "refused by {}", policies[full].name());
            let client = table.client();
            for key in before.into_keys().filter(|key| key != "/") {
                let delete = client.delete_item().table_name(TABLE);
                delete.key("pk", AttributeValue::S(key)).send().await.unwrap();
            }
        }
    }
}

/// The replies of a transaction are lost after it was applied: it is charged once, and the permit gives back exactly that.
#[tokio::test]
async fn a_lost_reply_is_charged_once() {
    let table = TestTable::new().await;
    for (name, policies) in [("additive", additive()), ("mixed", mixed())] {
        for id in [None, Some("given")] {
            let gate = table.gate().await;
            table.server.proxy().next("TransactWriteItems", 2, &Misbehaviour::DropReply);
            let subject = format!("{name}-{}", id.is_some());
            let plain = ask(&policies, &subject);
            let ask = id.map_or_else(|| plain.clone(), |id| plain.clone().id(id));
            table.server.proxy().reset_counts();
            let permit = admit(&gate, &ask).await;
            assert_eq!(table.server.proxy().counts().count("TransactWriteItems"), 3);
            assert_eq!(used(&gate, &policies, &subject).await, [1; 3], "{name}, {id:?}");
            table.server.proxy().next("BatchGetItem", 1, &Misbehaviour::DropReply);
            let other = admit(&gate, &plain).await;
            assert!(gate.release(&permit).await.unwrap());
            assert!(!gate.release(&permit).await.unwrap());
            assert!(gate.release(&other).await.unwrap());
            assert_eq!(used(&gate, &policies, &subject).await, [0; 3], "{name}, {id:?}");
        }
    }
}

/// A call with an id times out or is cancelled. Its transaction was applied, is on its way, or never arrived: either every
/// charge and the id are there, or nothing is, and a repeat ends with one charge of each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_without_an_answer_is_there_wholly_or_not_at_all() {
    let table = TestTable::new().await;
    let policies = Arc::new(mixed());
    let proxy = table.server.proxy();
    let late = Misbehaviour::Delay(Duration::from_secs(2));
    let cases = [
        ("lost", Misbehaviour::DropReply, 1),
        ("cancelled", late, 1),
        ("failed", Misbehaviour::Fail, 0),
        ("held", Misbehaviour::Hold, 0),
    ];
    for (name, fault, charged) in cases {
        let gate = Arc::new(table.gate().await);
        proxy.reset_counts();
        proxy.always(Some(("TransactWriteItems", fault)));
        let call = {
            let (gate, policies) = (Arc::clone(&gate), Arc::clone(&policies));
            tokio::spawn(async move {
                gate.acquire(&ask(&policies, name).id("given")).await.map(|_| ())
            })
        };
        if name == "cancelled" {
            let observer = table.gate().await;
            while used(&observer, &policies, name).await == [0; 3] {}
            call.abort();
            assert!(call.await.unwrap_err().is_cancelled());
        } else {
            let ended = call.await.unwrap();
            assert!(ended.is_err(), "{name}: {ended:?}");
        }
        proxy.always(None);
        assert_eq!(used(&gate, &policies, name).await, [charged; 3], "{name}");
        let ids =
            items(&table).await.into_keys().filter(|key| key.ends_with(&format!("{name}/given")));
        assert_eq!(u64::try_from(ids.count()).unwrap(), charged, "{name}");
        if name == "held" {
            assert!(0 < proxy.deliver_held().unwrap(), "one of three attempts is applied");
            assert_eq!(used(&gate, &policies, name).await, [1; 3], "{name}");
        }
        let other = table.gate().await;
        admit(&other, &ask(&policies, name).id("given")).await;
        assert_eq!(used(&other, &policies, name).await, [1; 3], "{name}: a repeat");
    }
}

/// A transaction that has an item is waited for, and in the end the answer is Contended, never that the store is away.
#[tokio::test]
async fn conflicts_are_retried_and_end_as_contended() {
    let table = TestTable::new().await;
    let (gate, policies) = (table.gate().await, additive());
    let conflict = Misbehaviour::Refuse("TransactionConflictException".to_owned());
    table.server.proxy().next("TransactWriteItems", 3, &conflict);
    admit(&gate, &ask(&policies, "s")).await;
    table.server.proxy().always(Some(("TransactWriteItems", conflict)));
    requests(&table);
    let error = gate.acquire(&ask(&policies, "s")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
    assert!(!error.is_unavailable(), "{error}");
    assert_eq!(requests(&table), [u64::from(CONFLICT_RETRIES_MAX) + 1, 0, 0]);
    table.server.proxy().always(None);
    assert_eq!(used(&gate, &policies, "s").await, [1; 3]);
}

/// 64 callers of 16 instances charge a user, a team, a deployment and one account, with conflicts. Each subject was charged
/// what the admitted asks charged to it, and no answer says that the store is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_on_one_parent_are_exact() {
    const INSTANCES: usize = 16;
    const CALLERS: usize = 64;
    const ASKS: usize = 3;
    let table = TestTable::new().await;
    let day = Span::from_hours(24);
    let policies = Arc::new([
        policy("user", TokenBucket::per(1, day).burst(2)),
        policy("team", RollingWindow::new(20, day)),
        policy("deployment", RollingWindow::new(1_000, day).resolution(12)),
        policy("account", TokenBucket::per(1, day).burst(90)),
    ]);
    let mut gates = Vec::new();
    for _ in 0..INSTANCES {
        gates.push(Arc::new(table.gate().await));
    }
    let conflict = Misbehaviour::Refuse("TransactionConflictException".to_owned());
    table.server.proxy().reset_counts();
    table.server.proxy().next("TransactWriteItems", 100, &conflict);
    let barrier = Arc::new(Barrier::new(CALLERS));
    let callers = (0..CALLERS).map(|caller| {
        let (gate, policies) = (Arc::clone(&gates[caller % INSTANCES]), Arc::clone(&policies));
        let barrier = Arc::clone(&barrier);
        tokio::spawn(async move {
            let [user, team, deployment, account] = &*policies;
            barrier.wait().await;
            let (mut admitted, mut contended) = (0_u64, 0_u64);
            for _ in 0..ASKS {
                let ask = Ask::new(user, format!("u{caller}"))
                    .and(team, format!("t{}", caller % 8))
                    .and(deployment, "d")
                    .and(account, "a");
                match gate.acquire(&ask).await {
                    Ok(decision) => admitted += u64::from(decision.is_admitted()),
                    Err(error) if error.kind() == ErrorKind::Contended => contended += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            (caller, admitted, contended)
        })
    });
    let mut expected: BTreeMap<(usize, String), u64> = BTreeMap::new();
    let (mut admitted, mut contended) = (0, 0);
    for caller in callers.collect::<Vec<_>>() {
        let (caller, given, unanswered) = caller.await.unwrap();
        let subjects = [format!("u{caller}"), format!("t{}", caller % 8), "d".into(), "a".into()];
        for charge in subjects.into_iter().enumerate() {
            *expected.entry(charge).or_default() += given;
        }
        admitted += given;
        contended += unanswered;
    }
    println!("{admitted} admitted, {contended} contended: {:?}", table.server.proxy().counts());
    for ((index, subject), given) in expected {
        let limit = &standing(&gates[0], &policies[index], &subject).await[0];
        assert_eq!(limit.used, given, "{subject}");
        assert!(limit.used <= limit.limit, "{subject}");
    }
    assert!(admitted == 90 || 0 < contended, "{admitted} admitted");
    assert!(0 < admitted);
}

/// Programs before this one read items of format 1 and know no such asks.
#[tokio::test]
async fn a_store_of_format_1_refuses_several_charges() {
    let table = TestTable::new().await;
    let (gate, policies) = (old_gate(&table).await, additive());
    let error = gate.acquire(&ask(&policies, "s")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(items(&table).await.is_empty());
}
