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
    /// Denied asks, by the charge that binds.
    pub(super) refused_by: Vec<RefusedBy>,
    pub(super) failed: u64,
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
    pub(super) store_ops_per_second: f64,
    pub(super) store_writes_per_second: f64,
    pub(super) store_reads_per_second: f64,
    /// Entries that those operations are about: an ask with several charges is one operation on several.
    pub(super) store_entries_per_second: f64,
    pub(super) dynamodb_write_units_per_second: f64,
    pub(super) dynamodb_read_units_per_second: f64,
}

/// Denied asks whose binding limit is one of `policy`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct RefusedBy {
    pub(super) policy: String,
    pub(super) asks: u64,
    /// Of all asks.
    pub(super) percent: f64,
}

/// Returns `policy` with the provider's limits, without headroom and margins.
fn without_reserves(policy: &Policy) -> Result<Policy, Error> {
    let limits =
        policy.limits().map(|limit| Limit::new(limit.name(), limit.unit(), limit.rule().clone()));
    Ok(Policy::new(policy.name(), limits)?)
}

/// Computes the figures of `run`.
pub(super) fn measure(workload: &Workload, run: &Run) -> Result<Figures, Error> {
    let mut events = run.events.clone();
    events.sort_by_key(|event| (event.at, event.subject, event.asked_at));
    let asks = events.len() as u64;
    let count = |outcome| events.iter().filter(|event| event.outcome == outcome).count() as u64;
    let admitted = count(Outcome::Admitted);
    let ideal = ideal(workload, &events)?;
    let judged = judge(workload, &events)?;
    let mut took: Vec<u64> = events.iter().map(|event| event.took).collect();
    took.sort_unstable();
    let seconds = ratio(run.lasted.as_micros(), 1_000_000);
    let refused_by = workload.charges().enumerate().map(|(index, (policy, _))| {
        let refused = count(Outcome::Denied(index));
        RefusedBy {
            policy: policy.name().to_owned(),
            asks: refused,
            percent: percent(refused, asks),
        }
    });
    let per_second = |number: u64| number as f64 / seconds;
    Ok(Figures {
        asks,
        admitted,
        admitted_per_second: per_second(admitted),
        of_ideal_percent: percent(admitted, ideal),
        over_issued: judged.over,
        over_issued_percent: percent(judged.over, admitted),
        worst_window_percent: judged.worst_percent,
        refused_with_room: judged.refused_with_room,
        refused_with_room_percent: percent(judged.refused_with_room, asks),
        refused_by: refused_by.collect(),
        failed: count(Outcome::Failed),
        p50_us: quantile(&took, 50),
        p99_us: quantile(&took, 99),
        store_ops_per_second: per_second(run.writes + run.reads),
        store_writes_per_second: per_second(run.writes),
        store_reads_per_second: per_second(run.reads),
        store_entries_per_second: per_second(run.entries),
        dynamodb_write_units_per_second: per_second(run.write_units),
        dynamodb_read_units_per_second: per_second(run.read_units),
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
    charges: Vec<ExactCharge>,
    /// The costs of an ask in the units of the limits that are not rolling windows.
    rest_costs: Costs,
    clock: ManualClock,
    start: Timestamp,
    memory: Memory,
}

/// One charge of every ask, at the provider.
struct ExactCharge {
    subjects: u64,
    policy: Policy,
    costs: Costs,
    /// The cost of an ask, the limit and the length of every rolling window.
    windows: Vec<(u64, u64, u64)>,
    /// The times of admissions of each subject in each window, oldest first.
    admitted: HashMap<u64, Vec<VecDeque<u64>>>,
    /// The other limits.
    rest: Option<Policy>,
}

impl ExactCharge {
    fn new(policy: &Policy, subjects: u64, costs: Costs) -> Result<Self, Error> {
        let policy = without_reserves(policy)?;
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
        Ok(Self { subjects, policy, costs, windows, admitted: HashMap::new(), rest })
    }

    /// Returns the number of the subject that the ask of subject `number` is charged to.
    const fn owner(&self, number: u64) -> u64 {
        number % self.subjects
    }

    fn name(&self, number: u64) -> String {
        format!("s{}", self.owner(number))
    }

    /// Expires the windows of a subject at `at`, and returns whether all of them have room.
    fn windows_have_room(&mut self, at: u64, number: u64) -> bool {
        let (owner, count) = (self.owner(number), self.windows.len());
        let logs = self.admitted.entry(owner).or_insert_with(|| vec![VecDeque::new(); count]);
        self.windows.iter().zip(logs).all(|((cost, limit, window), log)| {
            while log.front().is_some_and(|first| first + window <= at) {
                log.pop_front();
            }
            (log.len() as u64 + 1).saturating_mul(*cost) <= *limit
        })
    }

    /// Returns whether the other limits have room.
    fn rest_has_room(&self, memory: &Memory, number: u64) -> Result<bool, Error> {
        let Some(policy) = &self.rest else { return Ok(true) };
        let standings = memory.try_standing(policy, &self.name(number))?;
        Ok(standings
            .iter()
            .all(|standing| self.costs.get(&standing.unit).unwrap_or(0) <= standing.remaining))
    }
}

impl Exact {
    fn new(workload: &Workload) -> Result<Self, Error> {
        let clock = ManualClock::new();
        let subjects: u64 = workload.charges().map(|(_, subjects)| subjects).sum();
        let keys = usize::try_from(subjects).unwrap_or(usize::MAX).saturating_mul(2);
        let memory = Memory::with(Arc::new(clock.clone()), keys.max(1_024));
        let parents: Vec<Policy> =
            workload.parents.iter().map(|parent| parent.policy.clone()).collect();
        let ask = workload.ask(&workload.policy, &parents, "", 0);
        let charged = workload.charges().zip(ask.charges());
        let charges = charged.map(|((policy, subjects), charge)| {
            ExactCharge::new(policy, subjects, charge.policy().costs(charge.amounts()))
        });
        let charges = charges.collect::<Result<Vec<_>, _>>()?;
        let costs_of_rest = |charge: &ExactCharge| {
            let units: Vec<&str> = charge.rest.iter().flat_map(Policy::units).collect();
            let cost = |unit: &str| (unit.to_owned(), charge.costs.get(unit).unwrap_or(0));
            units.into_iter().map(cost).collect::<Vec<_>>()
        };
        let rest_costs = charges.iter().flat_map(costs_of_rest).collect();
        let start = tollgate::Clock::now(&clock);
        Ok(Self { charges, rest_costs, clock, start, memory })
    }

    /// Charges the ask of subject `number` at `at` if it fits; otherwise returns the charges without room.
    fn admit(&mut self, at: u64, number: u64) -> Result<Vec<usize>, Error> {
        self.clock.set(self.start + Span::from_micros(at));
        let mut have_room = true;
        for charge in &mut self.charges {
            have_room &= charge.windows_have_room(at, number);
        }
        if !have_room || !self.rest_admits(number)? {
            return self.refused(at, number);
        }
        for charge in &mut self.charges {
            let owner = charge.owner(number);
            let logs = charge.admitted.entry(owner).or_default();
            logs.iter_mut().for_each(|log| log.push_back(at));
        }
        Ok(Vec::new())
    }

    /// Charges the limits that are not rolling windows, if all of them have room.
    fn rest_admits(&self, number: u64) -> Result<bool, Error> {
        let rest = |charge: &'_ ExactCharge| charge.name(number);
        let mut charges = self.charges.iter().filter(|charge| charge.rest.is_some());
        let Some((first, policy)) = charges.next().and_then(|one| Some((one, one.rest.as_ref()?)))
        else {
            return Ok(true);
        };
        let ask = charges.fold(Ask::new(policy, rest(first)), |ask, charge| match &charge.rest {
            Some(policy) => ask.and(policy, rest(charge)),
            None => ask,
        });
        let verdict = self.memory.try_acquire(&ask.with_costs(&self.rest_costs))?;
        Ok(matches!(verdict, Verdict::Admitted(_)))
    }

    /// Returns the indexes of the charges without room for the ask of subject `number` at `at`.
    fn refused(&mut self, at: u64, number: u64) -> Result<Vec<usize>, Error> {
        self.clock.set(self.start + Span::from_micros(at));
        let mut refused = Vec::new();
        for (index, charge) in self.charges.iter_mut().enumerate() {
            if !charge.windows_have_room(at, number)
                || !charge.rest_has_room(&self.memory, number)?
            {
                refused.push(index);
            }
        }
        Ok(refused)
    }
}

/// Counts the arrivals that the exact limiter would have admitted.
fn ideal(workload: &Workload, events: &[Event]) -> Result<u64, Error> {
    let mut exact = Exact::new(workload)?;
    let mut arrivals: Vec<(u64, u64)> =
        events.iter().map(|event| (event.asked_at, event.subject)).collect();
    arrivals.sort_unstable();
    let mut admitted = 0;
    for (at, subject) in arrivals {
        admitted += u64::from(exact.admit(at, subject)?.is_empty());
    }
    Ok(admitted)
}

struct Judged {
    over: u64,
    refused_with_room: u64,
    worst_percent: f64,
}

/// The times at which each subject of a charge was over its limits.
type Over = BTreeMap<u64, Vec<u64>>;

fn judge(workload: &Workload, events: &[Event]) -> Result<Judged, Error> {
    let mut exact = Exact::new(workload)?;
    let mut over = vec![Over::new(); exact.charges.len()];
    let (mut asks_over, mut refused_with_room) = (0, 0);
    for event in events {
        match event.outcome {
            Outcome::Admitted => {
                let refused = exact.admit(event.at, event.subject)?;
                asks_over += u64::from(!refused.is_empty());
                for index in refused {
                    let owner = exact.charges[index].owner(event.subject);
                    over[index].entry(owner).or_default().push(event.at);
                }
            }
            Outcome::Denied(_) => {
                let has_room = exact.refused(event.at, event.subject)?.is_empty();
                refused_with_room += u64::from(has_room);
            }
            Outcome::Failed => {}
        }
    }
    let worst = exact.charges.iter().zip(&over).flat_map(|(charge, over)| {
        charge.policy.limits().map(|limit| worst(&charge.costs, limit, over))
    });
    Ok(Judged { over: asks_over, refused_with_room, worst_percent: worst.fold(0.0, f64::max) })
}

/// Returns the largest excess of a subject over `limit` in one window, in percent of the limit.
fn worst(costs: &Costs, limit: &Limit, over: &Over) -> f64 {
    let window = window(limit.rule());
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
