//! Several limits at once, ids, shadow, closing, clocks.

use tollgate_core::{
    CalendarWindow, Error, Limit, Period, Policy, RollingWindow, Span, TokenBucket,
};

use crate::story::{SECOND, Story, at, policy};

const REQUEST: [(&str, u64); 1] = [("requests", 1)];

pub(crate) fn all() -> Result<Vec<Story>, Error> {
    Ok(vec![
        all_or_nothing()?,
        binding()?,
        never()?,
        defaults()?,
        ids()?,
        id_horizon()?,
        shadow()?,
        close()?,
        clock()?,
        reset()?,
        expired()?,
    ])
}

fn gemini() -> Result<Policy, Error> {
    let minute = Span::from_mins(1);
    policy([
        Limit::new("rpm", "requests", RollingWindow::new(5, minute)),
        Limit::new("tpm", "tokens", RollingWindow::new(250_000, minute)),
        Limit::new("rpd", "requests", CalendarWindow::new(6, Period::Day)),
    ])
}

fn bucket() -> Result<Policy, Error> {
    policy([Limit::new("burst", "requests", TokenBucket::per_second(1).burst(10))])
}

fn all_or_nothing() -> Result<Story, Error> {
    let why = "the third limit denies, so none of the three is charged";
    Ok(Story::new("ask-all-or-nothing", why, &gemini()?)
        .acquire(at(0), &[("requests", 5), ("tokens", 100_000)])
        .acquire(at(61), &[("requests", 2), ("tokens", 100_000)])
        .acquire(at(61), &[("tokens", 250_000)])
        .acquire(at(61), &[("tokens", 1)]))
}

fn binding() -> Result<Story, Error> {
    let why = "the longest wait binds, then the first in order; a limit whose unit costs nothing does not bind";
    let minute = Span::from_mins(1);
    let policy = policy([
        Limit::new("one", "requests", RollingWindow::new(5, minute)),
        Limit::new("two", "requests", RollingWindow::new(5, minute)),
        Limit::new("three", "tokens", TokenBucket::per_minute(60)),
    ])?;
    Ok(Story::new("ask-binding", why, &policy)
        .acquire(at(0), &[("requests", 5), ("tokens", 60)])
        .acquire(at(0), &REQUEST)
        .acquire(at(0), &[("requests", 1), ("tokens", 60)])
        .acquire(at(0), &[("requests", 1), ("tokens", 59)])
        .acquire(at(0), &[("requests", 0), ("tokens", 1)])
        .acquire(at(30), &[("requests", 1), ("tokens", 60)])
        .acquire(at(30), &[("requests", 0), ("tokens", 30)]))
}

fn never() -> Result<Story, Error> {
    let why = "what is larger than a limit never fits, and says so even when another limit has a long wait";
    Ok(Story::new("ask-never", why, &gemini()?)
        .acquire(at(0), &[("requests", 6)])
        .acquire(at(0), &[("requests", 5)])
        .acquire(at(0), &[("requests", 1), ("tokens", 250_001)])
        .acquire(at(0), &[("requests", 7), ("tokens", 250_001)]))
}

fn defaults() -> Result<Story, Error> {
    let why = "a unit that is not named costs 0, requests cost 1, and an unknown unit is an error";
    Ok(Story::new("ask-defaults", why, &gemini()?)
        .acquire(at(0), &[])
        .acquire(at(0), &[("requests", 0), ("tokens", 10)])
        .acquire(at(0), &[("requests", 0)])
        .acquire(at(0), &[("words", 1)])
        .settle(at(0), 0, &[("words", 1)])
        .settle(at(0), 0, &[("tokens", 5)]))
}

