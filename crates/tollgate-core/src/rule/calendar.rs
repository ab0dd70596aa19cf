//! Calendar window: at most n per minute, hour, day, week or month of a time zone.
//!
//! Windows follow the clock on the wall: a day has 23 or 25 hours when daylight saving time begins or ends, and a month
//! its own length. Every instant belongs to exactly one window. With a margin, what is charged in the last stretch of
//! a window counts in the next one too, because it may reach the provider only then.

use std::fmt;
use std::str::FromStr;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span as CivilSpan, Timestamp as Instant};

use crate::bounds::NUMBER_MAX;
use crate::error::Error;
use crate::policy::Derived;
use crate::time::{Span, Timestamp};

/// The length of a calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Period {
    /// From full minute to full minute.
    Minute,
    /// From full hour to full hour on the wall clock.
    Hour,
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first of a month to the first of the next.
    Month,
}

impl Period {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Minute, "minute"),
        (Self::Hour, "hour"),
        (Self::Day, "day"),
        (Self::Week, "week"),
        (Self::Month, "month"),
    ];
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(period, _)| period == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for Period {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.iter().find(|(_, name)| *name == text).map(|(period, _)| *period).ok_or_else(
            || {
                Error::invalid(format!(
                    "{text:?} is not a period; use minute, hour, day, week or month"
                ))
            },
        )
    }
}

/// The rule `calendar-window`: at most `limit` per `period` of `zone`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CalendarWindow {
    /// The most that one window may hold.
    pub limit: u64,
    /// The length of a window.
    pub period: Period,
    /// The IANA name of the time zone, such as `America/Los_Angeles`.
    pub zone: String,
}

impl CalendarWindow {
    /// At most `limit` per `period` in UTC.
    #[must_use]
    pub fn new(limit: u64, period: Period) -> Self {
        Self { limit, period, zone: "UTC".to_owned() }
    }

    /// The same limit in the time zone with the IANA name `zone`.
    #[must_use]
    pub fn in_zone(mut self, zone: &str) -> Self {
        zone.clone_into(&mut self.zone);
        self
    }
}

/// The state of a calendar window: its end, its usage, and how much of that counts in the next window too. The end is kept so
/// that the calendar is computed once per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct CalendarState {
    pub(crate) end: Timestamp,
    pub(crate) used: u64,
    pub(crate) late: u64,
}

/// A calendar window, ready to decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Calendar {
    limit: u64,
    period: Period,
    zone: TimeZone,
    margin: Span,
}

impl Calendar {
    pub(crate) fn new(rule: &CalendarWindow, reserve: u64, margin: Span) -> Result<Self, Error> {
        let zone = jiff::tz::TimeZoneDatabase::bundled().get(&rule.zone).map_err(|_| {
            Error::invalid(format!(
                "{:?} is not a time zone; use an IANA name such as UTC, Europe/Berlin or America/Los_Angeles",
                rule.zone
            ))
        })?;
        Ok(Self { limit: rule.limit.saturating_sub(reserve), period: rule.period, zone, margin })
    }

    pub(crate) const fn most(&self) -> u64 {
        self.limit
    }

    pub(crate) const fn derived(&self) -> Derived {
        Derived::Calendar { limit: self.limit, margin: self.margin }
    }

    /// Returns the state of the window at `now`, given the last one.
    #[inline]
    pub(crate) fn state_at(&self, state: &CalendarState, now: Timestamp) -> CalendarState {
        if now < state.end {
            return *state;
        }
        let (start, end) = self.window_at(now);
        let used = if start == state.end { state.late } else { 0 };
        CalendarState { end, used, late: 0 }
    }

    pub(crate) fn ready_at(&self, state: &CalendarState, now: Timestamp, cost: u64) -> Timestamp {
        let state = self.state_at(state, now);
        if state.used.saturating_add(cost) <= self.limit {
            now
        } else if state.late.saturating_add(cost) <= self.limit {
            state.end
        } else {
            self.window_at(state.end).1
        }
    }

    pub(crate) fn add(&self, state: &mut CalendarState, now: Timestamp, cost: u64) {
        state.used = state.used.saturating_add(cost).min(NUMBER_MAX);
        if state.end - self.margin <= now {
            state.late = state.late.saturating_add(cost).min(NUMBER_MAX);
        }
    }

    /// Gives back `amount` if the window of the charge is still open.
    pub(crate) fn give_back(&self, state: &mut CalendarState, amount: u64, charged_at: Timestamp) {
        if charged_at < state.end && self.window_at(charged_at).1 == state.end {
            state.used = state.used.saturating_sub(amount);
            if state.end - self.margin <= charged_at {
                state.late = state.late.saturating_sub(amount);
            }
        }
    }

