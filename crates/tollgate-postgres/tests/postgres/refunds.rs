//! What is given back, and what is not: after the numbers changed, after a log was merged, and behind others.

use tollgate::clock::ManualClock;
use tollgate::core::bounds::{LOG_ENTRIES_MAX, PERMIT_TTL};
use tollgate::{
    Ask, Concurrency, Costs, Gate, GateExt, Limit, Permit, Policy, RollingWindow, Span,
};

use super::{TestDatabase, acquire, hourly, used};

/// At most 100 in any `window`.
fn window(window: Span) -> Policy {
    let rule = RollingWindow::new(100, window);
    Policy::new("window", [Limit::new("only", "requests", rule)]).unwrap()
}

async fn admit(gate: &impl Gate, ask: &Ask<'_>) -> Permit {
    gate.acquire(ask).await.unwrap().into_permit().unwrap()
}

/// Numbers that change and change back: the row looks as before, and only what it remembers of the change tells that a
/// permit from before it gives nothing back.
#[tokio::test]
async fn a_permit_from_before_a_change_gives_nothing_back() {
    let (database, clock, second) = (TestDatabase::new(), ManualClock::new(), Span::from_secs(1));
    let gate = database.gate_by(&clock).await;
    let (short, long) = (window(Span::from_mins(10)), window(Span::from_mins(20)));
    let before = admit(&gate, &Ask::new(&short, "s").cost("requests", 4)).await;
    let dear = admit(&gate, &Ask::new(&short, "s").cost("requests", 4)).await;
    for policy in [&long, &short] {
        clock.advance(second);
        acquire(&gate, policy, "s").await;
    }
    clock.advance(second);
    let after = admit(&gate, &Ask::new(&short, "s").cost("requests", 2)).await;
    assert_eq!(database.psql("SELECT cardinality(changed) FROM tollgate.entries"), "2");
    assert_eq!(used(&gate, &short, "s").await, 12);
    assert!(gate.release(&before).await.unwrap());
    assert!(!gate.release(&before).await.unwrap());
    assert_eq!(used(&gate, &short, "s").await, 12, "a permit from before the change gave back");
    assert!(gate.settle(&dear, &Costs::new().with("requests", 7)).await.unwrap());
    assert_eq!(used(&gate, &short, "s").await, 15, "what it cost beyond its estimate is charged");
    assert!(gate.release(&after).await.unwrap());
    assert_eq!(used(&gate, &short, "s").await, 13, "a permit from after the change gives back");
    clock.advance(PERMIT_TTL);
    let late = admit(&gate, &Ask::new(&short, "s")).await;
    assert!(gate.release(&late).await.unwrap());
    assert_eq!(database.psql("SELECT cardinality(changed) FROM tollgate.entries"), "0");
}

/// A row that remembers a change stays until the last permit from before it is too old.
#[tokio::test]
async fn cleaning_up_keeps_a_change_of_numbers() {
    let (database, clock) = (TestDatabase::new(), ManualClock::new());
    let gate = database.gate_by(&clock).await;
    acquire(&gate, &window(Span::from_mins(1)), "s").await;
    clock.advance(Span::from_secs(1));
    acquire(&gate, &window(Span::from_mins(2)), "s").await;
    acquire(&gate, &window(Span::from_mins(2)), "s").await;
    clock.advance(Span::from_micros(PERMIT_TTL.as_micros() - 1_000_001));
    assert_eq!(gate.clean_up(10).await.unwrap(), 0);
    clock.advance(Span::from_micros(1));
    assert_eq!(gate.clean_up(10).await.unwrap(), 1);
}

/// A permit that says so itself gives nothing back; its slot is freed and what it cost beyond its estimate is charged.
#[tokio::test]
async fn a_permit_under_other_numbers_gives_nothing_back() {
    let (database, clock) = (TestDatabase::new(), ManualClock::new());
    let gate = database.gate_by(&clock).await;
    let policy = Policy::new(
        "both",
        [
            Limit::new("rph", "requests", RollingWindow::new(100, Span::from_hours(1))),
            Limit::new("slots", "jobs", Concurrency::new(2, Span::from_mins(1))),
        ],
    )
    .unwrap();
    let ask = Ask::new(&policy, "s").cost("requests", 5).cost("jobs", 1);
    let released = admit(&gate, &ask).await.under_other_numbers();
    let settled = admit(&gate, &ask).await.under_other_numbers();
    assert!(gate.release(&released).await.unwrap());
    let standings = gate.standing(&policy, "s").await.unwrap();
    assert_eq!([standings[0].used, standings[1].used], [10, 1]);
    assert!(gate.settle(&settled, &Costs::new().with("requests", 8)).await.unwrap());
    let standings = gate.standing(&policy, "s").await.unwrap();
    assert_eq!([standings[0].used, standings[1].used], [13, 0]);
}

/// A log that only debt fills: its newest entries merge, so a charge among them gives nothing back and an older one does.
#[tokio::test]
async fn a_merged_charge_gives_nothing_back() {
    let (database, clock) = (TestDatabase::new(), ManualClock::new());
    let (gate, policy) = (database.gate_by(&clock).await, hourly(100));
    let (mut permits, all) = (Vec::new(), LOG_ENTRIES_MAX as u64 + 1);
    for _ in 0..all {
        permits.push(gate.charge(&Ask::new(&policy, "s")).await.unwrap());
        clock.advance(Span::from_micros(1));
    }
    let newest = permits.len() - 1;
    assert!(gate.release(&permits[newest - 1]).await.unwrap());
    assert_eq!(used(&gate, &policy, "s").await, all, "it was merged with a later one");
    assert!(gate.release(&permits[newest]).await.unwrap());
    assert!(gate.release(&permits[0]).await.unwrap());
    assert_eq!(used(&gate, &policy, "s").await, all - 2);
}

/// An ask behind others goes through if there is room for all of them, and takes its own part only.
#[tokio::test]
async fn an_ask_behind_others_leaves_them_room() {
    let (database, clock) = (TestDatabase::new(), ManualClock::new());
    let (gate, policy) = (database.gate_by(&clock).await, hourly(5));
    let two = Ask::new(&policy, "s").cost("requests", 2);
    let behind = || Ask::new(&policy, "s").cost("requests", 3).behind(vec![*two.amounts()]);
    let permit = admit(&gate, &behind()).await;
    assert_eq!(used(&gate, &policy, "s").await, 3);
    let denial = gate.acquire(&behind()).await.unwrap().into_denial().unwrap();
    assert_eq!(denial.reset_at(), Some(permit.grant().at + Span::from_hours(1)));
    let none = Ask::new(&policy, "s").cost("requests", 1).behind(vec![*two.amounts()]);
    assert!(!gate.acquire(&none).await.unwrap().is_admitted(), "it took what is left for others");
    assert_eq!(used(&gate, &policy, "s").await, 3);
    gate.charge(&none).await.unwrap();
    assert_eq!(used(&gate, &policy, "s").await, 4, "a charge does not queue");
}
