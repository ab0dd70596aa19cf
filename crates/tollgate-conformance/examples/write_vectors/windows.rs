//! Rolling windows.

use tollgate_core::{Error, Headroom, Limit, Policy, RollingWindow, Span};

use crate::story::{HOUR, SECOND, Story, at, policy};

const REQUEST: [(&str, u64); 1] = [("requests", 1)];

pub(crate) fn all() -> Result<Vec<Story>, Error> {
    Ok(vec![
        quota()?,
        frees()?,
        over_full()?,
        coarse()?,
        settle()?,
        left()?,
        derived()?,
        grid()?,
        grid_of_a_fast_limit()?,
    ])
}

fn five_a_day() -> Result<Policy, Error> {
    policy([Limit::new("videos", "requests", RollingWindow::new(5, Span::from_hours(24)))])
}

fn quota() -> Result<Story, Error> {
    let why = "R004.1 and R004.2: five in any 24 h; the sixth is refused and changes nothing, even when asked for often";
    let day = at(0) + 24 * HOUR;
    Ok(Story::new("window-five-a-day", why, &five_a_day()?)
        .acquire(at(0), &REQUEST)
        .acquire(at(0) + HOUR, &REQUEST)
        .acquire(at(0) + 2 * HOUR, &REQUEST)
        .acquire(at(0) + 3 * HOUR, &REQUEST)
        .acquire(at(0) + 4 * HOUR, &REQUEST)
        .acquire(at(0) + 5 * HOUR, &REQUEST)
        .acquire(at(0) + 23 * HOUR, &REQUEST)
        .acquire(day - 1, &REQUEST)
        .acquire(day, &REQUEST)
        .acquire(day, &REQUEST))
}

fn frees() -> Result<Story, Error> {
    let why = "R004.3: with one request 23 h ago there is room; each leaves 24 h after its own time, half-open";
    let day = at(0) + 24 * HOUR;
    Ok(Story::new("window-rolls", why, &five_a_day()?)
        .acquire(at(0), &REQUEST)
        .acquire(at(0) + 23 * HOUR, &[("requests", 4)])
        .acquire(at(0) + 23 * HOUR, &REQUEST)
        .look(day - 1)
        .look(day)
        .look(day + 23 * HOUR - 1)
        .look(day + 23 * HOUR))
}

fn over_full() -> Result<Story, Error> {
    let why = "conflict 32: with more than five inside, the fifth newest decides when a place is free, not the oldest";
    Ok(Story::new("window-nth-newest", why, &five_a_day()?)
        .charge(at(0), &REQUEST)
        .charge(at(10), &REQUEST)
        .charge(at(20), &REQUEST)
        .charge(at(30), &REQUEST)
        .charge(at(40), &REQUEST)
        .charge(at(50), &REQUEST)
        .charge(at(60), &REQUEST)
        .acquire(at(70), &REQUEST)
        .acquire(at(20) + 24 * HOUR - 1, &REQUEST)
        .acquire(at(20) + 24 * HOUR, &REQUEST))
}

fn coarse() -> Result<Story, Error> {
    let why = "with resolution 6 a charge counts from the end of its slot of 10 s, so it errs to the strict side";
    let policy = policy([Limit::new(
        "rpm",
        "requests",
        RollingWindow::new(5, Span::from_secs(60)).resolution(6),
    )])?;
    Ok(Story::new("window-resolution", why, &policy)
        .acquire(at(3), &[("requests", 2)])
        .acquire(at(9), &REQUEST)
        .acquire(at(10), &[("requests", 2)])
        .acquire(at(63), &REQUEST)
        .acquire(at(70) - 1, &[("requests", 3)])
        .acquire(at(70), &[("requests", 4)])
        .acquire(at(70), &[("requests", 3)])
        .acquire(at(80) - 1, &REQUEST)
        .acquire(at(80), &REQUEST))
}

