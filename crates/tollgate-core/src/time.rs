//! Time as a value: integer microseconds since the Unix epoch.
//!
//! Nothing in this crate reads a clock; every function that needs the time takes `now`. Microseconds stay below 2^53
//! until the year 2255, so every store (Lua doubles included) holds them exactly.

use std::fmt;
use std::ops::{Add, Sub};
use std::str::FromStr;
use std::time::Duration;

use jiff::fmt::temporal::Pieces;

use crate::bounds::NUMBER_MAX;
use crate::error::Error;
use crate::time_text::TimeText;

const MICROS_PER_SEC: u64 = 1_000_000;

/// An instant: microseconds since the Unix epoch, UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);

    /// The last representable instant, in the year 2255.
    pub const MAX: Self = Self(NUMBER_MAX);

    /// The instant `micros` microseconds after the epoch, at most [`Timestamp::MAX`].
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(if micros < NUMBER_MAX { micros } else { NUMBER_MAX })
    }

    /// The instant `secs` seconds after the epoch.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_micros(secs.saturating_mul(MICROS_PER_SEC))
    }

    /// Microseconds since the epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The time that passed since `earlier`; zero if `earlier` is later, as it is when a clock stepped back.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;

    fn add(self, span: Span) -> Self {
        Self::from_micros(self.0.saturating_add(span.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        self + Span::from(duration)
    }
}

impl Sub<Span> for Timestamp {
    type Output = Self;

    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC, with microseconds where there are any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(TimeText::new(*self).as_str())
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Timestamp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let instant: jiff::Timestamp = text.parse().map_err(|_| {
            let pieces = Pieces::parse(text).ok().filter(|pieces| pieces.offset().is_some());
            Error::invalid(if pieces.is_some_and(|pieces| pieces.date().year() == 9999) {
                format!("{text:?} is after {}; give an earlier time", jiff::Timestamp::MAX)
            } else {
                format!("{text:?} is not a time; write it as in 2026-11-15T08:30:00Z")
            })
        })?;
        u64::try_from(instant.as_microsecond())
            .map(Self::from_micros)
            .map_err(|_| Error::invalid(format!("{text:?} is before 1970; give a later time")))
    }
}

/// A length of time in whole microseconds. It converts from and to [`Duration`], so methods that take a span also take a
/// duration.
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::{Span, Timestamp};
///
/// let deadline = Timestamp::EPOCH + Duration::from_secs(5);
/// assert_eq!(Duration::from(deadline.since(Timestamp::EPOCH)), Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// `micros` microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// `millis` milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// `secs` seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(MICROS_PER_SEC))
    }

    /// `minutes` minutes.
    #[must_use]
    pub const fn from_mins(minutes: u64) -> Self {
        Self::from_secs(minutes.saturating_mul(60))
    }

    /// `hours` hours of 60 minutes.
    #[must_use]
    pub const fn from_hours(hours: u64) -> Self {
        Self::from_secs(hours.saturating_mul(3_600))
    }

    /// Whole microseconds.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Milliseconds, rounded up, so that a displayed wait is never too short.
    #[must_use]
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// Seconds, rounded up.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(MICROS_PER_SEC)
    }

    /// Whether this is no time at all.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, saturating.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Formats the span for people, as in "2h 15m": the two largest units that are not zero, rounded up to the smaller one.
    #[must_use]
    pub fn humanize(self) -> String {
        match self.parts() {
            [Some((large, mark)), Some((small, next))] => format!("{large}{mark} {small}{next}"),
            parts => parts.iter().flatten().map(|(count, mark)| format!("{count}{mark}")).collect(),
        }
    }

    /// Returns the parts of [`humanize`](Self::humanize): counts and units.
    #[must_use]
    pub fn parts(self) -> [Option<(u64, &'static str)>; 2] {
        const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
        if self.0 == 0 {
            return [Some((0, "s")), None];
        }
        if self.0 < MICROS_PER_SEC {
            return [Some((self.as_millis_ceil(), "ms")), None];
        }
        let largest = |secs| UNITS.iter().position(|(size, _)| *size <= secs).unwrap_or(3);
        let secs = self.as_secs_ceil();
        let (step, _) = UNITS[(largest(secs) + 1).min(UNITS.len() - 1)];
        let secs = secs.div_ceil(step) * step;
        // Rounding up may have reached the next larger unit: 59m 60s is 1h.
        let first = largest(secs);
        let (size, mark) = UNITS[first];
        let rest = secs % size;
        let second = UNITS.get(first + 1).filter(|_| 0 < rest);
        [Some((secs / size, mark)), second.map(|(size, mark)| (rest / size, *mark))]
    }
}

