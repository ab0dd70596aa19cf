//! Coming back: one probe at a time, what was spent is posted before anything else, and once.

use std::sync::Arc;

use proptest::prelude::*;
use tollgate::{
    Ask, Clock, Concurrency, Costs, Gate, ManualClock, OnStoreFailure, Permit, Policy, Span,
};
use tollgate_testing::faulty::Trouble;

use crate::faulty::{Gated, Store, drive, fallback, hourly, idle, leap, pass, store, used, with};

/// A store that is away, and a gate that noticed.
async fn away(policy: &Policy) -> (Store, ManualClock, Arc<Gated>) {
    let (store, clock) = store();
    let (gate, _) = fallback(&store, &clock);
    store.always(Trouble::Down);
    drop(drive(&clock, gate.acquire(&Ask::new(policy, "opens"))).await);
    assert!(gate.is_degraded());
    (store, clock, gate)
}

async fn admitted(gate: &Gated, ask: &Ask<'_>) -> Permit {
    gate.acquire(ask).await.unwrap().permit().unwrap()
}

/// R000.10: the store is asked again after one probe, knows then what was spent without it, and decisions are exact.
#[tokio::test]
async fn r000_10_one_probe_after_the_store_is_back_the_books_balance() {
    let (store, clock) = store();
    let (gate, heard) = fallback(&store, &clock);
    let policy = hourly(10, OnStoreFailure::Open);
    let ask = Ask::new(&policy, "p").cost("requests", 2);
    for _ in 0..2 {
        admitted(&gate, &ask).await;
    }
    store.always(Trouble::Down);
    let since = clock.now();
    for _ in 0..3 {
        assert!(drive(&clock, gate.acquire(&ask)).await.unwrap().permit().unwrap().degraded);
    }
    pass(&clock, Span::from_mins(5)).await;
    assert!(gate.acquire(&ask).await.unwrap().permit().unwrap().degraded);
    store.always(Trouble::None);
    // The longest time between two probes.
    pass(&clock, Span::from_secs(30)).await;
    assert_eq!(used(&store, &policy, "p").await, 12);
    assert!(!gate.is_degraded() && gate.owing() == 0);
    let denial = gate.acquire(&ask).await.unwrap().denial().unwrap();
    assert!(!denial.degraded, "over by what was let through, and exact from here on");
    let told = heard.told.lock().unwrap();
    assert!(told.len() == 2 && told[1].starts_with("ended: "), "{told:?} since {since}");
}

/// Replies that are lost while the debt is posted: it is sent again under the same id, and charged once.
#[tokio::test]
async fn r000_12_a_debt_is_posted_once_though_replies_are_lost() {
    for lost in [Trouble::LosesReply, Trouble::HangsAfter] {
        let policy = hourly(100, OnStoreFailure::Open);
        let (store, clock, gate) = away(&policy).await;
        for _ in 0..5 {
            admitted(&gate, &Ask::new(&policy, "opens").cost("requests", 3)).await;
        }
        // The probe is answered, and then nothing is, for longer than one call is tried.
        store.always(lost);
        store.next_calls([Trouble::None]);
        pass(&clock, Span::from_mins(2)).await;
        assert_eq!(
            used(&store, &policy, "opens").await,
            16,
            "the store has it, and nobody was told"
        );
        assert!(gate.is_degraded());
        store.always(Trouble::None);
        pass(&clock, Span::from_secs(30)).await;
        assert_eq!((used(&store, &policy, "opens").await, gate.is_degraded()), (16, false));
    }
}

/// An ask under the caller's id that the store charged without a reply is admitted here too, and is charged once.
#[tokio::test]
async fn r000_12_an_id_is_charged_once_by_the_store_and_by_fallback_together() {
    let (store, clock) = store();
    let (gate, _) = fallback(&store, &clock);
    let policy = hourly(100, OnStoreFailure::Open);
    let ask = Ask::new(&policy, "p").cost("requests", 4).id("order-1");
    store.always(Trouble::LosesReply);
    let first = drive(&clock, gate.acquire(&ask)).await.unwrap().permit().unwrap();
    assert!(first.degraded && used(&store, &policy, "p").await == 4);
    let again = gate.acquire(&ask).await.unwrap().permit().unwrap();
    assert_eq!(again.grant(), first.grant());
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(30)).await;
    assert_eq!((used(&store, &policy, "p").await, gate.is_degraded()), (4, false));
}

