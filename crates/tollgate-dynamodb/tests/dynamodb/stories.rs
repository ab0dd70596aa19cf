//! One story for each kind of limit, and the item that it leaves as text. The files in `format1` were written by the program
//! before format 2, which played these same stories.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::policy::Period;
use tollgate::{
    Ask, CalendarWindow, Clock, Concurrency, Costs, GateExt, Limit, Policy, RollingWindow, Span,
    Standing, TokenBucket,
};

use crate::{Dynamo, MINUTE, TABLE, TestTable, admit, coarse, gemini, single, standing};

pub(crate) const NAMES: &[&str] = &[
    "bucket", "interval", "exact", "coarse", "rolled", "fine", "budget", "large", "calendar",
    "slots", "closed", "settled", "changed", "several", "ids",
];

/// The policy that a story ends with. Its subject is called like the story.
pub(crate) fn policy(story: &str) -> Policy {
    let windows = [("a", 12), ("b", 20), ("c", 12)].map(|(name, slots)| {
        Limit::new(name, "requests", RollingWindow::new(50, MINUTE).resolution(slots))
    });
    let day = CalendarWindow::new(25, Period::Day).in_zone("America/Los_Angeles");
    let day = Limit::new("only", "requests", day).margin(Span::from_secs(30));
    let jobs = Concurrency::new(3, Span::from_mins(5));
    match story {
        "bucket" | "closed" | "changed" | "ids" => single(TokenBucket::per_minute(5)),
        "interval" => single(TokenBucket::per(3, MINUTE).burst(10).at_boundaries()),
        "exact" => single(RollingWindow::new(5, MINUTE)),
        "coarse" | "rolled" => coarse(50),
        "fine" => single(RollingWindow::new(50, MINUTE).resolution(60)),
        "budget" => Policy::new("budget", windows).unwrap(),
        "large" => single(RollingWindow::new(20_000, MINUTE)),
        "calendar" => Policy::new("single", [day]).unwrap(),
        "slots" => Policy::new("jobs", [Limit::new("jobs", "jobs", jobs)]).unwrap(),
        "settled" => single(RollingWindow::new(100, Span::from_hours(1))),
        "several" => gemini(),
        other => panic!("there is no story {other:?}"),
    }
}

/// Plays `story` on `gate`.
pub(crate) async fn play(story: &str, gate: &Dynamo, table: &TestTable) {
    let (policy, clock) = (policy(story), &table.clock);
    let ask = || Ask::new(&policy, story);
    let take = |cost| ask().cost("requests", cost);
    let actual = |cost| Costs::new().with("requests", cost);
    clock.set("2026-11-15T20:00:00.123457Z".parse().unwrap());
    match story {
        "bucket" => {
            admit(gate, &take(1)).await;
            clock.advance(Span::from_millis(1_500));
            let permit = admit(gate, &take(2)).await;
            clock.advance(Span::from_millis(750));
            assert!(gate.settle(&permit, &actual(1)).await.unwrap());
        }
        "interval" => {
            admit(gate, &take(4)).await;
            clock.advance(Span::from_secs(61));
            admit(gate, &take(2)).await;
        }
        "exact" | "large" => {
            admit(gate, &take(1)).await;
            clock.advance(Span::from_micros(1_234_567));
            let permit = admit(gate, &take(2)).await;
            clock.advance(Span::from_micros(1_234_567));
            admit(gate, &take(1)).await;
            assert!(gate.settle(&permit, &actual(1)).await.unwrap());
        }
        "coarse" | "fine" | "budget" => {
            admit(gate, &take(3)).await;
            clock.advance(Span::from_secs(7));
            let permit = admit(gate, &take(4)).await;
            clock.advance(Span::from_secs(7));
            admit(gate, &take(5)).await;
            assert!(gate.settle(&permit, &actual(1)).await.unwrap());
            if story != "coarse" {
                // The first slot has left the window. A charge by expression leaves counters that mean nothing any more.
                clock.advance(Span::from_secs(54));
                admit(gate, &take(6)).await;
            }
        }
        "rolled" => {
            admit(gate, &take(3)).await;
            // That slot has left the window, but perhaps not by the clock of another program.
            clock.advance(Span::from_secs(66));
            admit(gate, &take(1)).await;
        }
        "calendar" => {
            admit(gate, &take(3)).await;
            // Within the margin before midnight in Los Angeles.
            clock.set("2026-11-16T07:59:45Z".parse().unwrap());
            admit(gate, &take(2)).await;
        }
        "slots" => {
            let job = || ask().cost("jobs", 1);
            let first = admit(gate, &job()).await;
            let second = admit(gate, &job()).await;
            admit(gate, &job()).await;
            assert!(gate.release(&second).await.unwrap());
            clock.advance(Span::from_secs(10));
            gate.renew(&first).await.unwrap();
        }
        "closed" => {
            admit(gate, &take(2)).await;
            let until = clock.now() + Span::from_secs(90);
            assert!(gate.close_until(&ask(), "only", until).await.unwrap());
        }
        "settled" => {
            let mut permits = Vec::new();
            for _ in 0..8 {
                clock.advance(Span::from_secs(1));
                permits.push(admit(gate, &take(1)).await);
            }
            for place in [3, 0, 6, 2] {
                assert!(gate.settle(&permits[place], &actual(0)).await.unwrap());
            }
        }
        "changed" => {
            let slow = single(TokenBucket::per(5, Span::from_hours(1)));
            admit(gate, &Ask::new(&slow, story)).await;
            clock.advance(Span::from_secs(2));
            admit(gate, &take(1)).await;
        }
        "several" => {
            for tokens in [3_750, 100_000] {
                clock.advance(Span::from_secs(3));
                admit(gate, &ask().cost("tokens", tokens)).await;
            }
        }
        "ids" => {
            for (id, cost) in [("kept", 1), ("freed", 2)] {
                admit(gate, &take(cost).id(id)).await;
            }
        }
        other => panic!("there is no story {other:?}"),
    }
}

