//! The forecast of a job: the decisions of the policy, made for every request in advance.
//!
//! No formula for "requests per minute" fits every rule. The forecast asks the core, as the job will, and advances time to the moment
//! of each denial. So windows, headroom, margins and midnights are exact.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use jiff::tz::TimeZone;
use tollgate_core::bounds::NUMBER_MAX;
use tollgate_core::{
    Ask, CalendarWindow, Entry, Known, Limit, Period, Policy, REQUESTS, RollingWindow, Rule, Span,
    Timestamp, TokenBucket, Verdict, Wait, acquire,
};

use crate::error::Error;
use crate::prompt::Estimate;

/// The unit that counts the tokens of a request.
pub(crate) const TOKENS: &str = "tokens";

/// The forecast of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Forecast {
    Feasible(Schedule),
    TooLarge(TooLarge),
}

impl Forecast {
    pub(super) fn schedule(self) -> Option<Schedule> {
        match self {
            Self::Feasible(schedule) => Some(schedule),
            Self::TooLarge(_) => None,
        }
    }
}

/// The course of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) ends_at: Timestamp,
    /// The waits for each limit, in the order of the policy, and for a free worker.
    pub(super) waited: Vec<Span>,
    pub(super) waited_for_worker: Span,
    /// The number of days with requests, if there is a daily limit.
    pub(super) days: Option<u64>,
}

/// A request that is larger than a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLarge {
    /// The index of the limit in the policy.
    pub(super) limit: usize,
    pub(super) tokens: u64,
}

/// The workers, and the duration of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct WorkerPool {
    pub(super) workers: usize,
    pub(super) latency: Span,
}

/// Runs all `requests` through `policy` from `now`.
pub(super) fn forecast(
    requests: &[Estimate],
    policy: &Policy,
    pool: WorkerPool,
    now: Timestamp,
) -> Result<Forecast, Error> {
    let invalid = |error: tollgate_core::Error| Error::invalid(error.to_string());
    let counts_tokens = policy.units().any(|unit| unit == TOKENS);
    let zone = day_zone(policy);
    let mut entry = Entry::fresh(policy, now);
    let mut free: BinaryHeap<Reverse<Timestamp>> =
        (0..pool.workers).map(|_| Reverse(now)).collect();
    let mut schedule = Schedule {
        ends_at: now,
        waited: vec![Span::ZERO; policy.limits().len()],
        waited_for_worker: Span::ZERO,
        days: None,
    };
    let mut days = BTreeSet::new();
    let mut at = now;
    for request in requests {
        let Reverse(worker) = free.pop().unwrap_or(Reverse(now));
        schedule.waited_for_worker = schedule.waited_for_worker.plus(worker.since(at));
        at = at.max(worker);
        let mut ask = Ask::new(policy, "plan");
        if counts_tokens {
            ask = ask.cost(TOKENS, request.input);
        }
        loop {
            let refusal = match acquire(&mut entry, at, &ask, Known::New).map_err(invalid)? {
                Verdict::Denied(refusal) => refusal,
                Verdict::Admitted(_) | Verdict::Repeated(_) => break,
            };
            let Wait::Until(until) = refusal.wait else {
                let too_large = TooLarge { limit: refusal.limit, tokens: request.input };
                return Ok(Forecast::TooLarge(too_large));
            };
            let waited = &mut schedule.waited[refusal.limit];
            *waited = waited.plus(until.since(at));
            at = until;
        }
        days.extend(zone.as_ref().and_then(|zone| date(zone, at)));
        let end = at + pool.latency;
        schedule.ends_at = schedule.ends_at.max(end);
        free.push(Reverse(end));
    }
    schedule.days = zone.map(|_| days.len() as u64);
    Ok(Forecast::Feasible(schedule))
}

fn date(zone: &TimeZone, at: Timestamp) -> Option<jiff::civil::Date> {
    let instant = jiff::Timestamp::from_microsecond(i64::try_from(at.as_micros()).ok()?).ok()?;
    Some(instant.to_zoned(zone.clone()).date())
}

/// Returns the time zone of the first daily limit.
fn day_zone(policy: &Policy) -> Option<TimeZone> {
    policy.limits().find_map(|limit| match limit.rule() {
        Rule::CalendarWindow(CalendarWindow { period: Period::Day, zone, .. }) => {
            jiff::tz::TimeZoneDatabase::bundled().get(zone).ok()
        }
        _ => None,
    })
}

/// Returns `policy` without its concurrency limits, which are equivalent to fewer workers, and the number of workers.
pub(super) fn without_slots(policy: &Policy, workers: usize) -> Result<(Policy, usize), Error> {
    let slots = policy.limits().zip(policy.effective());
    let slots = slots.filter(|(limit, _)| matches!(limit.rule(), Rule::Concurrency(_)));
    let fewest = slots.map(|(_, most)| usize::try_from(most).unwrap_or(workers)).min();
    let Some(fewest) = fewest else { return Ok((policy.clone(), workers)) };
    let others = policy.limits().filter(|limit| !matches!(limit.rule(), Rule::Concurrency(_)));
    let mut others: Vec<Limit> = others.cloned().collect();
    if others.is_empty() {
        let ample = RollingWindow::new(NUMBER_MAX, Span::from_secs(1)).resolution(1);
        others.push(Limit::new("none", REQUESTS, ample));
    }
    let policy =
        Policy::builder(policy.name()).limits(others).block_ttl(policy.block_ttl()).build();
    Ok((policy.map_err(|error| Error::invalid(error.to_string()))?, workers.min(fewest)))
}

/// Returns `policy` with other numbers for its limits.
pub(super) fn with_limits(policy: &Policy, numbers: &[u64]) -> Result<Policy, Error> {
    let limits = policy.limits().zip(numbers).map(|(limit, number)| with_number(limit, *number));
    Policy::builder(policy.name())
        .limits(limits)
        .block_ttl(policy.block_ttl())
        .build()
        .map_err(|error| Error::invalid(error.to_string()))
}

fn with_number(limit: &Limit, number: u64) -> Limit {
    let rule = match limit.rule().clone() {
        Rule::RollingWindow(rule) => Rule::RollingWindow(RollingWindow { limit: number, ..rule }),
        Rule::CalendarWindow(rule) => {
            Rule::CalendarWindow(CalendarWindow { limit: number, ..rule })
        }
        Rule::TokenBucket(rule) => {
            // The rate follows the capacity.
            let refill =
                u128::from(rule.refill) * u128::from(number) / u128::from(rule.capacity.max(1));
            let refill = u64::try_from(refill).unwrap_or(number).clamp(1, number);
            Rule::TokenBucket(TokenBucket { capacity: number, refill, ..rule })
        }
        other => other,
    };
    Limit::new(limit.name(), limit.unit(), rule)
        .headroom(limit.headroom_setting())
        .margin(limit.margin_setting())
}
