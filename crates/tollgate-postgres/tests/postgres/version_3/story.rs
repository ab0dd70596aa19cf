//! The operations, with their times, that wrote the rows of `rows.sql`. They use only what both versions have.

use tollgate::clock::ManualClock;
use tollgate::policy::{Period, Rule};
use tollgate::{
    Ask, CalendarWindow, Clock, Concurrency, Costs, Gate, GateExt, Limit, Permit, Policy,
    RollingWindow, Span, Timestamp, TokenBucket,
};

const SECOND: Span = Span::from_secs(1);
const MINUTE: Span = Span::from_mins(1);

/// 2025-06-15T12:34:56Z.
const START: Timestamp = Timestamp::from_secs(1_749_990_896);

fn one(name: &str, rule: impl Into<Rule>) -> Policy {
    Policy::new(name, [Limit::new("only", "requests", rule)]).unwrap()
}

fn calendar(name: &str, margin: Span) -> Policy {
    let rule = CalendarWindow::new(25, Period::Minute).in_zone("America/Los_Angeles");
    Policy::new(name, [Limit::new("only", "requests", rule).margin(margin)]).unwrap()
}

fn changing(burst: u64) -> Policy {
    one("changed", TokenBucket::per(burst, Span::from_hours(1)))
}

fn many() -> Policy {
    Policy::new(
        "many",
        [
            Limit::new("rpm", "requests", RollingWindow::new(5, MINUTE)),
            Limit::new("tpm", "tokens", TokenBucket::per_minute(250_000)),
            Limit::new("jobs", "jobs", Concurrency::new(3, Span::from_mins(5))),
        ],
    )
    .unwrap()
}

/// Every policy of the story, in the numbers it ends with.
pub(crate) fn policies() -> Vec<Policy> {
    let bucket = || TokenBucket::per_minute(6).burst(100);
    vec![
        one("bucket", bucket()),
        one("interval", TokenBucket::per_minute(5).at_boundaries()),
        one("exact", RollingWindow::new(5, MINUTE)),
        one("resolution", RollingWindow::new(50, MINUTE).resolution(6)),
        one("wide", RollingWindow::new(20_000, MINUTE)),
        calendar("calendar", Span::ZERO),
        calendar("late", Span::from_secs(20)),
        one("slots", Concurrency::new(5, MINUTE)),
        one("closed", bucket()),
        one("settled", bucket()),
        one("ids", bucket()),
        one("reset", bucket()),
        changing(60),
        many(),
    ]
}

fn policy(name: &str) -> Policy {
    policies().into_iter().find(|policy| policy.name() == name).unwrap()
}

async fn admit(gate: &impl Gate, ask: Ask<'_>) -> Permit {
    gate.acquire(&ask).await.unwrap().into_permit().unwrap()
}

fn cost(requests: u64) -> Costs {
    Costs::new().with("requests", requests)
}

/// Tells the story to `gate`, which decides by `clock`. The subject is always `s`.
pub(crate) async fn tell(gate: &impl Gate, clock: &ManualClock) {
    clock.set(START);
    each_rule(gate, clock).await;
    permits(gate, clock).await;
    ids(gate, clock).await;
    assert_eq!(clock.now(), START + Span::from_secs(46));
}

/// Two charges of every rule, the first settled for less and the second for more.
async fn each_rule(gate: &impl Gate, clock: &ManualClock) {
    let rules =
        ["bucket", "interval", "exact", "resolution", "wide", "calendar", "late"].map(policy);
    let mut first = Vec::new();
    for policy in &rules {
        first.push(admit(gate, Ask::new(policy, "s").cost("requests", 3)).await);
    }
    clock.advance(Span::from_micros(1_234_567));
    for (policy, permit) in rules.iter().zip(first) {
        let second = admit(gate, Ask::new(policy, "s")).await;
        assert!(gate.settle(&permit, &cost(1)).await.unwrap());
        assert!(gate.settle(&second, &cost(2)).await.unwrap());
        gate.charge(&Ask::new(policy, "s")).await.unwrap();
    }
    clock.set(START + Span::from_secs(10));
    // Denied: nothing is written.
    let denied = gate.acquire(&Ask::new(&rules[2], "s").cost("requests", 4)).await.unwrap();
    assert!(!denied.is_admitted());
    for policy in &rules {
        admit(gate, Ask::new(policy, "s")).await;
    }
}

/// Slots, a closed limit, settled permits with a gap, a reset, and other numbers.
async fn permits(gate: &impl Gate, clock: &ManualClock) {
    let [slots, closed, settled, reset] = ["slots", "closed", "settled", "reset"].map(policy);
    let held = [
        admit(gate, Ask::new(&slots, "s").cost("requests", 2)).await,
        admit(gate, Ask::new(&slots, "s")).await,
    ];
    clock.advance(SECOND);
    admit(gate, Ask::new(&slots, "s")).await;
    gate.renew(&held[0]).await.unwrap();
    assert!(gate.release(&held[1]).await.unwrap());

    admit(gate, Ask::new(&closed, "s")).await;
    let until = clock.now() + Span::from_mins(30);
    assert!(gate.close_until(&Ask::new(&closed, "s"), "only", until).await.unwrap());

    let mut given = Vec::new();
    for _ in 0..7 {
        given.push(admit(gate, Ask::new(&settled, "s").cost("requests", 4)).await);
        clock.advance(SECOND);
    }
    for place in [1, 5, 3, 2] {
        assert!(gate.settle(&given[place], &cost(3)).await.unwrap());
    }
    assert!(!gate.settle(&given[5], &cost(1)).await.unwrap());
    assert!(gate.release(&given[6]).await.unwrap());

    let forgotten = admit(gate, Ask::new(&reset, "s").cost("requests", 9).id("before")).await;
    assert!(gate.reset(&reset, "s").await.unwrap());
    assert!(!gate.release(&forgotten).await.unwrap());

    admit(gate, Ask::new(&changing(30), "s").cost("requests", 20)).await;
    clock.set(START + Span::from_secs(40));
    admit(gate, Ask::new(&policy("changed"), "s").cost("requests", 5)).await;
}

/// Ids: repeated, released, and beside the amounts of several units. One needs to be escaped.
async fn ids(gate: &impl Gate, clock: &ManualClock) {
    let [plain, many] = ["ids", "many"].map(policy);
    let one = admit(gate, Ask::new(&plain, "s").id("one")).await;
    let two = admit(gate, Ask::new(&plain, "s").id("two")).await;
    admit(gate, Ask::new(&plain, "s").cost("requests", 3).id("back\\slash\0")).await;
    clock.advance(Span::from_secs(5));
    assert_eq!(admit(gate, Ask::new(&plain, "s").id("one")).await.grant(), one.grant());
    assert!(gate.release(&two).await.unwrap());

    let ask = |id| Ask::new(&many, "s").cost("tokens", 3_750).cost("jobs", 1).id(id);
    let first = admit(gate, ask("first")).await;
    clock.advance(SECOND);
    admit(gate, ask("second")).await;
    assert!(gate.settle(&first, &Costs::new().with("tokens", 1_000)).await.unwrap());
}
