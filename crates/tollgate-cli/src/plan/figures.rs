//! The figures of a run, in comparison with an exact limiter without a network.
//!
//! The exact limiter keeps every admission of a rolling window. A store coarsens large windows to a grid, and a plan shows
//! what that costs.
//!
//! Over-issued are admitted asks that such a limiter at the provider would have denied. Refused with room are denied asks
//! that it would have admitted.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use serde::Serialize;
use tollgate::clock::ManualClock;
use tollgate::core::Verdict;
use tollgate::policy::Rule;
use tollgate::{Ask, Costs, Error, Limit, Memory, Policy, Span, Timestamp};

use super::simulate::{Event, Outcome, Run};
use super::workload::Workload;

/// The figures of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figures {
    pub(super) asks: u64,
    pub(super) admitted: u64,
    pub(super) admitted_per_second: f64,
    /// Admitted asks, in percent of those that an exact limiter without a network would have admitted.
    pub(super) of_ideal_percent: f64,
    pub(super) over_issued: u64,
    pub(super) over_issued_percent: f64,
    /// The largest excess of a subject in one window, in percent of the limit.
    pub(super) worst_window_percent: f64,
    pub(super) refused_with_room: u64,
    pub(super) refused_with_room_percent: f64,
    pub(super) failed: u64,
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
    pub(super) store_ops_per_second: f64,
    pub(super) store_writes_per_second: f64,
    pub(super) store_reads_per_second: f64,
}

/// Returns `policy` with the provider's limits, without headroom and margins.
fn without_reserves(policy: &Policy) -> Result<Policy, Error> {
    let limits =
        policy.limits().map(|limit| Limit::new(limit.name(), limit.unit(), limit.rule().clone()));
    Ok(Policy::new(policy.name(), limits)?)
}

/// Computes the figures of `run`.
pub(super) fn measure(workload: &Workload, run: &Run) -> Result<Figures, Error> {
    let policy = without_reserves(&workload.policy)?;
    let mut events = run.events.clone();
    events.sort_by_key(|event| (event.at, event.subject, event.asked_at));
    let asks = events.len() as u64;
    let count = |outcome| events.iter().filter(|event| event.outcome == outcome).count() as u64;
    let admitted = count(Outcome::Admitted);
    let ideal = ideal(workload, &policy, &events)?;
    let judged = judge(workload, &policy, &events)?;
    let mut took: Vec<u64> = events.iter().map(|event| event.took).collect();
    took.sort_unstable();
    let seconds = ratio(run.lasted.as_micros(), 1_000_000);
    Ok(Figures {
        asks,
        admitted,
        admitted_per_second: admitted as f64 / seconds,
        of_ideal_percent: percent(admitted, ideal),
        over_issued: judged.over,
        over_issued_percent: percent(judged.over, admitted),
        worst_window_percent: judged.worst_percent,
        refused_with_room: judged.refused_with_room,
        refused_with_room_percent: percent(judged.refused_with_room, asks),
        failed: count(Outcome::Failed),
        p50_us: quantile(&took, 50),
        p99_us: quantile(&took, 99),
        store_ops_per_second: (run.writes + run.reads) as f64 / seconds,
        store_writes_per_second: run.writes as f64 / seconds,
        store_reads_per_second: run.reads as f64 / seconds,
    })
}

fn ratio(number: u64, of: u64) -> f64 {
    number as f64 / of as f64
}

/// Returns `part` in percent of `whole`, 0 of 0.
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { ratio(part, whole) * 100.0 }
}

pub(super) fn quantile(sorted: &[u64], percent: usize) -> u64 {
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or(0)
}

/// The exact limiter, on a manual clock.
struct Exact {
    /// The cost of an ask, the limit and the length of every rolling window.
    windows: Vec<(u64, u64, u64)>,
    /// The times of admissions of each subject in each window, oldest first.
    admitted: HashMap<u64, Vec<VecDeque<u64>>>,
    /// The other limits, and the costs of an ask under them.
    rest: Option<(Policy, Costs)>,
    clock: ManualClock,
    start: Timestamp,
    memory: Memory,
}

impl Exact {
    fn new(workload: &Workload, policy: &Policy) -> Result<Self, Error> {
        let clock = ManualClock::new();
        let keys = usize::try_from(workload.subjects).unwrap_or(usize::MAX).saturating_mul(2);
        let memory = Memory::with(Arc::new(clock.clone()), keys.max(1_024));
        let costs = Ask::new(policy, "any").with_costs(&workload.costs).costs();
        let (mut windows, mut rest) = (Vec::new(), Vec::new());
        for limit in policy.limits() {
            match limit.rule() {
                Rule::RollingWindow(rule) => {
                    let cost = costs.get(limit.unit()).unwrap_or(0);
                    windows.push((cost, rule.limit, rule.window.as_micros()));
                }
                _ => rest.push(limit.clone()),
            }
        }
        let rest = if rest.is_empty() { None } else { Some(Policy::new(policy.name(), rest)?) };
        let rest = rest.map(|rest| {
            let known = rest.units().map(|unit| (unit.to_owned(), costs.get(unit).unwrap_or(0)));
            let costs = known.collect();
            (rest, costs)
        });
        let start = tollgate::Clock::now(&clock);
        Ok(Self { windows, admitted: HashMap::new(), rest, clock, start, memory })
    }