fn ids() -> Result<Story, Error> {
    let why = "a repeat under the same id is charged once and gets the same permit; other costs are a conflict; denials \
               are not remembered";
    Ok(Story::new("ask-ids", why, &bucket()?)
        .acquire_as(at(0), "a", &[("requests", 6)])
        .acquire_as(at(1), "a", &[("requests", 6)])
        .acquire_as(at(1), "a", &[("requests", 5)])
        .acquire_as(at(1), "b", &[("requests", 6)])
        .acquire_as(at(2), "b", &[("requests", 6)])
        .acquire_as(at(2), "b", &[("requests", 6)])
        .release(at(2), 0)
        .acquire_as(at(2), "a", &[("requests", 6)])
        .charge_as(at(3), "c", &[("requests", 20)])
        .charge_as(at(3), "c", &[("requests", 20)])
        .charge_as(at(3), "c", &[("requests", 21)])
        .acquire_as(at(4), "b", &[("requests", 11)]))
}

fn id_horizon() -> Result<Story, Error> {
    let why = "an id is remembered for 120 s from its admission, half-open";
    Ok(Story::new("ask-id-horizon", why, &bucket()?)
        .acquire_as(at(0), "a", &[("requests", 4)])
        .acquire_as(at(120) - 1, "a", &[("requests", 4)])
        .acquire_as(at(120), "a", &[("requests", 5)])
        .acquire_as(at(120), "a", &[("requests", 5)]))
}

fn shadow() -> Result<Story, Error> {
    let why = "in shadow mode a would-be denial admits, charges nothing and says by which limit it was denied";
    let limit = Limit::new("burst", "requests", TokenBucket::per_second(1).burst(10));
    let policy = Policy::builder("story").limit(limit).shadow(true).build()?;
    Ok(Story::new("ask-shadow", why, &policy)
        .acquire(at(0), &[("requests", 8)])
        .acquire(at(0), &[("requests", 5)])
        .acquire(at(0), &[("requests", 11)])
        .settle(at(0), 1, &[("requests", 9)])
        .release(at(0), 2)
        .acquire(at(3), &[("requests", 5)]))
}

fn close() -> Result<Story, Error> {
    let why = "a limit that was closed admits nothing until its time; closing for less changes nothing; units that cost \
               nothing pass";
    Ok(Story::new("ask-close", why, &gemini()?)
        .acquire(at(0), &[("tokens", 10)])
        .close(at(0), "tpm", at(90))
        .acquire(at(1), &[("tokens", 10)])
        .acquire(at(1), &REQUEST)
        .close(at(2), "tpm", at(80))
        .close(at(2), "tpm", at(95))
        .close(at(2), "tps", at(95))
        .acquire(at(95) - 1, &[("requests", 0), ("tokens", 1)])
        .acquire(at(95), &[("requests", 0), ("tokens", 1)])
        .close(at(95), "tpm", at(95)))
}

fn clock() -> Result<Story, Error> {
    let why = "when the clock steps back, decisions are made at the time of the last write";
    Ok(Story::new("ask-clock-back", why, &bucket()?)
        .acquire(at(100), &[("requests", 10)])
        .acquire(at(50), &REQUEST)
        .look(at(50))
        .acquire(at(101) - 1, &REQUEST)
        .acquire(at(101), &REQUEST)
        .charge(at(40), &REQUEST)
        .acquire(at(103), &REQUEST))
}

fn reset() -> Result<Story, Error> {
    let why = "a reset forgets everything";
    Ok(Story::new("ask-reset", why, &bucket()?)
        .acquire_as(at(0), "a", &[("requests", 10)])
        .close(at(0), "burst", at(90))
        .reset(at(1))
        .acquire_as(at(1), "a", &[("requests", 9)]))
}

fn expired() -> Result<Story, Error> {
    let why = "a permit is settled within an hour of its admission, half-open, whether it was settled before or not";
    Ok(Story::new("ask-permit-expired", why, &bucket()?)
        .acquire(at(0), &[("requests", 5)])
        .acquire(at(0), &[("requests", 5)])
        .release(at(1), 0)
        .release(at(3_600) - 1, 0)
        .settle(at(3_600), 1, &[("requests", 2)])
        .release(at(3_600), 0)
        .look(at(3_600) + SECOND))
}