fn minute() -> Result<Policy, Error> {
    policy([Limit::new("tpm", "tokens", RollingWindow::new(100, Span::from_secs(60)))])
}

fn settle() -> Result<Story, Error> {
    let why = "settling for less shrinks the charge in place; settling for more is a new charge at that time";
    Ok(Story::new("window-settle", why, &minute()?)
        .acquire(at(0), &[("tokens", 60)])
        .acquire(at(10), &[("tokens", 40)])
        .settle(at(20), 0, &[("tokens", 25)])
        .acquire(at(20), &[("tokens", 35)])
        .settle(at(30), 1, &[("tokens", 50)])
        .settle(at(30), 1, &[("tokens", 10)])
        .acquire(at(30), &[("tokens", 1)])
        .look(at(60))
        .look(at(70))
        .look(at(80))
        .look(at(90)))
}

fn left() -> Result<Story, Error> {
    let why = "releasing what has left the window frees nothing of what came later";
    Ok(Story::new("window-no-room-twice", why, &minute()?)
        .acquire(at(0), &[("tokens", 100)])
        .acquire(at(60), &[("tokens", 100)])
        .release(at(61), 0)
        .acquire(at(61), &[("tokens", 1)])
        .release(at(61), 1)
        .acquire(at(61), &[("tokens", 100)]))
}

fn derived() -> Result<Story, Error> {
    let why = "a margin of 2 s and a block_ttl of 3 s make a window of 60 s count 65 s; headroom 1 is never issued";
    let limit = Limit::new("rpm", "requests", RollingWindow::new(5, Span::from_secs(60)))
        .headroom(Headroom::Units(1))
        .margin(Span::from_secs(2));
    let policy = Policy::builder("story").limit(limit).block_ttl(Span::from_secs(3)).build()?;
    Ok(Story::new("window-derived", why, &policy)
        .acquire(at(0), &[("requests", 5)])
        .acquire(at(0), &[("requests", 4)])
        .acquire(at(64), &REQUEST)
        .acquire(at(65) - 1, &REQUEST)
        .acquire(at(65), &REQUEST)
        .look(at(65) + SECOND / 2))
}

fn grid() -> Result<Story, Error> {
    let why = "beyond 128 a window has a grid of 64 slots: an amount counts until the end of its slot plus the window, and \
               gives back out of its slot";
    let limit = Limit::new("tpm", "tokens", RollingWindow::new(6_400, Span::from_secs(64)));
    Ok(Story::new("window-grid", why, &policy([limit])?)
        .acquire(at(0) + SECOND / 2, &[("tokens", 6_000)])
        .acquire(at(1) - 1, &[("tokens", 300)])
        .acquire(at(1), &[("tokens", 100)])
        .acquire(at(2), &[("tokens", 1)])
        .settle(at(3), 0, &[("tokens", 5_000)])
        .acquire(at(3), &[("tokens", 1_001)])
        .acquire(at(3), &[("tokens", 1_000)])
        .acquire(at(65) - 1, &[("tokens", 5_300)])
        .acquire(at(65), &[("tokens", 5_300)])
        .release(at(65), 2)
        .release(at(66), 1)
        .look(at(67)))
}

fn grid_of_a_fast_limit() -> Result<Story, Error> {
    let why = "more than 10 per second have a grid as well, however few; with a margin its slots are of the longer window";
    let limit = Limit::new("rps", "requests", RollingWindow::new(20, Span::from_secs(1)));
    let limit = limit.margin(Span::from_millis(280));
    Ok(Story::new("window-grid-fast", why, &policy([limit])?)
        .acquire(at(0) + 1, &[("requests", 12)])
        .acquire(at(0) + 19_999, &[("requests", 8)])
        .acquire(at(1), &REQUEST)
        .acquire(at(1) + 299_999, &REQUEST)
        .acquire(at(1) + 300_000, &[("requests", 20)])
        .look(at(1) + 300_000))
}
