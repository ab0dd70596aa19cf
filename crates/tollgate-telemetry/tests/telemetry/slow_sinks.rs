//! A sink that hangs or fails delays nothing, and its dropped records are counted.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tollgate::clock::ManualClock;
use tollgate::gate::BoxFuture;
use tollgate::observe::Event;
use tollgate::{
    Ask, Clock as _, Error, ErrorKind, GateExt as _, Limit, Policy, Span, Timestamp, TokenBucket,
};
use tollgate_telemetry::{
    MeterSink, QUEUE_MAX, Record, RecordSink, Snapshot, Telemetry, Value, WRITE_MAX,
};

use crate::{admitted, gate, gemini};

/// Takes a batch and never returns.
#[derive(Debug)]
struct Stuck;

impl RecordSink for Stuck {
    fn name(&self) -> &'static str {
        "stuck"
    }

    fn wants(&self, _: &Event<'_>) -> bool {
        true
    }

    fn write<'a>(&'a self, _: &'a [Record]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(pending())
    }
}

impl MeterSink for Stuck {
    fn name(&self) -> &'static str {
        "stuck_meters"
    }

    fn publish<'a>(&'a self, _: &'a Snapshot, _: &'a Snapshot) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(pending())
    }
}

fn number(telemetry: &Telemetry, name: &str, sink: &str) -> u64 {
    match telemetry.meters().snapshot(Timestamp::EPOCH).get(name, &[sink]) {
        Some(Value::Number(number)) => *number,
        other => panic!("{name} of {sink} is {other:?}"),
    }
}

/// The clock does not move, so anything that waited for the sink would block the test forever.
#[tokio::test]
async fn a_million_decisions_pass_a_sink_that_never_returns() {
    const DECISIONS: u64 = 1_000_000;
    let clock = ManualClock::new();
    let builder = Telemetry::builder(Arc::new(clock.clone()));
    let (telemetry, tasks) = builder.records(Stuck).meters(Stuck, Span::from_secs(1)).start();
    let gate = gate(&clock, Arc::clone(&telemetry) as _);
    let rate = TokenBucket::per_second(10 * DECISIONS);
    let policy = Policy::new("api", [Limit::new("rate", "requests", rate)]).unwrap();
    let ask = Ask::new(&policy, "alice");
    for _ in 0..DECISIONS {
        admitted(&gate, &ask).await;
    }
    let dropped = number(&telemetry, "tollgate_telemetry_dropped", "stuck");
    let queued = QUEUE_MAX as u64;
    assert!(DECISIONS - 2 * queued <= dropped && dropped <= DECISIONS - queued, "{dropped}");
    // At the end there is a deadline, and the sinks are left behind.
    let deadline = clock.now() + Span::from_secs(5);
    let ending = tokio::spawn(tasks.shutdown(deadline));
    while !ending.is_finished() {
        clock.advance(Span::from_secs(1));
        tokio::task::yield_now().await;
    }
    assert!(!ending.await.unwrap(), "a stuck sink cannot have finished");
}

/// A sink that hangs holds an answer up for as long as the caller says, and no longer.
#[tokio::test]
async fn a_flush_leaves_a_sink_that_never_returns_behind() {
    let clock = ManualClock::new();
    let builder = Telemetry::builder(Arc::new(clock.clone()));
    let (_telemetry, tasks) = builder.meters(Stuck, Span::from_hours(1)).start();
    for _ in 0..3 {
        let began = clock.now();
        let flush = tasks.flush(Span::from_secs(2));
        let passes = async {
            loop {
                clock.advance(Span::from_millis(100));
                tokio::task::yield_now().await;
            }
        };
        let flushed = tokio::select! {
            biased;
            flushed = flush => flushed,
            () = passes => unreachable!("it never ends"),
        };
        let lasted = clock.now().since(began);
        assert!(!flushed && lasted <= Span::from_millis(2_100), "{lasted}");
    }
}

/// A write that takes too long is given up and counted, and the next one is tried.
#[tokio::test]
async fn a_write_that_takes_too_long_is_given_up() {
    let clock = ManualClock::new();
    let (telemetry, _tasks) = Telemetry::builder(Arc::new(clock.clone())).records(Stuck).start();
    let (gate, policy) = (gate(&clock, Arc::clone(&telemetry) as _), gemini());
    for failures in 1..=2 {
        gate.acquire(&Ask::new(&policy, "alice")).await.unwrap();
        while clock.next_alarm().is_none() {
            tokio::task::yield_now().await;
        }
        clock.advance(WRITE_MAX);
        while number(&telemetry, "tollgate_telemetry_failures", "stuck") != failures {
            tokio::task::yield_now().await;
        }
    }
}

/// Fails every other time.
#[derive(Debug, Default)]
struct Flaky {
    calls: AtomicUsize,
    written: Arc<AtomicUsize>,
}

impl RecordSink for Flaky {
    fn name(&self) -> &'static str {
        "flaky"
    }

    fn wants(&self, _: &Event<'_>) -> bool {
        true
    }

    fn write<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            if self.calls.fetch_add(1, Relaxed).is_multiple_of(2) {
                return Err(Error::new(ErrorKind::Unavailable, "not today"));
            }
            self.written.fetch_add(records.len(), Relaxed);
            Ok(())
        })
    }
}

/// What is queued when the process ends is written before it ends, also after a failure.
#[tokio::test]
async fn the_queue_is_drained_at_the_end() {
    let clock = ManualClock::new();
    let (sink, other) =
        (Flaky::default(), Flaky { calls: AtomicUsize::new(1), ..Flaky::default() });
    let (failing, working) = (Arc::clone(&sink.written), Arc::clone(&other.written));
    let builder = Telemetry::builder(Arc::new(clock.clone()));
    let (telemetry, tasks) = builder.records(sink).records(other).start();
    let (gate, policy) = (gate(&clock, Arc::clone(&telemetry) as _), gemini());
    // No task has run yet: everything is in the queue when the end begins.
    for _ in 0..5 {
        admitted(&gate, &Ask::new(&policy, "alice")).await;
    }
    assert!(tasks.shutdown(clock.now() + Span::from_secs(1)).await);
    assert_eq!((failing.load(Relaxed), working.load(Relaxed)), (0, 5));
    assert_eq!(number(&telemetry, "tollgate_telemetry_failures", "flaky"), 1);
}
