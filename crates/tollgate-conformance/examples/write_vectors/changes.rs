//! Policies whose numbers change.

use tollgate_core::{
    CalendarWindow, Concurrency, Error, Limit, Period, Policy, RollingWindow, Span, TokenBucket,
};

use crate::story::{Story, at, policy};

const REQUEST: [(&str, u64); 1] = [("requests", 1)];

pub(crate) fn all() -> Result<Vec<Story>, Error> {
    Ok(vec![
        bucket()?,
        slower()?,
        capacity()?,
        window()?,
        to_grid()?,
        calendar()?,
        kind()?,
        limits()?,
        slots()?,
    ])
}

fn rate(refill: u64, seconds: u64, capacity: u64) -> Result<Policy, Error> {
    let bucket = TokenBucket::per(refill, Span::from_secs(seconds)).burst(capacity);
    policy([Limit::new("burst", "requests", bucket)])
}

fn bucket() -> Result<Story, Error> {
    let why = "other numbers for a bucket: what was used stays used, so there is no free burst, and waits stay true";
    Ok(Story::new("change-bucket", why, &rate(1, 1, 10)?)
        .acquire(at(0), &[("requests", 10)])
        .change(&rate(1, 1, 20)?)
        .acquire(at(0), &[("requests", 11)])
        .acquire(at(1) - 1, &[("requests", 11)])
        .acquire(at(1), &[("requests", 11)])
        .change(&rate(1, 2, 5)?)
        .acquire(at(2), &REQUEST)
        .acquire(at(33) - 1, &REQUEST)
        .acquire(at(33), &REQUEST))
}

fn slower() -> Result<Story, Error> {
    let why = "after a change of rate the refill since the charge is unknown, so the charge stays";
    Ok(Story::new("change-bucket-release", why, &rate(10, 1, 10)?)
        .acquire(at(0), &[("requests", 10)])
        .acquire(at(1), &[("requests", 9)])
        .change(&rate(1, 10, 10)?)
        .acquire(at(1), &REQUEST)
        .release(at(1), 0)
        .acquire(at(1), &REQUEST)
        .acquire(at(11), &REQUEST))
}

fn rolling(limit: u64, seconds: u64) -> Result<Policy, Error> {
    policy([Limit::new("rpm", "requests", RollingWindow::new(limit, Span::from_secs(seconds)))])
}

fn window() -> Result<Story, Error> {
    let why = "a smaller limit counts what is inside, and a larger one gives only the difference; in flight is given back";
    Ok(Story::new("change-window", why, &rolling(10, 60)?)
        .acquire(at(0), &[("requests", 4)])
        .acquire(at(10), &[("requests", 4)])
        .change(&rolling(3, 60)?)
        .acquire(at(20), &REQUEST)
        .acquire(at(70) - 1, &REQUEST)
        .acquire(at(70), &REQUEST)
        .change(&rolling(6, 60)?)
        .acquire(at(70), &[("requests", 6)])
        .acquire(at(70), &[("requests", 5)])
        .release(at(71), 4)
        .acquire(at(71), &REQUEST))
}

fn calendar() -> Result<Story, Error> {
    let why = "another daily limit keeps the count of the day, and settling still finds it";
    let day = |limit| {
        let rule = CalendarWindow::new(limit, Period::Day).in_zone("Europe/Berlin");
        policy([Limit::new("rpd", "requests", rule)])
    };
    Ok(Story::new("change-calendar", why, &day(10)?)
        .acquire(at(0), &[("requests", 10)])
        .change(&day(15)?)
        .acquire(at(0), &[("requests", 6)])
        .acquire(at(0), &[("requests", 5)])
        .settle(at(1), 0, &[("requests", 3)])
        .look(at(1)))
}

fn kind() -> Result<Story, Error> {
    let why = "another rule under the same name starts with what was used under the old one";
    let window =
        policy([Limit::new("burst", "requests", RollingWindow::new(10, Span::from_secs(60)))])?;
    Ok(Story::new("change-rule", why, &rate(1, 1, 10)?)
        .acquire(at(0), &[("requests", 8)])
        .change(&window)
        .acquire(at(5), &[("requests", 3)])
        .acquire(at(5), &[("requests", 2)])
        .acquire(at(60) - 1, &[("requests", 8)])
        .acquire(at(60), &[("requests", 8)]))
}

fn limits() -> Result<Story, Error> {
    let why = "a new limit starts unused, a limit that is gone binds no more, ids and closed limits go on";
    let rpm = || Limit::new("rpm", "requests", RollingWindow::new(5, Span::from_secs(60)));
    let tpm = Limit::new("tpm", "tokens", TokenBucket::per_minute(60));
    Ok(Story::new("change-limits", why, &policy([tpm, rpm()])?)
        .acquire_as(at(0), "a", &REQUEST)
        .acquire(at(0), &[("requests", 1), ("tokens", 60)])
        .close(at(0), "rpm", at(5))
        .change(&policy([
            rpm(),
            Limit::new("rph", "requests", RollingWindow::new(9, Span::from_hours(1))),
        ])?)
        .acquire_as(at(1), "a", &REQUEST)
        .acquire(at(1), &REQUEST)
        .acquire(at(5), &[("requests", 3)])
        .acquire(at(5), &REQUEST))
}

fn slots() -> Result<Story, Error> {
    let why = "with fewer slots no holder is evicted, and no new one is admitted until enough are released";
    let jobs =
        |limit| policy([Limit::new("jobs", "jobs", Concurrency::new(limit, Span::from_secs(30)))]);
    Ok(Story::new("change-slots", why, &jobs(3)?)
        .acquire(at(0), &[("jobs", 1)])
        .acquire(at(1), &[("jobs", 1)])
        .acquire(at(2), &[("jobs", 1)])
        .change(&jobs(2)?)
        .acquire(at(3), &[("jobs", 1)])
        .release(at(4), 0)
        .acquire(at(4), &[("jobs", 1)])
        .release(at(5), 2)
        .acquire(at(5), &[("jobs", 1)]))
}

fn capacity() -> Result<Story, Error> {
    let why = "another capacity at the same rate keeps what is known for giving back";
    Ok(Story::new("change-bucket-capacity", why, &rate(10, 1, 100)?)
        .acquire(at(0), &[("requests", 60)])
        .acquire(at(1), &[("requests", 30)])
        .change(&rate(10, 1, 200)?)
        .acquire(at(2), &[("requests", 100)])
        .release(at(4), 0)
        .change(&rate(10, 1, 50)?)
        .release(at(5), 1)
        .look(at(5)))
}

fn to_grid() -> Result<Story, Error> {
    let why = "an exact log that becomes a grid, and a grid that becomes another: entries move to the end of their slot there";
    Ok(Story::new("change-window-grid", why, &rolling(100, 60)?)
        .acquire(at(1), &[("requests", 50)])
        .acquire(at(2) + 500_000, &[("requests", 20)])
        .change(&rolling(6_400, 64)?)
        .acquire(at(3), &REQUEST)
        .look(at(66) - 1)
        .look(at(66))
        .change(&rolling(12_800, 128)?)
        .acquire(at(66), &REQUEST)
        .release(at(66), 2)
        .look(at(132) - 1)
        .look(at(132))
        .look(at(196))
        .change(&rolling(100, 60)?)
        .acquire(at(120), &REQUEST))
}
