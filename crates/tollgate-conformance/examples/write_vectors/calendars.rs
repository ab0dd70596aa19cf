//! Calendar windows.

use tollgate_core::{CalendarWindow, Error, Headroom, Limit, Period, Policy, Span};

use crate::story::{HOUR, SECOND, Story, at, on, policy};

const REQUEST: [(&str, u64); 1] = [("requests", 1)];

pub(crate) fn all() -> Result<Vec<Story>, Error> {
    Ok(vec![
        daily()?,
        daily_headroom()?,
        short_day()?,
        long_day()?,
        half_hour()?,
        skipped_day()?,
        repeated_midnight()?,
        week()?,
        month()?,
        settle()?,
        margin()?,
    ])
}

fn per(limit: u64, period: Period, zone: &str) -> Result<Policy, Error> {
    policy([Limit::new("quota", "requests", CalendarWindow::new(limit, period).in_zone(zone))])
}

fn daily() -> Result<Story, Error> {
    let why = "R000.6 and conflict 6: 25 a day are allowed, number 26 is refused until the next Pacific midnight";
    let midnight = on("2025-07-02T07:00:00Z")?;
    Ok(Story::new("calendar-daily", why, &per(25, Period::Day, "America/Los_Angeles")?)
        .acquire(on("2025-07-01T07:00:00Z")?, &[("requests", 24)])
        .acquire(on("2025-07-01T20:00:00Z")?, &REQUEST)
        .acquire(on("2025-07-01T20:00:01Z")?, &REQUEST)
        .acquire(midnight - 1, &REQUEST)
        .acquire(midnight, &REQUEST))
}

fn daily_headroom() -> Result<Story, Error> {
    let why = "R000.6 to the letter: with headroom 1, 24 are made and number 25 is refused";
    let rule = CalendarWindow::new(25, Period::Day).in_zone("America/Los_Angeles");
    let policy = policy([Limit::new("rpd", "requests", rule).headroom(Headroom::Units(1))])?;
    Ok(Story::new("calendar-daily-headroom", why, &policy)
        .acquire(on("2025-07-01T12:00:00Z")?, &[("requests", 24)])
        .acquire(on("2025-07-01T20:00:00Z")?, &REQUEST)
        .acquire(on("2025-07-02T07:00:00Z")?, &REQUEST))
}

fn short_day() -> Result<Story, Error> {
    let why = "the day on which daylight saving time begins has 23 hours";
    let start = on("2025-03-09T08:00:00Z")?;
    Ok(Story::new("calendar-short-day", why, &per(1, Period::Day, "America/Los_Angeles")?)
        .acquire(start, &REQUEST)
        .acquire(start + 23 * HOUR - 1, &REQUEST)
        .acquire(start + 23 * HOUR, &REQUEST)
        .look(start + 23 * HOUR))
}

fn long_day() -> Result<Story, Error> {
    let why = "the day on which daylight saving time ends has 25 hours";
    let start = on("2025-10-25T22:00:00Z")?;
    Ok(Story::new("calendar-long-day", why, &per(1, Period::Day, "Europe/Berlin")?)
        .acquire(start, &REQUEST)
        .acquire(start + 24 * HOUR, &REQUEST)
        .acquire(start + 25 * HOUR - 1, &REQUEST)
        .acquire(start + 25 * HOUR, &REQUEST))
}

fn half_hour() -> Result<Story, Error> {
    let why = "clocks of Lord Howe Island go back by half an hour at two: the hour after that has 30 minutes";
    let shift = on("2025-04-05T15:00:00Z")?;
    Ok(Story::new("calendar-half-hour", why, &per(1, Period::Hour, "Australia/Lord_Howe")?)
        .acquire(shift - HOUR, &REQUEST)
        .acquire(shift - 1, &REQUEST)
        .acquire(shift, &REQUEST)
        .acquire(shift + 1, &REQUEST)
        .acquire(shift + HOUR / 2, &REQUEST)
        .acquire(shift + HOUR / 2, &REQUEST))
}

fn skipped_day() -> Result<Story, Error> {
    let why = "Apia left out 30 December 2011: the 29th ends where the 31st begins";
    let shift = on("2011-12-30T10:00:00Z")?;
    Ok(Story::new("calendar-skipped-day", why, &per(1, Period::Day, "Pacific/Apia")?)
        .acquire(shift - 24 * HOUR, &REQUEST)
        .acquire(shift - 1, &REQUEST)
        .acquire(shift, &REQUEST)
        .acquire(shift, &REQUEST))
}

fn repeated_midnight() -> Result<Story, Error> {
    let why = "clocks of St. John's went back from 00:01 to 23:01: the new day began with the first midnight and stays";
    let midnight = on("2006-10-29T02:30:00Z")?;
    Ok(Story::new("calendar-repeated-midnight", why, &per(1, Period::Day, "America/St_Johns")?)
        .acquire(midnight - 1, &REQUEST)
        .acquire(midnight, &REQUEST)
        .acquire(midnight + 60 * SECOND, &REQUEST)
        .acquire(midnight + HOUR, &REQUEST)
        .acquire(midnight + 25 * HOUR, &REQUEST))
}

fn week() -> Result<Story, Error> {
    let why = "a week runs from Monday to Monday, over the end of a year too";
    let monday = on("2025-01-05T18:30:00Z")?;
    Ok(Story::new("calendar-week", why, &per(2, Period::Week, "Asia/Kolkata")?)
        .acquire(on("2024-12-29T18:30:00Z")?, &REQUEST)
        .acquire(on("2025-01-03T00:00:00Z")?, &REQUEST)
        .acquire(monday - 1, &REQUEST)
        .acquire(monday, &[("requests", 2)]))
}

fn month() -> Result<Story, Error> {
    let why = "February of a leap year has 29 days";
    let march = on("2024-03-01T00:00:00Z")?;
    Ok(Story::new("calendar-month", why, &per(2, Period::Month, "UTC")?)
        .acquire(on("2024-02-01T00:00:00Z")?, &REQUEST)
        .acquire(on("2024-02-29T23:59:59Z")?, &REQUEST)
        .acquire(march - 1, &REQUEST)
        .acquire(march, &REQUEST)
        .look(march))
}

fn settle() -> Result<Story, Error> {
    let why = "only the window of the charge gets anything back";
    let policy = per(5, Period::Minute, "UTC")?;
    Ok(Story::new("calendar-settle", why, &policy)
        .acquire(at(10), &[("requests", 3)])
        .acquire(at(59), &[("requests", 2)])
        .settle(at(59), 0, &[("requests", 1)])
        .acquire(at(60), &[("requests", 5)])
        .release(at(60), 1)
        .acquire(at(60), &REQUEST)
        .settle(at(61), 3, &[("requests", 7)])
        .acquire(at(119), &REQUEST)
        .acquire(at(120), &[("requests", 5)]))
}

fn margin() -> Result<Story, Error> {
    let why = "with a margin of 2 s, what is admitted in the last 2 s of a window may arrive in the next and counts there too";
    let rule = CalendarWindow::new(5, Period::Minute);
    let policy = policy([Limit::new("rpm", "requests", rule).margin(Span::from_secs(2))])?;
    Ok(Story::new("calendar-margin", why, &policy)
        .acquire(at(57), &[("requests", 2)])
        .acquire(at(58), &[("requests", 3)])
        .acquire(at(58), &[("requests", 3)])
        .acquire(at(60) - 1, &[("requests", 2)])
        .acquire(at(60), &[("requests", 3)])
        .acquire(at(60), &[("requests", 2)])
        .release(at(60), 1)
        .acquire(at(60), &REQUEST)
        .look(at(120)))
}
