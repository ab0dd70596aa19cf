//! Format 1 beside format 2: what the program before wrote is read, a store with that format configured writes the same, and both share a
//! table.

use std::path::PathBuf;
use std::sync::Arc;

use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::policy::{Period, Rule};
use tollgate::{
    Ask, CalendarWindow, Clock, Concurrency, Costs, ErrorKind, Gate, GateExt, Limit, Permit,
    Policy, RollingWindow, Span, Timestamp, TokenBucket,
};
use tollgate_conformance::{Capabilities, Fixture};
use tollgate_dynamodb::Options;

use crate::stories::{self, NAMES, describe, parse_item, play, standing_line};
use crate::{Dynamo, MINUTE, TABLE, TestTable, admit, connect, deny, remaining, single, standing};

/// An instance that writes format 1.
pub(crate) async fn old_gate(table: &TestTable) -> Dynamo {
    connect(table.options().format(1).unwrap()).await
}

fn fixture(format: u8, story: &str) -> String {
    let path = format!("tests/dynamodb/format{format}/{story}.txt");
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Puts the item of a fixture into the table, and sets the clock to its time.
async fn place(table: &TestTable, text: &str) {
    let now = text.lines().find_map(|line| line.strip_prefix("now ")).unwrap();
    table.clock.set(Timestamp::from_micros(now.parse().unwrap()));
    let item = Some(parse_item(text));
    table.client().put_item().table_name(TABLE).set_item(item).send().await.unwrap();
}

fn format_of(item: &stories::Attributes) -> u8 {
    item["sh"].as_b().unwrap().as_ref()[0]
}

/// Every kind of item that either program wrote has the standing that its writer recorded, whichever format is written here.
#[tokio::test]
async fn fixtures_are_read() {
    let table = TestTable::new().await;
    for (format, story) in
        [1, 2].into_iter().flat_map(|of| NAMES.iter().map(move |name| (of, *name)))
    {
        let (text, policy) = (fixture(format, story), stories::policy(story));
        for gate in [table.gate().await, old_gate(&table).await] {
            place(&table, &text).await;
            let recorded: Vec<&str> =
                text.lines().filter(|line| line.starts_with("stands")).collect();
            let here = standing(&gate, &policy, story).await;
            let read: Vec<String> = here.iter().map(standing_line).collect();
            // A window that has a grid by now lets go at the ends of its slots.
            let words = if story == "large" { 4 } else { 6 };
            let cut =
                |line: &str| line.split(' ').take(words).map(str::to_owned).collect::<Vec<_>>();
            let [recorded, read] = [
                recorded.into_iter().map(cut).collect::<Vec<_>>(),
                read.iter().map(|line| cut(line)).collect(),
            ];
            assert_eq!(read, recorded, "{story} of format {format}");
            let used = here[0].used;
            let unit = policy.units().next().unwrap();
            table.clock.advance(Span::from_secs(91));
            let before = standing(&gate, &policy, story).await[0].used;
            assert!(before <= used, "{story}");
            admit(&gate, &Ask::new(&policy, story).cost(unit, 1)).await;
            assert_eq!(standing(&gate, &policy, story).await[0].used, before + 1, "{story}");
        }
    }
}

/// For the same operations at the same times each format is written as the fixtures have it: format 1 as the program before
/// wrote it.
#[tokio::test]
async fn fixtures_are_written() {
    for story in NAMES {
        for format in [1, 2] {
            let table = TestTable::new().await;
            let gate = connect(table.options().format(format).unwrap()).await;
            play(story, &gate, &table).await;
            let text = describe(story, &gate, &table).await;
            assert_eq!(text, fixture(format, story), "{story} in format {format}:\n{text}");
        }
    }
}

fn each_rule() -> [(&'static str, Rule); 7] {
    [
        ("bucket", TokenBucket::per(1, Span::from_hours(1)).burst(60).into()),
        ("interval", TokenBucket::per(1, Span::from_hours(24)).burst(60).at_boundaries().into()),
        ("exact", RollingWindow::new(60, Span::from_hours(1)).into()),
        ("coarse", RollingWindow::new(60, Span::from_hours(1)).resolution(12).into()),
        ("large", RollingWindow::new(600, Span::from_hours(1)).into()),
        ("calendar", CalendarWindow::new(60, Period::Month).into()),
        ("slots", Concurrency::new(60, Span::from_hours(1)).into()),
    ]
}

/// Gates that write format 1 and gates that write format 2 share every kind of limit while brokers are restarted one after
/// another: exactly the limit is admitted, and what is released is there for all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_formats_share_a_table() {
    let table = TestTable::new().await;
    let gates =
        [old_gate(&table).await, table.gate().await, old_gate(&table).await, table.gate().await];
    let gates = gates.map(Arc::new);
    for (name, rule) in each_rule() {
        let cost = if name == "large" { 10 } else { 1 };
        let unit = if name == "slots" { "jobs" } else { "requests" };
        let policy = Policy::new("shared", [Limit::new("only", unit, rule)]).unwrap();
        let ask = move |policy: &Policy| Ask::new(policy, name).cost(unit, cost).into_owned();
        // Alone at first, as when every broker has the setting.
        let mut permits = Vec::new();
        for number in 0..6 {
            permits.push(admit(&gates[2 * (number % 2)], &ask(&policy)).await);
        }
        assert_eq!(format_of(&shared_item(&table, name).await), 1, "{name}");
        let tasks = (0..8).map(|task| {
            let (gate, policy) = (Arc::clone(&gates[task % 4]), policy.clone());
            tokio::spawn(async move {
                let mut admitted = Vec::new();
                for _ in 0..12 {
                    admitted.extend(gate.acquire(&ask(&policy)).await.unwrap().into_permit());
                }
                admitted
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            permits.extend(task.await.unwrap());
        }
        assert_eq!(permits.len(), 60, "{name}");
        assert_eq!(format_of(&shared_item(&table, name).await), 2, "{name}");
        for gate in &gates {
            deny(gate, &ask(&policy)).await;
        }
        // Format 1 files a large window without a grid: what was charged before the change gives nothing back.
        permits.sort_by_key(|permit| permit.grant().stamp);
        let last: Vec<Permit> = permits.split_off(56);
        for (permit, gate) in last.iter().zip(&gates) {
            assert!(gate.release(permit).await.unwrap());
        }
        for gate in &gates {
            admit(gate, &ask(&policy)).await;
        }
        deny(&gates[0], &ask(&policy)).await;
    }
}

async fn shared_item(table: &TestTable, subject: &str) -> stories::Attributes {
    let read = table.client().get_item().table_name(TABLE);
    let read = read.key("pk", AttributeValue::S(format!("shared/{subject}")));
    read.consistent_read(true).send().await.unwrap().item.unwrap()
}

tollgate_conformance::suite! {
    /// Rolling windows that would get a grid keep their logs in format 1, so the core decides on those.
    fn format_1() -> Fixture {
        let table = tokio::runtime::Runtime::new().unwrap().block_on(TestTable::new());
        let open = async { Arc::new(old_gate(&table).await) as Arc<dyn Gate> };
        Fixture::open(table.clock.clone(), open)
            .with_capabilities(Capabilities { stories: 60, tasks: 64, arrears: true, joint: false })
            .with_bounded_refunds()
            .with_exact_logs()
            .holding(table)
    }
}

/// An item of format 2 stays one, and a store that writes format 1 does everything to it.
#[tokio::test]
async fn an_item_of_format_2_stays_one() {
    let table = TestTable::new().await;
    for story in NAMES {
        let (text, policy) = (fixture(2, story), stories::policy(story));
        place(&table, &text).await;
        let gate = old_gate(&table).await;
        table.clock.advance(Span::from_secs(91));
        let unit = policy.units().next().unwrap();
        let ask = Ask::new(&policy, *story).cost(unit, 1);
        let permit = admit(&gate, &ask).await;
        assert!(gate.release(&permit).await.unwrap(), "{story}");
        let name = policy.limits().next().unwrap().name();
        assert!(gate.close_until(&ask, name, table.clock.now() + MINUTE).await.unwrap());
        assert!(gate.reset(&policy, story).await.unwrap());
        admit(&gate, &ask).await;
        assert_eq!(format_of(&stories::item(story, &table).await), 2, "{story}");
    }
}

/// The ids that the program before wrote are recognised; releasing a permit, or a reset, frees them, whichever program wrote them.
#[tokio::test]
async fn ids_of_the_program_before_are_recognised() {
    let table = TestTable::new().await;
    let (text, policy) = (fixture(1, "ids"), stories::policy("ids"));
    place(&table, &text).await;
    let number = |item: &stories::Attributes, name: &str| -> u64 {
        item[name].as_n().unwrap().parse().unwrap()
    };
    let before = stories::item("ids", &table).await;
    let gate = old_gate(&table).await;
    let ask = |id: &'static str, cost| Ask::new(&policy, "ids").cost("requests", cost).id(id);
    table.clock.advance(Span::from_secs(1));
    admit(&gate, &ask("own", 1)).await;
    assert_eq!(admit(&gate, &ask("kept", 1)).await.grant().stamp, number(&before, "s:kept"));
    let conflict = gate.acquire(&ask("kept", 2)).await.unwrap_err();
    assert_eq!(conflict.kind(), ErrorKind::Conflict, "{conflict}");
    let freed = admit(&gate, &ask("freed", 2)).await;
    assert_eq!(freed.grant().stamp, number(&before, "s:freed"));
    assert_eq!(remaining(&gate, &policy, "ids").await, [1], "one was charged");
    let after = stories::item("ids", &table).await;
    for name in ["x:kept", "s:kept", "r:kept", "x:freed", "s:freed", "r:freed"] {
        assert_eq!(after.get(name), before.get(name), "{name}");
    }
    // A permit of the program before does not carry its id.
    assert!(gate.release(&freed.with_id(None::<&str>)).await.unwrap());
    let after = stories::item("ids", &table).await;
    assert_eq!(number(&after, "x:freed"), table.clock.now().as_micros());
    assert!(!after.contains_key("s:freed") && !after.contains_key("r:freed"));
    let again = admit(&gate, &ask("freed", 1)).await;
    assert_eq!(number(&stories::item("ids", &table).await, "s:freed"), again.grant().stamp);
    assert!(gate.reset(&policy, "ids").await.unwrap());
    let after = stories::item("ids", &table).await;
    for id in ["kept", "own", "freed"] {
        assert_eq!(number(&after, &format!("x:{id}")), table.clock.now().as_micros(), "{id}");
        assert!(!after.contains_key(&format!("s:{id}")));
    }
    table.clock.advance(Span::from_secs(200));
    admit(&gate, &Ask::new(&policy, "ids")).await;
    let after = stories::item("ids", &table).await;
    assert!(after.keys().all(|name| !name.contains(':')), "{:?}", after.keys());
}

/// A program of format 1 reads at most 1,024 ids, so no more are written.
#[tokio::test]
async fn ids_fit_the_program_before() {
    let table = TestTable::new().await;
    let (text, policy) = (fixture(1, "ids"), stories::policy("ids"));
    place(&table, &text).await;
    let mut item = stories::item("ids", &table).await;
    for (number, name) in (2..1_024).flat_map(|number| ["x", "s", "r"].map(|name| (number, name))) {
        let value = item[&format!("{name}:kept")].clone();
        item.insert(format!("{name}:id-{number}"), value);
    }
    table.client().put_item().table_name(TABLE).set_item(Some(item)).send().await.unwrap();
    let gate = old_gate(&table).await;
    let error = gate.acquire(&Ask::new(&policy, "ids").id("new")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contended, "{error}");
    admit(&gate, &Ask::new(&policy, "ids").id("kept")).await;
    admit(&gate, &Ask::new(&policy, "ids")).await;
    assert_eq!(remaining(&gate, &policy, "ids").await, [1]);
}

/// Cost beyond an estimate has no stamp in format 1. What time has given back of a permit is not given back again, although no
/// later permit shows that the bucket was empty in between, also by a store that reads the item to write format 2.
#[tokio::test]
async fn extra_cost_is_not_released_with_a_permit() {
    let table = TestTable::new().await;
    let policy = single(TokenBucket::per_second(1).burst(10));
    let gates = [old_gate(&table).await, table.gate().await];
    for (subject, charges, releases) in [("old", 0, 0), ("mixed", 0, 1), ("new", 1, 1)] {
        let gate = &gates[charges];
        let early = admit(gate, &Ask::new(&policy, subject).cost("requests", 0)).await;
        let last = admit(gate, &Ask::new(&policy, subject).cost("requests", 10)).await;
        table.clock.advance(Span::from_secs(10));
        assert!(gate.settle(&early, &Costs::new().with("requests", 8)).await.unwrap());
        assert_eq!(remaining(gate, &policy, subject).await, [2]);
        assert!(gates[releases].release(&last).await.unwrap());
        assert_eq!(remaining(gate, &policy, subject).await, [2], "{subject}");
    }
}

/// More runs of settled permits than the program before reads are never written.
#[tokio::test]
async fn settled_runs_fit_the_program_before() {
    const PERMITS: u64 = 600;
    let table = TestTable::new().await;
    let gate = old_gate(&table).await;
    let policy = single(RollingWindow::new(1_000, Span::from_hours(1)).resolution(12));
    let mut permits = Vec::new();
    for _ in 0..PERMITS {
        permits.push(admit(&gate, &Ask::new(&policy, "p")).await);
    }
    let nothing = Costs::new().with("requests", 0);
    for permit in permits.iter().step_by(2) {
        assert!(gate.settle(permit, &nothing).await.unwrap());
    }
    let read = table.client().get_item().table_name(TABLE);
    let read = read.key("pk", AttributeValue::S("single/p".to_owned()));
    let item = read.consistent_read(true).send().await.unwrap().item.unwrap();
    // A floor, and three numbers for each run.
    assert_eq!(item["z"].as_b().unwrap().as_ref().len(), 8 * (1 + 3 * 256));
    assert_eq!(remaining(&gate, &policy, "p").await, [1_000 - PERMITS / 2]);
    let error = gate.settle(&permits[1], &nothing).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Expired, "{error}");
    assert!(gate.settle(&permits[599], &nothing).await.unwrap());
    assert!(!gate.settle(&permits[598], &nothing).await.unwrap(), "settled before");
}

#[test]
fn an_unknown_format_is_refused() {
    for format in [0, 3, 255] {
        let error = Options::new(TABLE).format(format).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.to_string(), format!("dynamodb: format {format} is not one of 1, 2"));
    }
}
