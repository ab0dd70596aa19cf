//! The clock that decides: the machine's, held against the time that the service writes on every reply.
//!
//! The service has no clock that an expression could use, so each instance decides by its own, and instances must agree.
//! A reply carries `Date`, in whole seconds. If the machine's clock is farther off than `skew_max`, the answer that
//! showed it is not trusted, the difference is made up for from then on, and the event `clock skew` is logged.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use aws_sdk_dynamodb::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_dynamodb::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_dynamodb::error::BoxError;
use jiff::fmt::rfc2822::DateTimeParser;
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
    /// What is added to the machine's clock, in microseconds.
    offset: AtomicI64,
    corrections: AtomicU64,
}

impl Guarded {
    pub(crate) fn new(clock: Arc<dyn Clock>, skew_max: Option<Span>, reply_age_max: Span) -> Self {
        let (offset, corrections) = (AtomicI64::new(0), AtomicU64::new(0));
        Self { clock, skew_max, reply_age_max, offset, corrections }
    }

    /// The present, as corrected so far.
    pub(crate) fn now(&self) -> Timestamp {
        shifted(self.clock.now(), self.offset.load(Ordering::Relaxed))
    }

    /// How often the clock was found to be off.
    pub(crate) fn corrections(&self) -> u64 {
        self.corrections.load(Ordering::Relaxed)
    }

    /// What is added to the machine's clock, in microseconds.
    pub(crate) fn offset_micros(&self) -> i64 {
        self.offset.load(Ordering::Relaxed)
    }

    /// A reply said that the service's time was `date` when it was sent.
    pub(crate) fn compare(&self, date: Timestamp) {
        let Some(skew_max) = self.skew_max else { return };
        let now = self.now();
        let ahead = now.since(date + DATE_STEP + self.reply_age_max);
        let behind = date.since(now);
        if ahead <= skew_max && behind <= skew_max {
            return;
        }
        let middle = date + Span::from_micros(DATE_STEP.as_micros() / 2);
        let difference = signed(middle).saturating_sub(signed(now));
        let offset = self.offset.fetch_add(difference, Ordering::Relaxed) + difference;
        self.corrections.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(offset_us = offset, "clock skew");
    }
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