/// Permits given without the store: settled here, in the outage and after it.
#[tokio::test]
async fn permits_given_without_the_store_are_settled_where_they_were_given() {
    let policy = hourly(100, OnStoreFailure::Open);
    let (store, clock, gate) = away(&policy).await;
    let ask = Ask::new(&policy, "p").cost("requests", 10);
    let cost = |amount| Costs::new().with("requests", amount);
    let [less, more, not_made, late_more, late_less] = [
        admitted(&gate, &ask).await,
        admitted(&gate, &ask).await,
        admitted(&gate, &ask).await,
        admitted(&gate, &ask).await,
        admitted(&gate, &ask).await,
    ];
    assert!(gate.settle(&less, &cost(4)).await.unwrap());
    assert!(!gate.settle(&less, &cost(1)).await.unwrap(), "the second time changes nothing");
    assert!(gate.settle(&more, &cost(13)).await.unwrap());
    assert!(gate.release(&not_made).await.unwrap() && !gate.release(&not_made).await.unwrap());
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(30)).await;
    assert_eq!(used(&store, &policy, "p").await, 4 + 13 + 10 + 10);
    // What is posted cannot shrink, and what it cost beyond that is posted too.
    assert!(gate.settle(&late_more, &cost(15)).await.unwrap());
    assert!(gate.settle(&late_less, &cost(1)).await.unwrap());
    assert!(!gate.settle(&late_more, &cost(90)).await.unwrap());
    pass(&clock, Span::from_secs(30)).await;
    assert_eq!((used(&store, &policy, "p").await, gate.is_degraded()), (4 + 13 + 15 + 10, false));
    // Another instance knows nothing of it but what it cost more; however often it is told.
    let (other, _) = fallback(&store, &clock);
    for _ in 0..2 {
        assert!(other.settle(&late_less, &cost(12)).await.unwrap());
    }
    assert!(!other.release(&late_less).await.unwrap());
    assert_eq!(used(&store, &policy, "p").await, 4 + 13 + 15 + 10 + 2);
}

/// Permits of the store that are settled or released in an outage: kept, and posted after it.
#[tokio::test]
async fn permits_of_the_store_are_settled_there_after_the_outage() {
    for action in [OnStoreFailure::Closed, OnStoreFailure::Fallback, OnStoreFailure::Open] {
        let (store, clock) = store();
        let (gate, _) = fallback(&store, &clock);
        let policy = hourly(100, action);
        let ask = Ask::new(&policy, "p").cost("requests", 10);
        let (settled, released) = (admitted(&gate, &ask).await, admitted(&gate, &ask).await);
        store.always(Trouble::Down);
        let actual = Costs::new().with("requests", 3);
        assert!(drive(&clock, gate.settle(&settled, &actual)).await.unwrap());
        assert!(gate.release(&released).await.unwrap());
        assert!(gate.renew(&settled).await.is_err());
        store.always(Trouble::None);
        pass(&clock, Span::from_secs(30)).await;
        assert_eq!((used(&store, &policy, "p").await, gate.is_degraded()), (3, false), "{action}");
    }
}

#[tokio::test]
async fn slots_of_the_share_are_renewed_and_freed_here() {
    let policy = with(Concurrency::new(20, Span::from_mins(1)), OnStoreFailure::Fallback);
    let (_store, clock, gate) = away(&policy).await;
    leap(&clock, Span::from_mins(1)).await;
    let ask = Ask::new(&policy, "p");
    let (first, second) = (admitted(&gate, &ask).await, admitted(&gate, &ask).await);
    pass(&clock, Span::from_secs(40)).await;
    let renewed = gate.renew(&first).await.unwrap();
    assert_eq!(renewed.expires_at(), Some(clock.now() + Span::from_mins(1)));
    assert!(!gate.acquire(&ask).await.unwrap().is_admitted());
    assert!(gate.release(&second).await.unwrap());
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    assert_eq!(gate.standing(&policy, "p").await.unwrap()[0].remaining, 0);
}

/// Which gate each of several callers asks.
#[derive(Clone, Copy)]
enum Callers {
    /// All of them the same one.
    Together,
    /// Sabotage: each a gate of its own, so that nobody knows what the others owe, or that they are asking.
    Apart,
}

