//! After an outage: what the store is charged is what still counts, so that admissions go on.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::policy::{OnStoreFailure, Period, Rule};
use tollgate::strategy::FallbackOptions;
use tollgate::{
    Ask, CalendarWindow, Clock, Costs, GateExt, Limit, Policy, RollingWindow, Span, Timestamp,
    TokenBucket,
};
use tollgate_conformance::faulty::Trouble;

use crate::faulty::{Gated, Store, drive, fallback_with, leap, pass, store, used, with};

const BOTH: [OnStoreFailure; 2] = [OnStoreFailure::Open, OnStoreFailure::Fallback];

/// One instance, its store, and callers that ask all the time.
struct Bench {
    store: Store,
    clock: ManualClock,
    gate: Arc<Gated>,
    policy: Policy,
}

impl Bench {
    fn new(policy: Policy, instances: u64) -> Self {
        let (store, clock) = store();
        let gate = fallback_with(&store, &clock, FallbackOptions::new(instances)).0;
        Self { store, clock, gate, policy }
    }

    fn only(rule: impl Into<Rule>, action: OnStoreFailure, instances: u64) -> Self {
        Self::new(with(rule, action), instances)
    }

    /// Asks for one every `every` until `span` has passed; how many were admitted.
    async fn ask(&self, every: Span, span: Span) -> u64 {
        let (until, mut admitted) = (self.clock.now() + span, 0);
        while self.clock.now() < until {
            let ask = Ask::new(&self.policy, "p");
            let answer = drive(&self.clock, self.gate.acquire(&ask)).await.unwrap();
            admitted += u64::from(answer.is_admitted());
            leap(&self.clock, every).await;
        }
        admitted
    }

    /// The store is away for `span`, while callers ask every `every`, and then is back.
    async fn outage(&self, every: Span, span: Span) -> u64 {
        self.store.always(Trouble::Down);
        let admitted = self.ask(every, span).await;
        assert!(self.gate.is_degraded());
        self.back().await;
        admitted
    }

