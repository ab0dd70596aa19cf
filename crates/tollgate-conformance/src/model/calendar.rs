//! Calendar windows by walking through time.
//!
//! The only question asked of the time zone is what its clock shows at an instant. Where a window begins is found by
//! walking from second to second or minute to minute until the clock shows it.

use std::cell::RefCell;

use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp as Instant, ToSpan};
use tollgate_core::{CalendarWindow, Period, Span};

const MICROS: i64 = 1_000_000;
const MINUTE: i64 = 60;
const HOUR: i64 = 3_600;

/// A clock on a wall.
#[derive(Clone, Debug)]
pub struct Zone(TimeZone);

impl Zone {
    /// The zone with this IANA name; UTC if it is unknown.
    pub fn named(name: &str) -> Self {
        Self(TimeZoneDatabase::bundled().get(name).unwrap_or(TimeZone::UTC))
    }

    fn offset(&self, second: i64) -> i64 {
        i64::from(self.0.to_offset(instant(second)).seconds())
    }

    fn date(&self, second: i64) -> Date {
        self.0.to_datetime(instant(second)).date()
    }

    /// The first second at which the clock shows `date` or a later one: where clocks go back over midnight the first
    /// time counts, and where midnight is left out it is the first second after the gap.
    fn first_second_of(&self, date: Date) -> i64 {
        let utc =
            date.to_zoned(TimeZone::UTC).map_or(i64::MAX, |zoned| zoned.timestamp().as_second());
        // No zone is more than 16 hours from UTC.
        let mut second = utc - 16 * HOUR;
        while self.date(second) < date {
            second += MINUTE;
        }
        while date <= self.date(second - 1) {
            second -= 1;
        }
        second
    }

    /// When the minute or hour that the clock shows began, going back at the pace of the moment.
    fn began(&self, second: i64, length: i64) -> i64 {
        second - (second + self.offset(second)).rem_euclid(length)
    }
}

/// The borders of the window of `period` that holds the instant `at`, in microseconds.
pub fn window_of(zone: &Zone, period: Period, at: u64) -> (u64, u64) {
    let second = i64::try_from(at).unwrap_or(i64::MAX).div_euclid(MICROS);
    let (start, end) = match period {
        Period::Minute => clock_window(zone, second, MINUTE),
        Period::Hour => clock_window(zone, second, HOUR),
        Period::Day | Period::Week | Period::Month => date_window(zone, second, period),
    };
    let micros = |second: i64| u64::try_from(second * MICROS).unwrap_or(0);
    (micros(start), micros(end))
}

/// All seconds around this one whose minute or hour began at the same instant.
fn clock_window(zone: &Zone, second: i64, length: i64) -> (i64, i64) {
    let began = zone.began(second, length);
    let same = |second: i64| zone.began(second, length) == began;
    let (mut first, mut last) = (second, second);
    for stride in [MINUTE, 1] {
        while same(first - stride) {
            first -= stride;
        }
        while same(last + stride) {
            last += stride;
        }
    }
    (first, last + 1)
}

fn date_window(zone: &Zone, second: i64, period: Period) -> (i64, i64) {
    let mut first = first_date(zone.date(second), period);
    let mut next = next_date(first, period);
    let mut end = zone.first_second_of(next);
    while end <= second {
        first = next;
        next = next_date(first, period);
        end = zone.first_second_of(next);
    }
    (zone.first_second_of(first), end)
}

/// The first date of the window that `date` is in, by going back day by day.
fn first_date(mut date: Date, period: Period) -> Date {
    while !begins(date, period) {
        date = date.yesterday().unwrap_or(Date::MIN);
    }
    date
}

fn next_date(first: Date, period: Period) -> Date {
    let mut date = first;
    loop {
        date = date.saturating_add(1.day());
        if begins(date, period) {
            return date;
        }
    }
}

fn begins(date: Date, period: Period) -> bool {
    match period {
        Period::Week => date.weekday() == jiff::civil::Weekday::Monday,
        Period::Month => date.day() == 1,
        Period::Minute | Period::Hour | Period::Day => true,
    }
}

fn instant(second: i64) -> Instant {
    Instant::from_second(second).unwrap_or(Instant::MAX)
}

/// One charge.
#[derive(Clone, Copy, Debug)]
struct Charge {
    ticket: Option<usize>,
    at: u64,
    amount: u64,
}

/// Every charge ever made.
#[derive(Clone, Debug)]
pub(super) struct Calendar {
    zone: Zone,
    zone_name: String,
    period: Period,
    margin: u64,
    charges: Vec<Charge>,
    /// Windows that were walked already; walking them again would only be slower.
    walked: RefCell<Vec<(u64, u64)>>,
}

impl Calendar {
    pub(super) fn new(rule: &CalendarWindow, margin: Span) -> Self {
        Self {
            zone: Zone::named(&rule.zone),
            zone_name: rule.zone.clone(),
            period: rule.period,
            margin: margin.as_micros(),
            charges: Vec::new(),
            walked: RefCell::default(),
        }
    }

    fn window(&self, at: u64) -> (u64, u64) {
        let mut walked = self.walked.borrow_mut();
        if let Some(known) = walked.iter().find(|(start, end)| *start <= at && at < *end) {
            return *known;
        }
        let window = window_of(&self.zone, self.period, at);
        walked.push(window);
        window
    }

    /// The amounts charged in the window of `now`, and those charged so late in the one before that they may arrive in
    /// this one.
    pub(super) fn used(&self, now: u64) -> u128 {
        let (start, end) = self.window(now);
        let before = start.checked_sub(1).map_or(start, |last| self.window(last).0);
        let late_from = start.saturating_sub(self.margin).max(before);
        let counts = |charge: &&Charge| late_from <= charge.at && charge.at < end;
        self.charges.iter().filter(counts).map(|charge| u128::from(charge.amount)).sum()
    }

    /// The ends of this window and of the next two.
    pub(super) fn instants(&self, now: u64) -> Vec<u64> {
        let first = self.window(now).1;
        let second = self.window(first).1;
        vec![first, second, self.window(second).1]
    }

    pub(super) fn charge(&mut self, ticket: Option<usize>, at: u64, amount: u64) {
        self.charges.push(Charge { ticket, at, amount });
    }

    /// Only the window of the charge gets anything back, so nothing once it is over.
    pub(super) fn give_back(&mut self, ticket: usize, now: u64, amount: u64) {
        let window = self.window(now);
        let given = self.charges.iter_mut().find(|charge| charge.ticket == Some(ticket));
        if let Some(charge) = given.filter(|charge| window.0 <= charge.at) {
            charge.amount = charge.amount.saturating_sub(amount);
        }
    }

    pub(super) fn same_windows(&self, other: &Self) -> bool {
        (self.period, &self.zone_name, self.margin)
            == (other.period, &other.zone_name, other.margin)
    }

    pub(super) fn take_over(&mut self, old: &Self) {
        self.charges.clone_from(&old.charges);
    }
}