/// The standings and the item of a story's subject, as text. Marks of writes are left out: their names are random.
pub(crate) async fn describe(story: &str, gate: &Dynamo, table: &TestTable) -> String {
    let policy = policy(story);
    let mut lines = vec![format!("now {}", table.clock.now().as_micros())];
    lines.extend(standing(gate, &policy, story).await.iter().map(standing_line));
    lines.extend(item_lines(&item(story, table).await));
    lines.join("\n") + "\n"
}

pub(crate) fn standing_line(standing: &Standing) -> String {
    let Standing { name, used, remaining, reset_at, full_at, .. } = standing;
    let time = |at: &Option<tollgate::Timestamp>| at.map_or(0, tollgate::Timestamp::as_micros);
    format!("stands {name} {used} {remaining} {} {}", time(reset_at), time(full_at))
}

pub(crate) type Attributes = std::collections::HashMap<String, AttributeValue>;

pub(crate) async fn item(story: &str, table: &TestTable) -> Attributes {
    let key = format!("{}/{story}", policy(story).name());
    let read = table.client().get_item().table_name(TABLE).key("pk", AttributeValue::S(key));
    read.consistent_read(true).send().await.unwrap().item.unwrap()
}

fn item_lines(item: &Attributes) -> Vec<String> {
    let sorted: BTreeMap<_, _> = item.iter().filter(|(name, _)| !name.starts_with('o')).collect();
    let line = |(name, value): (&String, &AttributeValue)| match value {
        AttributeValue::N(number) => format!("{name} N {number}"),
        AttributeValue::S(text) => format!("{name} S {text}"),
        AttributeValue::B(bytes) => {
            let hex: String = bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{name} B {hex}")
        }
        other => panic!("{name} is {other:?}"),
    };
    sorted.into_iter().map(line).collect()
}

/// The item in the text of [`describe`].
pub(crate) fn parse_item(text: &str) -> Attributes {
    let attribute = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (name, kind, value) = (words.next()?, words.next()?, words.next()?);
        let value = match kind {
            "N" => AttributeValue::N(value.to_owned()),
            "S" => AttributeValue::S(value.to_owned()),
            "B" => {
                let byte = |place: usize| u8::from_str_radix(&value[place..place + 2], 16).unwrap();
                let bytes: Vec<u8> = (0..value.len()).step_by(2).map(byte).collect();
                AttributeValue::B(Blob::new(bytes))
            }
            _ => return None,
        };
        Some((name.to_owned(), value))
    };
    text.lines().filter_map(attribute).collect()
}