    async fn back(&self) {
        self.store.always(Trouble::None);
        // One may be on its way that began before.
        drive(&self.clock, async {
            while !self.gate.probe().await {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// What the store has used of each limit.
    async fn used(&self) -> Vec<u64> {
        let standings = self.store.inner().standing(&self.policy, "p").await.unwrap();
        standings.iter().map(|standing| standing.used).collect()
    }
}

const SECOND: Span = Span::from_secs(1);

/// A bucket of 20 per second, 20 s without the store, twice as many asks as it allows: the first second after the store
/// is back admits what the rate is.
#[tokio::test]
async fn r000_10_a_bucket_admits_at_its_rate_in_the_first_second_after_an_outage() {
    for action in BOTH {
        for instances in [1, 10] {
            let bench = Bench::only(TokenBucket::per_second(20), action, instances);
            let every = Span::from_millis(25);
            assert!(20 <= bench.ask(every, SECOND).await);
            let without = bench.outage(every, Span::from_secs(20)).await;
            let share = 400 / instances;
            match action {
                OnStoreFailure::Open => assert!((790..=800).contains(&without), "{without}"),
                _ => assert!((share - 4..=share).contains(&without), "{without} of {instances}"),
            }
            let first = bench.ask(every, SECOND).await;
            let most = 20 + 20;
            assert!((19..=most).contains(&first), "{action}, {instances} instances: {first}");
            let next = bench.ask(every, SECOND).await;
            assert!((19..=21).contains(&next), "{action}, {instances} instances: {next}");
        }
    }
}

/// Many instances that let everything through leave the bucket empty, and not in as many debts.
#[tokio::test]
async fn several_instances_leave_one_empty_bucket() {
    let (memory, clock) = store();
    let policy = with(TokenBucket::per_second(20), OnStoreFailure::Open);
    let mut gates = Vec::new();
    for _ in 0..5 {
        let away = Arc::new(tollgate_conformance::faulty::Faulty::new(memory.inner().clone()));
        away.always(Trouble::Down);
        let gate = fallback_with(&away, &clock, FallbackOptions::new(5)).0;
        gates.push((gate, away));
    }
    let ask = Ask::new(&policy, "p");
    for _ in 0..400 {
        for (gate, _) in &gates {
            assert!(drive(&clock, gate.acquire(&ask)).await.unwrap().is_admitted());
        }
        leap(&clock, Span::from_millis(25)).await;
    }
    for (gate, away) in &gates {
        away.always(Trouble::None);
        assert!(gate.probe().await);
        gate.shutdown(Timestamp::MAX).await.unwrap();
    }
    assert_eq!(used(&memory, &policy, "p").await, 20);
    leap(&clock, Span::from_millis(50)).await;
    assert!(gates[0].0.acquire(&ask).await.unwrap().is_admitted());
}

/// What was admitted without the store leaves a rolling window a window after it was admitted, not after it was posted.
#[tokio::test]
async fn a_rolling_window_forgets_an_outage_as_if_there_had_been_none() {
    for (action, instances) in [(OnStoreFailure::Open, 10), (OnStoreFailure::Fallback, 1)] {
        let bench = Bench::only(RollingWindow::new(100, Span::from_secs(10)), action, instances);
        let every = Span::from_millis(100);
        bench.ask(every, SECOND).await;
        leap(&bench.clock, Span::from_secs(60)).await;
        bench.store.always(Trouble::Down);
        bench.ask(every, Span::from_secs(12)).await;
        // Used when the outage began, a share is back after 10 s.
        let began = bench.clock.now();
        assert!(0 < bench.ask(every, Span::from_secs(4)).await);
        bench.back().await;
        bench.gate.shutdown(Timestamp::MAX).await.unwrap();
        let posted = bench.used().await[0];
        assert!(posted <= 100, "{posted}: what has left the window is not posted");
        // Nobody asks; 8 s later everything is older than 8 s, and 10 s after it began only later ones are left.
        leap(&bench.clock, (began + Span::from_secs(11)).since(bench.clock.now())).await;
        let left = bench.used().await[0];
        assert!((29..=31).contains(&left), "{action}: {left} left of {posted}");
        leap(&bench.clock, Span::from_secs(3)).await;
        assert_eq!(bench.used().await[0], 0, "{action}: all left when they would have left");
    }
}

/// A bucket with boundaries gets its refill of the outage, a calendar only what was spent in the window that is open.
#[tokio::test]
async fn boundaries_that_passed_in_the_outage_count() {
    let bucket = TokenBucket::per_minute(30).at_boundaries();
    let calendar = CalendarWindow::new(30, Period::Minute);
    for rule in [Rule::from(bucket), calendar.into()] {
        let bench = Bench::only(rule, OnStoreFailure::Open, 1);
        let minute = 60_000_000;
        let boundary = Span::from_micros(minute - bench.clock.now().as_micros() % minute);
        leap(&bench.clock, boundary).await;
        bench.outage(SECOND, Span::from_secs(5 * 60 + 10)).await;
        bench.gate.shutdown(Timestamp::MAX).await.unwrap();
        let used = bench.used().await[0];
        assert!((10..=30).contains(&used), "{:?}: {used}", bench.policy);
        if let Rule::CalendarWindow(_) = bench.policy.limits().next().unwrap().rule() {
            assert!((9..=11).contains(&used), "what was spent in this minute: {used}");
        }
    }
}

/// Limits that count the same unit are charged one by one: the day knows everything, and the bucket goes on.
#[tokio::test]
async fn a_day_counts_an_outage_in_full_and_does_not_stop_a_bucket() {
    for action in BOTH {
        let limits = [
            Limit::new("rate", "requests", TokenBucket::per_second(20)),
            Limit::new("month", "requests", CalendarWindow::new(100_000, Period::Month)),
            Limit::new("tokens", "tokens", TokenBucket::per_second(1_000)),
        ];
        let policy = Policy::builder("both").limits(limits).on_store_failure(action);
        let bench = Bench::new(policy.build().unwrap(), 1);
        // The share of the month is used until it ends.
        if action == OnStoreFailure::Fallback {
            bench.store.always(Trouble::Down);
            bench.ask(SECOND, SECOND).await;
            leap(&bench.clock, Span::from_hours(24 * 31)).await;
        }
        let every = Span::from_millis(25);
        let without = bench.outage(every, Span::from_secs(20)).await;
        bench.gate.shutdown(Timestamp::MAX).await.unwrap();
        let used = bench.used().await;
        assert_eq!((used[0] <= 20, used[1]), (true, without), "{action}: {used:?}");
        assert!(19 <= bench.ask(every, SECOND).await, "{action}");
    }
}

/// Permits of an outage: settled before it is posted they count as they were settled; after it, only what they cost more.
#[tokio::test]
async fn permits_of_an_outage_are_settled_before_and_after_it_is_posted() {
    for action in BOTH {
        let bench = Bench::only(TokenBucket::per_second(20).burst(100), action, 1);
        let cost = |amount| Costs::new().with("requests", amount);
        let ask = Ask::new(&bench.policy, "p").cost("requests", 20);
        bench.store.always(Trouble::Down);
        drop(drive(&bench.clock, bench.gate.acquire(&Ask::new(&bench.policy, "opens"))).await);
        leap(&bench.clock, Span::from_secs(10)).await;
        let mut permits = Vec::new();
        for _ in 0..4 {
            let answer = bench.gate.acquire(&ask).await.unwrap();
            permits.push(answer.into_permit().unwrap());
        }
        assert!(bench.gate.settle(&permits[0], &cost(5)).await.unwrap());
        assert!(bench.gate.release(&permits[1]).await.unwrap());
        bench.back().await;
        bench.gate.shutdown(Timestamp::MAX).await.unwrap();
        assert_eq!(bench.used().await, [5 + 20 + 20], "{action}");
        assert!(!bench.gate.release(&permits[2]).await.unwrap(), "what is posted stays");
        assert!(bench.gate.settle(&permits[3], &cost(31)).await.unwrap());
        assert!(!bench.gate.settle(&permits[3], &cost(99)).await.unwrap());
        bench.gate.shutdown(Timestamp::MAX).await.unwrap();
        assert_eq!(bench.used().await, [45 + 11], "{action}");
    }
}

/// A debt in doubt that is sent again later is charged once, as of its first time.
#[tokio::test]
async fn a_debt_that_is_sent_again_later_is_charged_once() {
    for lost in [Trouble::LosesReply, Trouble::HangsAfter] {
        let bench = Bench::only(TokenBucket::per_second(1).burst(100), OnStoreFailure::Open, 10);
        bench.store.always(Trouble::Down);
        let ask = Ask::new(&bench.policy, "p").cost("requests", 80);
        assert!(drive(&bench.clock, bench.gate.acquire(&ask)).await.unwrap().is_admitted());
        bench.store.always(lost);
        bench.store.next_calls([Trouble::None; 2]);
        assert!(bench.gate.probe().await);
        assert!(drive(&bench.clock, bench.gate.shutdown(Timestamp::MAX)).await.is_err());
        let charged_at = bench.clock.now();
        assert!(0 < bench.used().await[0], "the store has it");
        bench.store.always(Trouble::None);
        pass(&bench.clock, Span::from_secs(30)).await;
        assert!(!bench.gate.is_degraded());
        let since = bench.clock.now().since(charged_at).as_micros() / 1_000_000;
        let used = bench.used().await[0];
        let most = 80 - since;
        assert!((most - 8..=most).contains(&used), "{lost:?}: {used} after {since} s");
    }
}
