//! Clocks that disagree: with the service, and with each other.

use std::sync::{Arc, Mutex};

use tollgate::clock::ManualClock;
use tollgate::observe::{Event, Observer};
use tollgate::repair::{AHEAD_MAX_DEFAULT, list_future, repair_entry};
use tollgate::{
    Ask, Clock, Concurrency, Decision, GateExt, Policy, RollingWindow, Span, Timestamp, TokenBucket,
};
use tollgate_dynamodb::DynamoDb;
use tollgate_testkit::servers::dynamodb::Misbehaviour;

use crate::{Dynamo, MINUTE, TestTable, admit, coarse, connect, deny, options, remaining, single};

const HOUR: Span = Span::from_hours(1);

/// Brokers whose clocks may be set, on a service that knows the true time.
struct Fleet {
    table: TestTable,
    truth: ManualClock,
    mended: Arc<Mended>,
}

/// What observers hear of replaced entries.
#[derive(Debug, Default)]
struct Mended(Mutex<Vec<(String, String, Span)>>);

impl Observer for Mended {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Repaired { policy, subject, ahead } = event {
            let seen = (policy.name().to_owned(), (*subject).to_owned(), *ahead);
            self.0.lock().unwrap().push(seen);
        }
    }
}

impl Fleet {
    async fn new() -> Self {
        let truth = ManualClock::at("2026-11-15T08:30:00Z".parse().unwrap());
        let fleet = Self { table: TestTable::new().await, truth, mended: Arc::default() };
        fleet.date();
        fleet
    }

    /// Replies carry the true time.
    fn date(&self) {
        let micros = i64::try_from(self.truth.now().as_micros()).unwrap();
        let now = jiff::Timestamp::from_microsecond(micros).unwrap();
        let date = now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        self.table.server.proxy().date_replies(Some(date));
    }

    /// Lets time pass everywhere.
    fn pass(&self, span: Span, clocks: &[&ManualClock]) {
        for clock in [&self.truth].iter().chain(clocks) {
            clock.advance(span);
        }
        self.date();
    }

    /// A broker and its clock, which is right.
    async fn broker(&self) -> (Dynamo, ManualClock) {
        let clock = ManualClock::at(self.truth.now());
        let options = options(&self.table.server.endpoint(), Arc::new(clock.clone()));
        let observer = Arc::clone(&self.mended) as Arc<dyn Observer>;
        (connect(options.observer(observer)).await, clock)
    }

    /// Asks until it is denied, and returns how often it was admitted.
    async fn drain(&self, gate: &Dynamo, policy: &Policy) -> u64 {
        let unit = policy.units().next().unwrap();
        let mut admitted = 0;
        loop {
            match gate.acquire(&Ask::new(policy, "s").cost(unit, 1)).await {
                Ok(Decision::Admitted(_)) => admitted += 1,
                Ok(Decision::Denied(_)) => return admitted,
                // Answers that do not count are asked again.
                Err(error) => assert!(error.is_unavailable(), "{error}"),
            }
        }
    }
}

/// Every way in which a limit is kept: a level, counters, a log and slots.
fn kinds() -> [Policy; 4] {
    [
        single(TokenBucket::per_minute(20)),
        coarse(20),
        single(RollingWindow::new(20, MINUTE)),
        Policy::new("single", [tollgate::Limit::new("only", "jobs", Concurrency::new(20, MINUTE))])
            .unwrap(),
    ]
}

/// A broker whose clock is an hour off for a moment, in either direction, neither admits more than fits the true window nor
/// locks the subject for the others.
#[tokio::test]
async fn a_clock_that_is_off_for_a_moment_neither_overfills_nor_locks() {
    for policy in kinds() {
        for ahead in [true, false] {
            let fleet = Fleet::new().await;
            let (wrong, clock) = fleet.broker().await;
            let (right, other) = fleet.broker().await;
            let unit = policy.units().next().unwrap();
            for _ in 0..5 {
                admit(&wrong, &Ask::new(&policy, "s").cost(unit, 1)).await;
            }
            let now = clock.now();
            clock.step(if ahead { now + HOUR } else { now - HOUR });
            let mut admitted = 5 + fleet.drain(&wrong, &policy).await;
            clock.step(now);
            admitted += fleet.drain(&wrong, &policy).await + fleet.drain(&right, &policy).await;
            assert_eq!(admitted, 20, "{policy:?}, ahead: {ahead}");
            fleet.pass(Span::from_secs(66), &[&clock, &other]);
            assert_eq!(fleet.drain(&right, &policy).await, 20, "{policy:?}, ahead: {ahead}");
            assert!(fleet.mended.0.lock().unwrap().is_empty());
        }
    }
}