    /// Returns where tokens taken at `now` lose their meaning: the end of the window, and before it the instant from which a
    /// charge counts in the next window too.
    pub(crate) fn next_boundary(&self, now: Timestamp) -> Timestamp {
        let end = self.window_at(now).1;
        let late = end - self.margin;
        if now < late { late } else { end }
    }

    /// Returns whether a charge of `charged_at` still counts in the window of `now`.
    pub(crate) fn counts(&self, charged_at: Timestamp, now: Timestamp) -> bool {
        now < self.window_at(charged_at).1
    }

    /// Whether the pages of `other` are pages here.
    pub(crate) fn has_windows_of(&self, other: &Self) -> bool {
        (self.period, &self.zone, self.margin) == (other.period, &other.zone, other.margin)
    }

    /// The borders of the window that holds `at`.
    pub(crate) fn window_at(&self, at: Timestamp) -> (Timestamp, Timestamp) {
        let instant = to_instant(at);
        let borders = match self.period {
            Period::Minute => Some(self.clock_window(instant, 60)),
            Period::Hour => Some(self.clock_window(instant, 3_600)),
            Period::Day | Period::Week | Period::Month => self.date_window(instant),
        };
        // The calendar ends in the year 9999 and time here in 2255, so there always is a window.
        let (start, end) = borders.unwrap_or((instant, Instant::MAX));
        (from_instant(start), from_instant(end))
    }

    /// A window of `length` seconds on the wall clock; a shift of the zone that is not a whole number of windows ends
    /// one and begins another.
    fn clock_window(&self, at: Instant, length: i64) -> (Instant, Instant) {
        let offset = i64::from(self.zone.to_offset(at).seconds());
        let local = at.as_second() + offset;
        let mut start = local - local.rem_euclid(length) - offset;
        let mut end = start + length;
        let uneven = |shift: Instant| {
            let before = self.zone.to_offset(
                shift.saturating_sub(jiff::SignedDuration::from_nanos(1)).unwrap_or(shift),
            );
            (i64::from(self.zone.to_offset(shift).seconds()) - i64::from(before.seconds())) % length
                != 0
        };
        if let Some(shift) = self.zone.following(at).next() {
            let shift = shift.timestamp();
            if shift.as_second() < end && uneven(shift) {
                end = shift.as_second();
            }
        }
        // `preceding` excludes `at` itself, where a shift may be.
        let after = at.saturating_add(jiff::SignedDuration::from_secs(1)).unwrap_or(at);
        if let Some(shift) = self.zone.preceding(after).next() {
            let shift = shift.timestamp();
            if start < shift.as_second() && shift <= at && uneven(shift) {
                start = shift.as_second();
            }
        }
        (second(start), second(end))
    }

    fn date_window(&self, at: Instant) -> Option<(Instant, Instant)> {
        let mut first = self.first_date(at.to_zoned(self.zone.clone()).date())?;
        let mut next = self.next_date(first)?;
        // Where clocks go back over midnight a date comes twice; the window began with its first midnight.
        while self.midnight(next)? <= at {
            first = next;
            next = self.next_date(first)?;
        }
        Some((self.midnight(first)?, self.midnight(next)?))
    }

    fn first_date(&self, date: Date) -> Option<Date> {
        match self.period {
            Period::Week => {
                let since_monday = i64::from(date.weekday().to_monday_zero_offset());
                date.checked_sub(CivilSpan::new().days(since_monday)).ok()
            }
            Period::Month => Some(date.first_of_month()),
            Period::Minute | Period::Hour | Period::Day => Some(date),
        }
    }

    fn next_date(&self, first: Date) -> Option<Date> {
        let step = match self.period {
            Period::Week => CivilSpan::new().weeks(1),
            Period::Month => CivilSpan::new().months(1),
            Period::Minute | Period::Hour | Period::Day => CivilSpan::new().days(1),
        };
        first.checked_add(step).ok()
    }

    fn midnight(&self, date: Date) -> Option<Instant> {
        date.to_zoned(self.zone.clone()).ok().map(|zoned| zoned.timestamp())
    }
}

fn second(seconds: i64) -> Instant {
    Instant::from_second(seconds).unwrap_or(Instant::MAX)
}

fn to_instant(at: Timestamp) -> Instant {
    i64::try_from(at.as_micros())
        .ok()
        .and_then(|micros| Instant::from_microsecond(micros).ok())
        .unwrap_or(Instant::MAX)
}

fn from_instant(at: Instant) -> Timestamp {
    Timestamp::from_micros(u64::try_from(at.as_microsecond()).unwrap_or(0))
}
