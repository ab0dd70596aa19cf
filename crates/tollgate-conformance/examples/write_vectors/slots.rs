//! Concurrency.

use tollgate_core::{Concurrency, Error, Headroom, Limit, Policy, Span, TokenBucket};

use crate::story::{HOUR, Story, at, policy};

const JOB: [(&str, u64); 1] = [("jobs", 1)];

pub(crate) fn all() -> Result<Vec<Story>, Error> {
    Ok(vec![hold()?, renew()?, several()?, lost()?, mixed()?])
}

fn jobs(limit: u64) -> Result<Policy, Error> {
    policy([Limit::new("jobs", "jobs", Concurrency::new(limit, Span::from_secs(30)))])
}

fn hold() -> Result<Story, Error> {
    let why = "a slot is held until it is released or expires; releasing twice frees one";
    Ok(Story::new("slots-hold", why, &jobs(2)?)
        .acquire(at(0), &JOB)
        .acquire(at(5), &JOB)
        .acquire(at(6), &JOB)
        .release(at(7), 0)
        .release(at(7), 0)
        .acquire(at(7), &JOB)
        .acquire(at(7), &JOB)
        .acquire(at(35) - 1, &JOB)
        .acquire(at(35), &JOB)
        .release(at(36), 1)
        .look(at(36)))
}

fn renew() -> Result<Story, Error> {
    let why = "renewing keeps a slot for another time to live; what has expired cannot be renewed";
    Ok(Story::new("slots-renew", why, &jobs(1)?)
        .acquire(at(0), &JOB)
        .renew(at(20), 0)
        .acquire(at(30), &JOB)
        .acquire(at(50), &JOB)
        .renew(at(50), 0)
        .settle(at(51), 3, &[])
        .renew(at(51), 3)
        .look(at(51)))
}

fn several() -> Result<Story, Error> {
    let why = "an ask may take several places, and waits until enough of them are free";
    let limit = Limit::new("jobs", "jobs", Concurrency::new(11, Span::from_secs(30)));
    Ok(Story::new("slots-several", why, &policy([limit.headroom(Headroom::Units(1))])?)
        .acquire(at(0), &[("jobs", 3)])
        .acquire(at(1), &[("jobs", 3)])
        .acquire(at(2), &[("jobs", 4)])
        .acquire(at(3), &[("jobs", 5)])
        .acquire(at(31) - 1, &[("jobs", 5)])
        .acquire(at(31), &[("jobs", 5)])
        .acquire(at(31), &[("jobs", 11)]))
}

fn lost() -> Result<Story, Error> {
    let why =
        "a permit that lost one of its slots cannot be renewed, since another permit may hold it";
    let policy = policy([
        Limit::new("short", "jobs", Concurrency::new(1, Span::from_secs(10))),
        Limit::new("long", "jobs", Concurrency::new(2, Span::from_secs(60))),
    ])?;
    Ok(Story::new("slots-lost", why, &policy)
        .acquire(at(0), &JOB)
        .acquire(at(5), &JOB)
        .acquire(at(11), &JOB)
        .renew(at(12), 0)
        .renew(at(12), 2)
        .look(at(22) - 1)
        .look(at(22)))
}

fn mixed() -> Result<Story, Error> {
    let why = "settling frees the slots whatever the actual cost is; a charge takes none; after an hour it is too late";
    let policy = policy([
        Limit::new("jobs", "jobs", Concurrency::new(2, Span::from_hours(3))),
        Limit::new("rps", "requests", TokenBucket::per_second(1).burst(5)),
    ])?;
    Ok(Story::new("slots-mixed", why, &policy)
        .acquire(at(0), &[("jobs", 2), ("requests", 3)])
        .charge(at(0), &[("jobs", 1), ("requests", 1)])
        .settle(at(1), 0, &[("jobs", 2), ("requests", 3)])
        .acquire(at(1), &[("jobs", 1), ("requests", 1)])
        .release(at(1) + HOUR - 1, 3)
        .acquire(at(1) + HOUR, &[("jobs", 1), ("requests", 1)])
        .release(at(1) + 2 * HOUR, 5))
}