/// A virtual machine that was paused for an hour is behind by both of its clocks; a reply shows it, and the difference is
/// made up for. When NTP then sets the clock, nothing is decided an hour ahead.
#[tokio::test]
async fn a_machine_that_resumes_behind_is_right_before_and_after_ntp() {
    let fleet = Fleet::new().await;
    let (resumed, clock) = fleet.broker().await;
    let (right, other) = fleet.broker().await;
    let policy = coarse(20);
    admit(&resumed, &Ask::new(&policy, "s")).await;
    fleet.pass(HOUR, &[&other]);
    let mut admitted = fleet.drain(&resumed, &policy).await;
    clock.step(fleet.truth.now());
    admitted += fleet.drain(&resumed, &policy).await + fleet.drain(&right, &policy).await;
    assert_eq!(admitted, 20);
    assert_eq!(resumed.clock_offset_micros(), 0);
    fleet.pass(Span::from_secs(66), &[&clock, &other]);
    assert_eq!(fleet.drain(&right, &policy).await, 20);
}

/// A store that was never connected asks for the time before its first decision.
#[tokio::test]
async fn the_first_decision_waits_for_the_time_of_the_service() {
    let fleet = Fleet::new().await;
    let clock = ManualClock::at(fleet.truth.now() + HOUR);
    let options = options(&fleet.table.server.endpoint(), Arc::new(clock));
    let gate = DynamoDb::new(options).await.unwrap();
    let permit = admit(&gate, &Ask::new(&coarse(5), "s")).await;
    assert!(permit.grant().at.since(fleet.truth.now()) < Span::from_secs(2));
}

/// While the service is away, a clock that was set decides nothing.
#[tokio::test]
async fn without_evidence_nothing_is_decided() {
    let fleet = Fleet::new().await;
    let (gate, clock) = fleet.broker().await;
    let policy = coarse(5);
    clock.step(clock.now() + HOUR);
    fleet.table.server.proxy().always(Some(("GetItem", Misbehaviour::DropReply)));
    fleet.table.server.proxy().reset_counts();
    let error = gate.acquire(&Ask::new(&policy, "s")).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(fleet.table.server.proxy().counts().count("UpdateItem"), 0);
    fleet.table.server.proxy().always(None);
    admit(&gate, &Ask::new(&policy, "s")).await;
}

/// An entry that is from the future all the same, as from a broker of an older version, is rewritten as used up at the
/// present, and an event reports it.
#[tokio::test]
async fn an_entry_from_the_future_is_used_up_now_and_alarmed() {
    for policy in kinds() {
        let fleet = Fleet::new().await;
        let unit = policy.units().next().unwrap();
        let ask = Ask::new(&policy, "s").cost(unit, 1);
        let ahead = ManualClock::at(fleet.truth.now() + HOUR);
        let old = options(&fleet.table.server.endpoint(), Arc::new(ahead)).skew_max(None);
        admit(&connect(old).await, &ask).await;
        let (gate, clock) = fleet.broker().await;
        let (other, second) = fleet.broker().await;
        assert_eq!(remaining(&gate, &policy, "s").await, [0], "{policy:?}");
        let denial = deny(&gate, &ask).await;
        assert!(denial.retry_after() <= Some(Span::from_secs(65)), "{denial:?}");
        deny(&other, &ask).await;
        let mended = fleet.mended.0.lock().unwrap().clone();
        assert_eq!(mended, [("single".to_owned(), "s".to_owned(), HOUR)], "{policy:?}");
        fleet.pass(Span::from_secs(66), &[&clock, &second]);
        assert_eq!(fleet.drain(&other, &policy).await, 20, "{policy:?}");
    }
}

/// A clock that is off is noticed before the first decision, and made up for.
#[tokio::test]
async fn a_clock_that_is_off_at_the_start_is_corrected() {
    let table = TestTable::new().await;
    let date: Timestamp = "2026-11-15T08:30:00Z".parse().unwrap();
    let dated = Misbehaviour::Date("Sun, 15 Nov 2026 08:30:00 GMT".to_owned());
    let clock = ManualClock::at(date + Span::from_hours(1));
    table.server.proxy().next("GetItem", 1, &dated);
    let gate = connect(options(&table.server.endpoint(), Arc::new(clock))).await;
    assert_eq!(gate.clock_offset_micros(), -3_599_500_000);
    table.server.proxy().next("UpdateItem", 1, &dated);
    let permit = admit(&gate, &Ask::new(&coarse(5), "p")).await;
    assert_eq!(permit.grant().at, date + Span::from_millis(500));
}