    /// Expires the windows of `subject` at `at`, and returns whether all of them have room.
    fn windows_have_room(&mut self, at: u64, subject: u64) -> bool {
        let count = self.windows.len();
        let logs = self.admitted.entry(subject).or_insert_with(|| vec![VecDeque::new(); count]);
        self.windows.iter().zip(logs).all(|((cost, limit, window), log)| {
            while log.front().is_some_and(|first| first + window <= at) {
                log.pop_front();
            }
            (log.len() as u64 + 1).saturating_mul(*cost) <= *limit
        })
    }

    fn admits(&mut self, at: u64, subject: u64) -> Result<bool, Error> {
        self.clock.set(self.start + Span::from_micros(at));
        if !self.windows_have_room(at, subject) {
            return Ok(false);
        }
        if let Some((policy, costs)) = &self.rest {
            let name = format!("s{subject}");
            let ask = Ask::new(policy, name.as_str()).with_costs(costs);
            if !matches!(self.memory.try_acquire(&ask)?, Verdict::Admitted(_)) {
                return Ok(false);
            }
        }
        self.admitted.entry(subject).or_default().iter_mut().for_each(|log| log.push_back(at));
        Ok(true)
    }

    fn has_room(&mut self, at: u64, subject: u64) -> Result<bool, Error> {
        self.clock.set(self.start + Span::from_micros(at));
        if !self.windows_have_room(at, subject) {
            return Ok(false);
        }
        let Some((policy, costs)) = &self.rest else { return Ok(true) };
        let standings = self.memory.try_standing(policy, &format!("s{subject}"))?;
        Ok(standings
            .iter()
            .all(|standing| costs.get(&standing.unit).unwrap_or(0) <= standing.remaining))
    }
}

/// Counts the arrivals that the exact limiter would have admitted.
fn ideal(workload: &Workload, policy: &Policy, events: &[Event]) -> Result<u64, Error> {
    let mut exact = Exact::new(workload, policy)?;
    let mut arrivals: Vec<(u64, u64)> =
        events.iter().map(|event| (event.asked_at, event.subject)).collect();
    arrivals.sort_unstable();
    let mut admitted = 0;
    for (at, subject) in arrivals {
        admitted += u64::from(exact.admits(at, subject)?);
    }
    Ok(admitted)
}

struct Judged {
    over: u64,
    refused_with_room: u64,
    worst_percent: f64,
}

fn judge(workload: &Workload, policy: &Policy, events: &[Event]) -> Result<Judged, Error> {
    let mut exact = Exact::new(workload, policy)?;
    let mut over: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut refused_with_room = 0;
    for event in events {
        match event.outcome {
            Outcome::Admitted if !exact.admits(event.at, event.subject)? => {
                over.entry(event.subject).or_default().push(event.at);
            }
            Outcome::Denied if exact.has_room(event.at, event.subject)? => refused_with_room += 1,
            _ => {}
        }
    }
    let worst = policy.limits().map(|limit| worst(workload, policy, limit, &over));
    Ok(Judged {
        over: over.values().map(|times| times.len() as u64).sum(),
        refused_with_room,
        worst_percent: worst.fold(0.0, f64::max),
    })
}

/// Returns the largest excess of a subject over `limit` in one window, in percent of the limit.
fn worst(
    workload: &Workload,
    policy: &Policy,
    limit: &Limit,
    over: &BTreeMap<u64, Vec<u64>>,
) -> f64 {
    let window = window(limit.rule());
    let costs = Ask::new(policy, "any").with_costs(&workload.costs).costs();
    let mut most = 0;
    for times in over.values() {
        let mut first = 0;
        for (last, at) in times.iter().enumerate() {
            while times[first] + window <= *at {
                first += 1;
            }
            most = most.max(last + 1 - first);
        }
    }
    percent(most as u64 * costs.get(limit.unit()).unwrap_or(0), limit.rule().limit())
}

/// Returns the window of a rule in microseconds; for a bucket, the time that fills it.
pub(super) fn window(rule: &Rule) -> u64 {
    match rule {
        Rule::TokenBucket(rule) => {
            let micros = u128::from(rule.capacity) * u128::from(rule.period.as_micros());
            u64::try_from(micros / u128::from(rule.refill)).unwrap_or(u64::MAX)
        }
        Rule::RollingWindow(rule) => rule.window.as_micros(),
        Rule::Concurrency(rule) => rule.ttl.as_micros(),
        // The shortest calendar window is a minute, and a plan of longer ones is shorter than they are.
        _ => 60_000_000,
    }
}
