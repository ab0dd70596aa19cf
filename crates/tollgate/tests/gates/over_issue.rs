//! R002.5: observers hear exactly what strategies admitted beyond a limit, and nothing where nothing was.

use std::sync::{Arc, Mutex};

use tollgate::clock::ManualClock;
use tollgate::observe::{Event, Observer};
use tollgate::policy::{OnStoreFailure, Period, Rule};
use tollgate::strategy::{
    Fallback, FallbackOptions, Leased, LeasedOptions, Optimistic, OptimisticOptions,
};
use tollgate::{
    Ask, CalendarWindow, GateExt, Limit, Memory, Policy, RollingWindow, Span, TokenBucket,
};
use tollgate_conformance::faulty::Trouble;

use crate::faulty::{Gated, Store, drive, hourly, pass, resend, store, used, with};
use crate::memory;

/// What was over, in the order it was told.
#[derive(Debug, Default)]
struct Over(Mutex<Vec<(String, u64)>>);

impl Observer for Over {
    fn observe(&self, event: &Event<'_>) {
        if let Event::OverIssued { limit, amount, .. } = event {
            self.0.lock().unwrap().push(((*limit).to_owned(), *amount));
        }
    }
}

impl Over {
    fn sum(&self, limit: &str) -> u64 {
        let told = self.0.lock().unwrap();
        told.iter().filter(|(name, _)| name == limit).map(|(_, amount)| amount).sum()
    }
}

type Instance = Optimistic<Arc<Memory>>;

fn instances(count: usize, over: &Arc<Over>) -> (Vec<Instance>, Arc<Memory>, ManualClock) {
    let (store, clock) = memory();
    let options = OptimisticOptions::new(1_000);
    let one = |_| {
        let clock = Arc::new(clock.clone());
        Optimistic::new(Arc::clone(&store), options.clone(), clock).observer(over.clone())
    };
    ((0..count).map(one).collect(), store, clock)
}

/// How many asks for `subject` each gate in turn admits until it has no more room; each first knows of the others.
async fn exhaust(gates: &[Instance], policy: &Policy, subject: &str) -> u64 {
    let mut admitted = 0;
    for gate in gates {
        admitted +=
            u64::from(gate.acquire(&Ask::new(policy, subject)).await.unwrap().is_admitted());
    }
    for gate in gates {
        while gate.acquire(&Ask::new(policy, subject)).await.unwrap().is_admitted() {
            admitted += 1;
        }
    }
    admitted
}

fn rules() -> [Rule; 4] {
    let hour = Span::from_hours(1);
    [
        TokenBucket::per_minute(10).into(),
        RollingWindow::new(10, hour).into(),
        RollingWindow::new(10, hour).resolution(6).into(),
        CalendarWindow::new(10, Period::Hour).into(),
    ]
}

/// R002.5: the instances of an optimistic fleet count together what they admitted beyond the limit, to the last request.
#[tokio::test]
async fn r002_5_optimistic_instances_count_what_they_were_over_by() {
    for rule in rules() {
        let over = Arc::new(Over::default());
        let (gates, store, _clock) = instances(3, &over);
        let policy = Policy::new("fleet", [Limit::new("rate", "requests", rule.clone())]).unwrap();
        let admitted = exhaust(&gates, &policy, "shared").await;
        assert!(10 < admitted, "{rule:?} was never over");
        for gate in &gates {
            gate.flush(&policy, "shared").await.unwrap();
        }
        let used = store.standing(&policy, "shared").await.unwrap()[0].used;
        assert_eq!((used, over.sum("rate")), (admitted, admitted - 10), "{rule:?}");
    }
}

/// R002.5: each limit counts in its own unit, and only beyond the limit as configured: headroom absorbs the rest.
#[tokio::test]
async fn r002_5_over_issue_is_counted_by_limit_and_beyond_its_headroom() {
    let over = Arc::new(Over::default());
    let (gates, _store, _clock) = instances(2, &over);
    let hour = Span::from_hours(1);
    let limits = [
        Limit::new("calls", "requests", RollingWindow::new(12, hour))
            .headroom(tollgate::policy::Headroom::Percent(50)),
        Limit::new("tokens", "tokens", RollingWindow::new(70, hour)),
    ];
    let policy = Policy::new("fleet", limits).unwrap();
    let ask = Ask::new(&policy, "shared").cost("requests", 1).cost("tokens", 10);
    let mut admitted = 0;
    // Both instances learn of each other's first ask; then they admit up to 6 calls each by their own view.
    for round in 0..2 {
        for gate in &gates {
            while gate.acquire(&ask).await.unwrap().is_admitted() {
                admitted += 1;
                if round == 0 {
                    break;
                }
            }
        }
    }
    for gate in &gates {
        gate.flush(&policy, "shared").await.unwrap();
    }
    assert_eq!((admitted, over.sum("calls"), over.sum("tokens")), (11, 0, 40));
}