impl fmt::Display for Span {
    /// The exact length in the largest single unit that is whole, as in `90s`, `24h` or `1500us`; it parses back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, mark) = SUFFIXES
            .iter()
            .rev()
            .copied()
            .find(|(size, _)| self.0 != 0 && self.0.is_multiple_of(*size))
            .unwrap_or((MICROS_PER_SEC, "s"));
        write!(f, "{}{mark}", self.0 / size)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const SUFFIXES: [(u64, &str); 6] = [
    (1, "us"),
    (1_000, "ms"),
    (MICROS_PER_SEC, "s"),
    (60 * MICROS_PER_SEC, "m"),
    (3_600 * MICROS_PER_SEC, "h"),
    (86_400 * MICROS_PER_SEC, "d"),
];

impl FromStr for Span {
    type Err = Error;

    /// Reads `250ms`, `30s`, `1m`, `24h`, `7d`, or a sum such as `1h30m`. A day is 24 hours.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::invalid(format!(
                "{text:?} is not a length of time; write a whole number and a unit (us, ms, s, m, h, d), as in 30s or 1h30m"
            ))
        };
        let mut rest = text.trim();
        let mut total: u64 = 0;
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
            let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
            let after = &rest[digits..];
            let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
            let (size, _) =
                SUFFIXES.iter().find(|(_, mark)| *mark == &after[..letters]).ok_or_else(wrong)?;
            total = number
                .checked_mul(*size)
                .and_then(|micros| micros.checked_add(total))
                .ok_or_else(wrong)?;
            rest = after[letters..].trim_start();
        }
        Ok(Self(total))
    }
}

impl From<Duration> for Span {
    /// Whole microseconds, rounded up, so that a wait never becomes shorter.
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_micros(span.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r004_8_spans_for_people_read_like_2h_15m() {
        let rows = [
            (Span::from_secs(2 * 3_600 + 15 * 60), "2h 15m"),
            (Span::from_secs(2 * 3_600 + 14 * 60 + 1), "2h 15m"),
            (Span::from_secs(3_599), "59m 59s"),
            (Span::from_micros(3_599_000_001), "1h"),
            (Span::from_secs(86_400 + 3_600), "1d 1h"),
            (Span::from_secs(59), "59s"),
            (Span::from_millis(250), "250ms"),
            (Span::ZERO, "0s"),
        ];
        for (span, text) in rows {
            assert_eq!(span.humanize(), text);
        }
    }

    #[test]
    fn a_time_beyond_the_calendar_is_reported_with_the_bound() {
        let error = |text: &str| text.parse::<Timestamp>().unwrap_err().to_string();
        let late = error("9999-12-31T23:59:59Z");
        assert!(late.contains("is after 9999-12-30T22:00:00"), "{late}");
        for text in ["9999-12-31", "9999-12-31T23:59:60", "9999-13-31T23:59:59Z", "soon"] {
            assert!(error(text).contains("is not a time"), "{}", error(text));
        }
    }

    #[test]
    fn spans_parse_and_print_back() {
        let rows = [
            ("30s", 30_000_000),
            ("1h30m", 5_400_000_000),
            ("250ms", 250_000),
            ("7d", 604_800_000_000),
        ];
        for (text, micros) in rows {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.as_micros(), micros);
            assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
        }
        for bad in ["", "5", "s", "-1s", "1.5h", "1 fortnight", "99999999999999999999s"] {
            assert!(bad.parse::<Span>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn r004_11_times_print_in_utc() {
        let time = Timestamp::from_secs(1_700_000_000);
        assert_eq!(time.to_string(), "2023-11-14T22:13:20Z");
        assert_eq!("2023-11-14T23:13:20+01:00".parse::<Timestamp>().unwrap(), time);
    }
}
