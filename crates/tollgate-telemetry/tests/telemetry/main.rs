//! The output of each sink, and that no sink delays a decision.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test fails by panicking")]

mod aws;
mod deploy_files;
mod incidents;
mod json_lines;
mod meters;
mod otlp;
mod prometheus;
mod slow_sinks;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tollgate::clock::ManualClock;
use tollgate::observe::{AttemptResult, Event, Observed, Observer};
use tollgate::{
    Ask, Decision, Error, ErrorKind, Gate, GateExt, Limit, Memory, Permit, Policy, RollingWindow,
    Span,
};

/// The limits of R000: requests and tokens in any minute.
pub(crate) fn gemini() -> Policy {
    let minute = Span::from_mins(1);
    Policy::new(
        "gemini",
        [
            Limit::new("rpm", "requests", RollingWindow::new(5, minute)),
            Limit::new("tpm", "tokens", RollingWindow::new(250_000, minute)),
        ],
    )
    .expect("the numbers are in bounds")
}

/// A gate in memory on `clock` observed by `observer`.
pub(crate) fn gate(clock: &ManualClock, observer: Arc<dyn Observer>) -> Observed<Memory> {
    let clock = Arc::new(clock.clone());
    let memory = Memory::with(Arc::clone(&clock) as _, 16_384);
    Observed::new(memory, observer, clock)
}

pub(crate) async fn admitted(gate: &dyn Gate, ask: &Ask<'_>) -> Permit {
    match gate.acquire(ask).await.expect("memory decides") {
        Decision::Admitted(permit) => permit,
        Decision::Denied(denial) => unreachable!("denied: {denial:?}"),
    }
}

/// Five asks of 1,000 tokens go through and the sixth does not; the store is tried thrice; decisions begin and end to be
/// made without it; and an optimistic gate reports its unposted asks.
pub(crate) async fn a_busy_minute(gate: &dyn Gate, observer: &dyn Observer) {
    let policy = gemini();
    let ask = Ask::new(&policy, "project-7").cost("tokens", 1_000);
    for _ in 0..5 {
        admitted(gate, &ask).await;
    }
    assert!(!gate.acquire(&ask).await.expect("memory decides").is_admitted());
    let tries = [
        (1, 700, AttemptResult::Raced),
        (2, 900, AttemptResult::Throttled),
        (3, 3_000, AttemptResult::Answered),
    ];
    for (attempt, micros, result) in tries {
        let took = Span::from_micros(micros);
        observer.observe(&Event::Tried { policy: &policy, attempt, took, result });
    }
    let error = Error::new(ErrorKind::Unavailable, "redis: connection refused");
    observer.observe(&Event::DegradedBegan { error: &error });
    observer.observe(&Event::DegradedEnded { lasted: Span::from_secs(3) });
    observer.observe(&Event::Unposted { policy: &policy, unposted: 7, unposted_max: 20 });
}

/// A writer that records its input.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    pub(crate) fn lines(&self) -> Vec<serde_json::Value> {
        let bytes = self.0.lock().expect("not poisoned").clone();
        let text = String::from_utf8(bytes).expect("JSON is text");
        text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