/// A clock that jumps in between: the reply that shows it is an error and admits nothing; the next one is right.
#[tokio::test]
async fn an_answer_by_a_wrong_clock_does_not_count() {
    let table = TestTable::new().await;
    let date: Timestamp = "2026-11-15T08:30:00Z".parse().unwrap();
    let dated = Misbehaviour::Date("Sun, 15 Nov 2026 08:30:00 GMT".to_owned());
    let clock = ManualClock::at(date);
    table.server.proxy().next("GetItem", 1, &dated);
    table.server.proxy().next("UpdateItem", 3, &dated);
    let options = options(&table.server.endpoint(), Arc::new(clock.clone()));
    let gate = connect(options).await;
    let policy = single(TokenBucket::per_minute(5));
    admit(&gate, &Ask::new(&policy, "p")).await;
    clock.set(date - Span::from_mins(10));
    let error = gate.acquire(&Ask::new(&policy, "q")).await.unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("clock"), "{error}");
    assert_eq!(
        admit(&gate, &Ask::new(&policy, "r")).await.grant().at,
        date + Span::from_millis(500)
    );
}

/// Instances whose clocks differ by up to a second admit no more than one instance would in any window of slots.
#[tokio::test]
async fn clocks_that_differ_do_not_overfill_the_counters() {
    let table = TestTable::new().await;
    let start = Timestamp::from_secs(1_800_000_000);
    let clocks = [0, 500, 1_000].map(|ms| ManualClock::at(start + Span::from_millis(ms)));
    let mut gates = Vec::new();
    for clock in &clocks {
        let options = options(&table.server.endpoint(), Arc::new(clock.clone())).skew_max(None);
        gates.push(connect(options).await);
    }
    let policy = coarse(5);
    let mut admitted: Vec<Timestamp> = Vec::new();
    for step in 0..900 {
        for clock in &clocks {
            clock.advance(Span::from_millis(200));
        }
        let (gate, clock) = (&gates[step % 3], &clocks[0]);
        if let Decision::Admitted(_) = gate.acquire(&Ask::new(&policy, "p")).await.unwrap() {
            admitted.push(clock.now());
        }
    }
    // A window of 60 s less the largest difference holds at most five on the true clock.
    let window = Span::from_secs(59);
    for first in &admitted {
        let inside = admitted.iter().filter(|at| *first <= **at && **at < *first + window).count();
        assert!(inside <= 5, "{inside} from {first}");
    }
    assert!(12 <= admitted.len(), "only {} in three minutes", admitted.len());
}

/// A clock that steps back does not make room: the entry stays where it was.
#[tokio::test]
async fn a_clock_that_steps_back_makes_no_room() {
    let table = TestTable::new().await;
    let (one, other) = (table.gate().await, table.gate().await);
    for policy in [single(TokenBucket::per_minute(5)), coarse(5)] {
        for _ in 0..5 {
            admit(&one, &Ask::new(&policy, "p")).await;
        }
        let now = table.clock.now();
        table.clock.set(now - Span::from_secs(30));
        for gate in [&one, &other] {
            deny(gate, &Ask::new(&policy, "p")).await;
        }
        table.clock.set(now + Span::from_mins(5));
    }
}

/// Everything that is ahead is listed, whatever policy is in force, and mended one by one.
#[tokio::test]
async fn items_from_the_future_are_listed_and_mended() {
    let fleet = Fleet::new().await;
    let (gate, _) = fleet.broker().await;
    let ahead = ManualClock::at(fleet.truth.now() + HOUR);
    let old = options(&fleet.table.server.endpoint(), Arc::new(ahead)).skew_max(None);
    let old = connect(old).await;
    gate.permit_key([7; 32]).await.unwrap();
    for policy in kinds() {
        let policy = Policy::builder(policy.limits().next().unwrap().unit())
            .limit(policy.limits().next().unwrap().clone())
            .build()
            .unwrap();
        let unit = policy.units().next().unwrap();
        admit(&gate, &Ask::new(&policy, "right").cost(unit, 1)).await;
        admit(&old, &Ask::new(&policy, "a/b").cost(unit, 1)).await;
    }
    let store = &gate;
    let listed = list_future(store, AHEAD_MAX_DEFAULT).await.unwrap();
    let names: Vec<_> = listed.iter().map(|entry| (&*entry.policy, &*entry.subject)).collect();
    assert_eq!(names, [("jobs", "a/b"), ("requests", "a/b")]);
    assert!(listed.iter().all(|entry| entry.ahead == HOUR), "{listed:?}");
    for entry in &listed {
        assert!(repair_entry(store, entry, AHEAD_MAX_DEFAULT).await.unwrap());
        assert!(!repair_entry(store, entry, AHEAD_MAX_DEFAULT).await.unwrap(), "a second time");
    }
    assert_eq!(list_future(store, AHEAD_MAX_DEFAULT).await.unwrap(), []);
}
