//! Goal: calendar windows follow the clock on the wall, in every zone and on every odd day.
//! Method: a table of odd days, and random instants against windows found by walking.

use proptest::prelude::{ProptestConfig, Strategy, prop_assert, prop_assert_eq, proptest};
use proptest::sample::select;
use tollgate_conformance::model::{Zone, window_of};
use tollgate_core::{CalendarWindow, Period, Policy, Timestamp};

use crate::desk::{Desk, just_before, one};

const MINUTE: Period = Period::Minute;
const HOUR: Period = Period::Hour;
const DAY: Period = Period::Day;
const WEEK: Period = Period::Week;
const MONTH: Period = Period::Month;

/// Zone, period, the first instant of a window, the first instant after it, and why it is odd.
const ODD_WINDOWS: [(&str, Period, &str, &str, &str); 30] = [
    ("America/Los_Angeles", DAY, "2025-03-09T08:00:00Z", "2025-03-10T07:00:00Z", "23 h"),
    ("America/Los_Angeles", DAY, "2025-11-02T07:00:00Z", "2025-11-03T08:00:00Z", "25 h"),
    ("America/Los_Angeles", WEEK, "2025-03-03T08:00:00Z", "2025-03-10T07:00:00Z", "167 h"),
    ("America/Los_Angeles", MONTH, "2025-03-01T08:00:00Z", "2025-04-01T07:00:00Z", "31 d - 1 h"),
    ("America/Los_Angeles", HOUR, "2025-11-02T08:00:00Z", "2025-11-02T09:00:00Z", "first 1 am"),
    ("America/Los_Angeles", HOUR, "2025-11-02T09:00:00Z", "2025-11-02T10:00:00Z", "second 1 am"),
    ("Europe/Berlin", DAY, "2025-03-29T23:00:00Z", "2025-03-30T22:00:00Z", "23 h"),
    ("Europe/Berlin", DAY, "2025-10-25T22:00:00Z", "2025-10-26T23:00:00Z", "25 h"),
    ("Australia/Lord_Howe", DAY, "2025-04-05T13:00:00Z", "2025-04-06T13:30:00Z", "24.5 h"),
    ("Australia/Lord_Howe", DAY, "2025-10-04T13:30:00Z", "2025-10-05T13:00:00Z", "23.5 h"),
    ("Australia/Lord_Howe", HOUR, "2025-04-05T15:00:00Z", "2025-04-05T15:30:00Z", "half an hour"),
    ("Australia/Lord_Howe", HOUR, "2025-10-04T15:30:00Z", "2025-10-04T16:00:00Z", "half an hour"),
    ("Australia/Lord_Howe", MINUTE, "2025-04-05T15:00:00Z", "2025-04-05T15:01:00Z", "as ever"),
    ("Asia/Kolkata", DAY, "2025-06-01T18:30:00Z", "2025-06-02T18:30:00Z", "half-hour offset"),
    ("Asia/Kolkata", HOUR, "2025-06-01T18:30:00Z", "2025-06-01T19:30:00Z", "half-hour offset"),
    (
        "America/Sao_Paulo",
        DAY,
        "2018-11-03T03:00:00Z",
        "2018-11-04T03:00:00Z",
        "before no midnight",
    ),
    ("America/Sao_Paulo", DAY, "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z", "no midnight, 23 h"),
    ("America/Sao_Paulo", DAY, "2019-02-16T02:00:00Z", "2019-02-17T03:00:00Z", "11 pm twice, 25 h"),
    ("America/St_Johns", DAY, "2006-10-29T02:30:00Z", "2006-10-30T03:30:00Z", "midnight twice"),
    ("America/St_Johns", DAY, "2006-10-28T02:30:00Z", "2006-10-29T02:30:00Z", "first midnight"),
    ("Pacific/Apia", DAY, "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "before the skipped day"),
    ("Pacific/Apia", DAY, "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z", "after the skipped day"),
    ("Africa/Monrovia", MINUTE, "1972-01-07T00:44:30Z", "1972-01-07T00:45:00Z", "half a minute"),
    ("UTC", MONTH, "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z", "29 d"),
    ("UTC", MONTH, "2025-02-01T00:00:00Z", "2025-03-01T00:00:00Z", "28 d"),
    ("UTC", MONTH, "2100-02-01T00:00:00Z", "2100-03-01T00:00:00Z", "no leap year"),
    ("UTC", MONTH, "2025-12-01T00:00:00Z", "2026-01-01T00:00:00Z", "end of the year"),
    ("UTC", WEEK, "2024-12-30T00:00:00Z", "2025-01-06T00:00:00Z", "over the end of the year"),
    ("UTC", WEEK, "2020-12-28T00:00:00Z", "2021-01-04T00:00:00Z", "week 53"),
    ("UTC", MINUTE, "2016-12-31T23:59:00Z", "2017-01-01T00:00:00Z", "a leap second is not there"),
];

fn instant(text: &str) -> Timestamp {
    text.parse().expect("the table holds instants")
}

/// When the window that holds `at` ends, as a subject sees it who takes the only place there is.
fn end_of(policy: &Policy, at: Timestamp) -> Timestamp {
    let mut desk = Desk::new(policy);
    desk.admitted(at, 1);
    desk.standing(at).reset_at.expect("the window is full")
}

fn per(period: Period, zone: &str) -> Policy {
    one(CalendarWindow::new(1, period).in_zone(zone))
}

#[test]
fn odd_days_begin_and_end_where_the_wall_clock_says() {
    for (zone, period, start, end, why) in ODD_WINDOWS {
        let policy = per(period, zone);
        let (start, end) = (instant(start), instant(end));
        assert_eq!(end_of(&policy, start), end, "{period} in {zone}: {why}");
        assert_eq!(end_of(&policy, just_before(end)), end, "{period} in {zone}: {why}");
        assert_eq!(end_of(&policy, just_before(start)), start, "{period} in {zone}: {why}");
    }
}

/// The walking model is held to the same table, so that the two cannot be wrong together.
#[test]
fn the_model_walks_to_the_same_borders() {
    for (zone, period, start, end, why) in ODD_WINDOWS {
        let (start, end) = (instant(start).as_micros(), instant(end).as_micros());
        for at in [start, start + 1, end - 1] {
            let window = window_of(&Zone::named(zone), period, at);
            assert_eq!(window, (start, end), "{period} in {zone}: {why}");
        }
    }
}

/// R000.6: 25 are allowed and number 26 is refused until the next midnight, on the day of 23 hours too.
#[test]
fn r000_6_a_full_day_is_denied_until_exactly_its_own_end() {
    let mut desk = Desk::new(&one(CalendarWindow::new(25, DAY).in_zone("America/Los_Angeles")));
    let (noon, midnight) = (instant("2025-03-09T19:00:00Z"), instant("2025-03-10T07:00:00Z"));
    for _ in 0..25 {
        desk.admitted(noon, 1);
    }
    assert_eq!(desk.denied(noon, 1).until, Some(midnight));
    assert_eq!(desk.denied(just_before(midnight), 1).until, Some(midnight));
    desk.admitted(midnight, 25);
}

fn zones() -> impl Strategy<Value = &'static str> {
    let names: Vec<&'static str> = ODD_WINDOWS.iter().map(|row| row.0).collect();
    let more =
        ["Asia/Tehran", "America/Asuncion", "Africa/Casablanca", "Pacific/Chatham", "Asia/Amman"];
    select([names, more.to_vec()].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Windows partition time: every instant is in exactly one, and it is the one found by walking.
    #[test]
    fn every_instant_is_in_exactly_one_window(
        zone in zones(),
        period in select(vec![MINUTE, HOUR, DAY, WEEK, MONTH]),
        // From 1971 to about 2060.
        micros in 31_536_000_000_000_u64..2_840_000_000_000_000,
    ) {
        let policy = per(period, zone);
        let at = Timestamp::from_micros(micros);
        let (start, end) = window_of(&Zone::named(zone), period, micros);
        let (start, end) = (Timestamp::from_micros(start), Timestamp::from_micros(end));
        prop_assert!(start <= at && at < end);
        prop_assert_eq!(end_of(&policy, at), end);
        prop_assert_eq!(end_of(&policy, start), end);
        prop_assert_eq!(end_of(&policy, just_before(end)), end);
        prop_assert_eq!(end_of(&policy, just_before(start)), start);
    }
}
