//! The deciding clock: the system's, checked against the `Date` header of replies.
//!
//! Expressions have no clock, so each instance decides by its own, and instances must agree. Nothing is decided before the
//! first `Date`, nor after a clock step (the wall clock moved more than a second differently from the boot-time clock) until
//! the next one: a write with a future time would lock its subject for every instance. If the clock is off by more than
//! `skew_max`, the operation that showed it fails, the clock is corrected, and the event `clock skew` is logged.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use jiff::fmt::rfc2822::DateTimeParser;
use tollgate::internal::steps::{Checked, Reading, StepDetector};
use tollgate::{Clock, Span, Timestamp};

/// The resolution of `Date`.
const DATE_STEP: Span = Span::from_secs(1);

/// The system clock with its correction.
#[derive(Debug)]
pub(crate) struct CheckedClock {
    clock: Arc<dyn Clock>,
    skew_max: Option<Span>,
    /// The longest transit of a reply.
    reply_age_max: Span,
    state: Mutex<State>,
    corrections: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    detector: StepDetector,
    /// The correction of the system clock, in microseconds.
    offset: i64,
    has_evidence: bool,
    /// The number of replies with a `Date`.
    dates: u64,
}

impl State {
    /// Returns the time by `reading`, or by the last good reading and the boot-time clock after a step.
    fn now(&mut self, reading: Reading) -> Timestamp {
        let wall = match self.detector.check(reading) {
            Checked::Steady | Checked::Accepted(_) => reading.wall,
            Checked::Stepped { step, is_new } => {
                if is_new {
                    tracing::warn!(%step, "clock stepped; reading the time of the service");
                }
                self.detector.good().unwrap_or(reading).wall_at(reading.boot)
            }
        };
        shifted(wall, self.offset)
    }

    const fn is_suspect(&self) -> bool {
        !self.has_evidence || self.detector.pending().is_some()
    }
}

impl CheckedClock {
    pub(crate) fn new(clock: Arc<dyn Clock>, skew_max: Option<Span>, reply_age_max: Span) -> Self {
        let (state, corrections) = (Mutex::default(), AtomicU64::new(0));
        Self { clock, skew_max, reply_age_max, state, corrections }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the corrected time.
    pub(crate) fn now(&self) -> Timestamp {
        match self.skew_max {
            Some(_) => self.state().now(Reading::take(&*self.clock)),
            None => self.clock.now(),
        }
    }

    /// Whether decisions must wait for a reply with the service's time.
    pub(crate) fn is_suspect(&self) -> bool {
        self.skew_max.is_some() && {
            let mut state = self.state();
            state.now(Reading::take(&*self.clock));
            state.is_suspect()
        }
    }

    /// Trusts the system clock although a reply had no `Date`. Returns false after a clock step.
    pub(crate) fn do_without_evidence(&self) -> bool {
        let mut state = self.state();
        if state.detector.pending().is_some() {
            return false;
        }
        if !state.has_evidence {
            tracing::warn!(
                "replies have no Date header, so the clock of this machine is not checked"
            );
        }
        state.has_evidence = true;
        true
    }

    /// The number of replies with a `Date`.
    pub(crate) fn dates(&self) -> u64 {
        self.state().dates
    }

    /// Returns the number of corrections.
    pub(crate) fn corrections(&self) -> u64 {
        self.corrections.load(Ordering::Relaxed)
    }

    /// The correction of the system clock, in microseconds.
    pub(crate) fn offset_micros(&self) -> i64 {
        self.state().offset
    }

    /// Returns how far two instances with accepted clocks can be apart: twice the skew, and the resolution of `Date`. A time
    /// farther ahead comes from a wrong clock.
    pub(crate) fn apart_max(&self) -> Option<Span> {
        let skew = self.skew_max?.plus(self.reply_age_max);
        Some(skew.plus(skew).plus(DATE_STEP))
    }

    /// Compares the clock with `date`, the service's time of a reply.
    pub(crate) fn compare(&self, date: Timestamp) {
        let Some(skew_max) = self.skew_max else { return };
        let agrees = |now: Timestamp| {
            let ahead = now.since(date + DATE_STEP + self.reply_age_max);
            ahead <= skew_max && date.since(now) <= skew_max
        };
        let mut state = self.state();
        let reading = Reading::take(&*self.clock);
        let now = state.now(reading);
        let was_set = state.detector.pending().is_some();
        state.has_evidence = true;
        state.dates += 1;
        if was_set {
            state.detector.trust(reading);
            // A clock that was set right needs no correction.
            state.offset = if agrees(reading.wall) { 0 } else { offset_to(date, reading.wall) };
        } else if !agrees(now) {
            state.offset = offset_to(date, reading.wall);
        }
        if was_set || !agrees(now) {
            let by = Span::from_micros(state.offset.unsigned_abs()).humanize();
            let side = if state.offset < 0 { "ahead" } else { "behind" };
            tracing::warn!(by, side, "clock skew");
        }
        if !agrees(now) {
            self.corrections.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns the correction from `wall` to the middle of the second `date`.
fn offset_to(date: Timestamp, wall: Timestamp) -> i64 {
    let middle = date + Span::from_micros(DATE_STEP.as_micros() / 2);
    signed(middle).saturating_sub(signed(wall))
}

fn signed(at: Timestamp) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}

fn shifted(at: Timestamp, offset: i64) -> Timestamp {
    Timestamp::from_micros(at.as_micros().saturating_add_signed(offset))
}

/// Reads the `Date` of each reply.
#[derive(Debug)]
pub(crate) struct DateReader(pub(crate) Arc<CheckedClock>);

impl Intercept for DateReader {
    fn name(&self) -> &'static str {
        "DateReader"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if let Some(date) = context.response().headers().get("date").and_then(parse) {
            self.0.compare(date);
        }
        Ok(())
    }
}

/// Parses an HTTP date.
fn parse(date: &str) -> Option<Timestamp> {
    let zoned = DateTimeParser::new().parse_zoned(date).ok()?;
    u64::try_from(zoned.timestamp().as_microsecond()).ok().map(Timestamp::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::clock::ManualClock;

    #[test]
    fn a_clock_that_is_off_is_corrected_once() {
        let date = parse("Sun, 15 Nov 2026 08:30:00 GMT").unwrap();
        let hour = Span::from_hours(1);
        for start in [date - hour, date + hour] {
            let clock = ManualClock::at(start);
            let skew_max = Some(Span::from_millis(1_500));
            let clock =
                CheckedClock::new(Arc::new(clock.clone()), skew_max, Span::from_millis(500));
            clock.compare(date);
            clock.compare(date);
            assert_eq!(clock.corrections(), 1);
            assert_eq!(clock.now(), date + Span::from_millis(500));
        }
    }

    #[test]
    fn a_clock_within_the_bound_is_left_alone() {
        let date = parse("Sun, 15 Nov 2026 08:30:00 GMT").unwrap();
        for (ahead_ms, off) in [(0, 0), (1_400, 0), (2_900, 0), (3_100, 1)] {
            let clock = ManualClock::at(date + Span::from_millis(ahead_ms));
            let clock = CheckedClock::new(
                Arc::new(clock),
                Some(Span::from_millis(1_500)),
                Span::from_millis(500),
            );
            clock.compare(date);
            assert_eq!(clock.corrections(), off, "{ahead_ms} ms ahead");
        }
    }
}