impl Callers {
    /// The gate of the next caller.
    fn gate(self, store: &Store, clock: &ManualClock, gate: &Arc<Gated>) -> Arc<Gated> {
        match self {
            Self::Together => Arc::clone(gate),
            Self::Apart => fallback(store, clock).0,
        }
    }
}

/// How many of twenty are admitted by the store when a subject comes back to it with a debt as large as its limit.
async fn overtake(callers: Callers) -> usize {
    let policy = hourly(10, OnStoreFailure::Open);
    let (store, clock, gate) = away(&policy).await;
    for _ in 0..10 {
        admitted(&gate, &Ask::new(&policy, "p")).await;
    }
    store.always(Trouble::None);
    assert!(gate.probe().await);
    let mut asks = Vec::new();
    for number in 0..20 {
        let (gate, policy) = (callers.gate(&store, &clock, &gate), policy.clone());
        asks.push(tokio::spawn(async move {
            // Gates of their own would draw the same ids.
            let ask = Ask::new(&policy, "p").id(format!("caller-{number}"));
            gate.acquire(&ask).await.unwrap()
        }));
    }
    let mut admitted = 0;
    for ask in asks {
        let decision = drive(&clock, ask).await.unwrap();
        let degraded = decision.clone().denial().is_some_and(|denial| denial.degraded);
        assert!(!degraded, "by the store");
        admitted += usize::from(decision.is_admitted());
    }
    assert!(!drive(&clock, gate.acquire(&Ask::new(&policy, "p"))).await.unwrap().is_admitted());
    assert_eq!(used(&store, &policy, "p").await, 10 + admitted as u64);
    admitted
}

/// A subject that comes back to the store comes after its debt, however many ask at once.
#[tokio::test]
async fn nobody_overtakes_the_debt_of_their_subject() {
    assert_eq!(overtake(Callers::Together).await, 0);
    assert_eq!(overtake(Callers::Apart).await, 10, "the check can fail");
}

/// The most calls that are on their way at once while twenty want to know whether the store is back.
async fn probe_together(callers: Callers) -> usize {
    let policy = hourly(10, OnStoreFailure::Closed);
    let (store, clock, gate) = away(&policy).await;
    let before = store.calls();
    assert_eq!(store.most_at_once(), 1);
    for round in 0..10 {
        let mut probes = Vec::new();
        for _ in 0..20 {
            let gate = callers.gate(&store, &clock, &gate);
            drop(drive(&clock, gate.acquire(&Ask::new(&policy, "opens"))).await);
            probes.push(tokio::spawn(async move { gate.probe().await }));
        }
        drive(&clock, async {
            for probe in probes {
                assert!(!probe.await.unwrap(), "round {round}");
            }
        })
        .await;
    }
    assert!(before < store.calls());
    store.most_at_once()
}

/// One probe is on its way at any time, however many want to know.
#[tokio::test]
async fn one_probe_at_a_time() {
    assert_eq!(probe_together(Callers::Together).await, 1);
    assert!(1 < probe_together(Callers::Apart).await, "the check can fail");
}

/// A caller that goes away half way through posting loses nothing and blocks nobody.
#[tokio::test]
async fn a_caller_that_gives_up_while_posting_loses_nothing() {
    let policy = hourly(10, OnStoreFailure::Open);
    let (store, clock, gate) = away(&policy).await;
    admitted(&gate, &Ask::new(&policy, "p")).await;
    store.always(Trouble::HangsAfter);
    store.next_calls([Trouble::None]);
    assert!(gate.probe().await);
    let impatient = {
        let (gate, policy) = (Arc::clone(&gate), policy.clone());
        tokio::spawn(async move { gate.acquire(&Ask::new(&policy, "p")).await })
    };
    idle().await;
    impatient.abort();
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(40)).await;
    assert_eq!((used(&store, &policy, "p").await, gate.is_degraded()), (1, false));
}

/// A second outage starts with the share used again, whatever the first one left.
#[tokio::test]
async fn every_outage_starts_with_the_share_used() {
    let policy = hourly(20, OnStoreFailure::Fallback);
    let (store, clock, gate) = away(&policy).await;
    let ask = Ask::new(&policy, "p");
    leap(&clock, Span::from_hours(1)).await;
    assert!(admitted(&gate, &ask).await.degraded);
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(30)).await;
    assert!(!gate.is_degraded() && used(&store, &policy, "p").await == 1);
    store.always(Trouble::Down);
    assert!(!drive(&clock, gate.acquire(&ask)).await.unwrap().is_admitted());
    leap(&clock, Span::from_mins(59)).await;
    assert!(!gate.acquire(&ask).await.unwrap().is_admitted());
    leap(&clock, Span::from_mins(1)).await;
    assert!(gate.acquire(&ask).await.unwrap().is_admitted());
}

