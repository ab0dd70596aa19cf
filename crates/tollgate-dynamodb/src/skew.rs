//! The clock that decides: the machine's, checked against the time that the service writes on every reply.
//!
//! The service has no clock that an expression could use, so each instance decides by its own, and instances must agree.
//! The evidence is the `Date` of replies, in whole seconds. Nothing is decided before the first one, nor after the wall
//! clock was set (it moved by more than a second differently from the boot-time clock), until the next one: a write with a
//! time from the future would lock its subject for every instance. If the clock is farther off than `skew_max`, the
//! answer that showed it is not trusted, the difference is made up for from then on, and the event `clock skew` is logged.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use jiff::fmt::rfc2822::DateTimeParser;
use tollgate::steps::{Checked, Reading, StepDetector};
use tollgate::{Clock, Span, Timestamp};

/// `Date` has no fraction of a second.
const DATE_STEP: Span = Span::from_secs(1);

/// The machine's clock and what it is known to be off by.
#[derive(Debug)]
pub(crate) struct Guarded {
    clock: Arc<dyn Clock>,
    skew_max: Option<Span>,
    /// How long a reply may have been on its way.
    reply_age_max: Span,
    state: Mutex<State>,
    corrections: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    detector: StepDetector,
    /// What is added to the machine's clock, in microseconds.
    offset: i64,
    has_evidence: bool,
    /// How many replies had a `Date`.
    dates: u64,
}

impl State {
    /// The present by `reading`, or by the last good reading and the boot-time clock if the wall clock was set since.
    fn now(&mut self, reading: Reading) -> Timestamp {
        let wall = match self.detector.check(reading) {
            Checked::Steady | Checked::Accepted(_) => reading.wall,
            Checked::Stepped { step, is_new } => {
                if is_new {
                    tracing::warn!(%step, "clock stepped; asking the service for its time");
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

impl Guarded {
    pub(crate) fn new(clock: Arc<dyn Clock>, skew_max: Option<Span>, reply_age_max: Span) -> Self {
        let (state, corrections) = (Mutex::default(), AtomicU64::new(0));
        Self { clock, skew_max, reply_age_max, state, corrections }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present, as corrected so far.
    pub(crate) fn now(&self) -> Timestamp {
        match self.skew_max {
            Some(_) => self.state().now(Reading::take(&*self.clock)),
            None => self.clock.now(),
        }
    }

    /// Whether nothing may be decided before a reply shows the service's time.
    pub(crate) fn is_suspect(&self) -> bool {
        self.skew_max.is_some() && {
            let mut state = self.state();
            state.now(Reading::take(&*self.clock));
            state.is_suspect()
        }
    }

    /// Trusts the machine's clock although a reply had no `Date`; false if the clock was set, since then nothing says
    /// which time is right.
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

    /// How many replies had a `Date`.
    pub(crate) fn dates(&self) -> u64 {
        self.state().dates
    }

    /// How often the clock was found to be off.
    pub(crate) fn corrections(&self) -> u64 {
        self.corrections.load(Ordering::Relaxed)
    }

    /// What is added to the machine's clock, in microseconds.
    pub(crate) fn offset_micros(&self) -> i64 {
        self.state().offset
    }

    /// How far two instances with accepted clocks can be apart: twice the skew and the uncertainty of `Date`. What is
    /// farther ahead, a wrong clock wrote.
    pub(crate) fn apart_max(&self) -> Option<Span> {
        let skew = self.skew_max?.plus(self.reply_age_max);
        Some(skew.plus(skew).plus(DATE_STEP))
    }

    /// Checks the clock against `date`, the service's time when it sent a reply.
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
            // Set right, a clock needs no correction any more.
            state.offset = if agrees(reading.wall) { 0 } else { offset_to(date, reading.wall) };
        } else if !agrees(now) {
            state.offset = offset_to(date, reading.wall);
        }
        if was_set || !agrees(now) {
            let by = Span::from_micros(state.offset.unsigned_abs()).for_people();
            let side = if state.offset < 0 { "ahead" } else { "behind" };
            tracing::warn!(by, side, "clock skew");
        }
        if !agrees(now) {
            self.corrections.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What to add to `wall` to get the middle of the second `date`.
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
pub(crate) struct DateReader(pub(crate) Arc<Guarded>);

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

/// The instant of an HTTP date.
fn parse(date: &str) -> Option<Timestamp> {
    let zoned = DateTimeParser::new().parse_zoned(date).ok()?;
    u64::try_from(zoned.timestamp().as_microsecond()).ok().map(Timestamp::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::ManualClock;

    #[test]
    fn a_clock_that_is_off_is_corrected_once() {
        let date = parse("Sun, 15 Nov 2026 08:30:00 GMT").unwrap();
        let hour = Span::from_hours(1);
        for start in [date - hour, date + hour] {
            let clock = ManualClock::at(start);
            let skew_max = Some(Span::from_millis(1_500));
            let guarded = Guarded::new(Arc::new(clock.clone()), skew_max, Span::from_millis(500));
            guarded.compare(date);
            guarded.compare(date);
            assert_eq!(guarded.corrections(), 1);
            assert_eq!(guarded.now(), date + Span::from_millis(500));
        }
    }

    #[test]
    fn a_clock_within_the_bound_is_left_alone() {
        let date = parse("Sun, 15 Nov 2026 08:30:00 GMT").unwrap();
        for (ahead_ms, off) in [(0, 0), (1_400, 0), (2_900, 0), (3_100, 1)] {
            let clock = ManualClock::at(date + Span::from_millis(ahead_ms));
            let guarded = Guarded::new(
                Arc::new(clock),
                Some(Span::from_millis(1_500)),
                Span::from_millis(500),
            );
            guarded.compare(date);
            assert_eq!(guarded.corrections(), off, "{ahead_ms} ms ahead");
        }
    }
}