/// R002.5: nothing is counted where nothing was over: subjects of one instance each, and a leased gate.
#[tokio::test]
async fn r002_5_over_issue_is_zero_where_nothing_was_over() {
    for rule in rules() {
        let over = Arc::new(Over::default());
        let policy = Policy::new("fleet", [Limit::new("rate", "requests", rule.clone())]).unwrap();
        let (gates, store, clock) = instances(3, &over);
        for (number, gate) in gates.iter().enumerate() {
            let subject = format!("of {number}");
            assert_eq!(
                exhaust(std::slice::from_ref(gate), &policy, &subject).await,
                10,
                "{rule:?}"
            );
            gate.flush(&policy, &subject).await.unwrap();
        }
        let leased = Policy::builder("leased")
            .limit(Limit::new("rate", "requests", TokenBucket::per_minute(10)))
            .block_ttl(Span::from_secs(1))
            .build()
            .unwrap();
        let gate =
            Leased::new(Arc::clone(&store), LeasedOptions::default(), Arc::new(clock.clone()));
        while gate.acquire(&Ask::new(&leased, "l")).await.unwrap().is_admitted() {}
        assert_eq!(over.sum("rate"), 0, "{rule:?}");
    }
}

fn fallback(store: &Store, clock: &ManualClock) -> (Arc<Gated>, Arc<Over>) {
    let over = Arc::new(Over::default());
    let (settings, time) = (FallbackOptions::new(2), Arc::new(clock.clone()));
    let gate = Fallback::new(resend(store, clock), settings, time).unwrap();
    (Arc::new(gate.observer(over.clone())), over)
}

/// Spends `before` at the store and `during` in an outage, and posts it.
async fn outage(policy: &Policy, before: u64, during: u64) -> (Arc<Over>, u64) {
    let (store, clock) = store();
    let (gate, over) = fallback(&store, &clock);
    let ask = Ask::new(policy, "p");
    for _ in 0..before {
        assert!(gate.acquire(&ask).await.unwrap().is_admitted());
    }
    store.always(Trouble::Down);
    for _ in 0..during {
        assert!(drive(&clock, gate.acquire(&ask)).await.unwrap().is_admitted());
    }
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(30)).await;
    assert!(!gate.is_degraded() && gate.owing() == 0);
    (over, used(&store, policy, "p").await)
}

/// R002.5: an outage with `open` counts what was admitted beyond the limit when it is posted, also on a bucket, which the
/// posting empties and puts into no debt; and nothing if all of it fits.
#[tokio::test]
async fn r002_5_open_counts_what_it_was_over_by() {
    let hourly = hourly(10, OnStoreFailure::Open);
    for (before, during) in [(7, 2), (7, 3), (7, 4), (7, 20), (0, 10), (0, 11), (10, 5)] {
        let (over, used) = outage(&hourly, before, during).await;
        let expected = (before + during).saturating_sub(10);
        assert_eq!((used, over.sum("only")), (before + during, expected), "{before}, {during}");
    }
    let day = Span::from_hours(24);
    let bucket = with(TokenBucket::per(10, day), OnStoreFailure::Open);
    let (over, used) = outage(&bucket, 3, 20).await;
    assert_eq!((used, over.sum("only")), (10, 13));
    let (over, used) = outage(&bucket, 3, 7).await;
    assert_eq!((used, over.sum("only")), (10, 0));
}

/// R002.5: a debt whose reply is lost is counted once.
#[tokio::test]
async fn r002_5_a_debt_that_is_sent_again_is_counted_once() {
    let policy = hourly(10, OnStoreFailure::Open);
    let (store, clock) = store();
    let (gate, over) = fallback(&store, &clock);
    let ask = Ask::new(&policy, "p");
    store.always(Trouble::Down);
    for _ in 0..15 {
        assert!(drive(&clock, gate.acquire(&ask)).await.unwrap().is_admitted());
    }
    // The probe, which reads and writes, and the look before each charge are answered; the charges are not.
    store.always(Trouble::LosesReply);
    store.next_calls([Trouble::None; 3]);
    pass(&clock, Span::from_mins(2)).await;
    assert_eq!(over.sum("only"), 0, "nobody knows yet");
    store.always(Trouble::None);
    pass(&clock, Span::from_secs(30)).await;
    assert_eq!(used(&store, &policy, "p").await, 15);
    assert_eq!(over.sum("only"), 5, "{over:?}");
}