/// A program that ends posts what it owes.
#[tokio::test]
async fn what_is_owed_is_posted_at_the_end() {
    let policy = hourly(10, OnStoreFailure::Open);
    let (store, clock, gate) = away(&policy).await;
    admitted(&gate, &Ask::new(&policy, "p")).await;
    assert!(drive(&clock, gate.drain()).await.is_err());
    store.always(Trouble::None);
    gate.drain().await.unwrap();
    assert_eq!((used(&store, &policy, "p").await, gate.owing()), (1, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Trouble(Trouble),
    Ask(usize, u64),
    Settle(usize, u64),
    Release(usize),
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let trouble = prop_oneof![
        3 => Just(Trouble::None),
        1 => Just(Trouble::Down),
        1 => Just(Trouble::LosesReply),
        1 => Just(Trouble::HangsAfter),
        1 => Just(Trouble::Hangs),
        1 => Just(Trouble::Throttles),
    ];
    let step = prop_oneof![
        2 => trouble.prop_map(Step::Trouble),
        6 => (0..3_usize, 1..9_u64).prop_map(|(subject, cost)| Step::Ask(subject, cost)),
        2 => (any::<prop::sample::Index>(), 1..12_u64).prop_map(|(at, cost)| Step::Settle(at.index(64), cost)),
        1 => any::<prop::sample::Index>().prop_map(|at| Step::Release(at.index(64))),
        2 => (1..40_u64).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// Whatever fails and whenever: each ask is under an id of its own that lives longer than the outages, and when the
    /// store is back it has been charged for what was admitted, no more and no less, except that what was posted does not
    /// shrink.
    #[test]
    fn the_books_balance_whatever_fails(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(balances(steps))?;
    }
}

async fn balances(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (store, clock) = store();
    let (gate, _) = fallback(&store, &clock);
    let rule = tollgate::RollingWindow::new(1_000_000, Span::from_hours(24));
    let policy = with(rule, OnStoreFailure::Open);
    let subjects = ["a", "b", "c"];
    let mut given: Vec<(usize, Permit, u64, bool)> = Vec::new();
    let mut least = [0_u64; 3];
    let mut most = [0_u64; 3];
    for (number, step) in steps.into_iter().enumerate() {
        match step {
            Step::Trouble(trouble) => store.always(trouble),
            Step::Pass(seconds) => pass(&clock, Span::from_secs(seconds)).await,
            Step::Ask(subject, cost) => {
                let ask = Ask::new(&policy, subjects[subject]).cost("requests", cost);
                let ask = ask.id_for(format!("ask-{number}"), Span::from_hours(24));
                let since = clock.now();
                let permit = drive(&clock, gate.acquire(&ask)).await.unwrap().permit().unwrap();
                let took = clock.now().since(since);
                prop_assert!(took <= Span::from_secs(4), "answered after {took}");
                least[subject] += cost;
                most[subject] += cost;
                given.push((subject, permit, cost, false));
            }
            Step::Settle(at, actual) if at < given.len() => {
                let (subject, permit, cost, settled) = &mut given[at];
                let costs = Costs::new().with("requests", actual);
                let done = drive(&clock, gate.settle(permit, &costs)).await.unwrap();
                if !std::mem::replace(settled, true) {
                    prop_assert!(done);
                    least[*subject] = least[*subject] + actual - *cost;
                    most[*subject] += actual.max(*cost) - *cost;
                }
            }
            Step::Release(at) if at < given.len() => {
                let (subject, permit, cost, settled) = &mut given[at];
                drive(&clock, gate.release(permit)).await.unwrap();
                if !std::mem::replace(settled, true) {
                    least[*subject] -= *cost;
                }
            }
            Step::Settle(..) | Step::Release(_) => {}
        }
    }
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(60)).await;
    prop_assert!(!gate.is_degraded() && gate.owing() == 0);
    for (place, subject) in subjects.iter().enumerate() {
        let used = used(&store, &policy, subject).await;
        let (least, most) = (least[place], most[place]);
        prop_assert!(least <= used && used <= most, "{subject}: {least} <= {used} <= {most}");
    }
    Ok(())
}
