//! The slow, obvious reference model.
//!
//! It keeps every charge ever made as a plain record, never merges, and recomputes everything from scratch on each
//! question. A wait is found by *searching* for the first instant at which the ask fits, not by a formula. It shares
//! no code with the core's rules: only the public types for configuration and time. Where the core may be stricter
//! than exact (a log merged at its bound, numbers carried to another rate) the model stays exact.

mod acts;
mod bucket;
mod calendar;
mod meter;
mod rolling;
mod slots;

pub use calendar::{Zone, window_of};

use meter::Meter;
use tollgate_core::{Costs, Policy, REQUESTS, Standing, Timestamp};

use crate::script::{Action, DenialSummary, PermitSummary, Reply};

/// Everything that ever happened to one subject of one policy.
#[derive(Clone, Debug)]
pub struct Model {
    policy: Policy,
    /// When something last changed; the clock that decides never goes behind it.
    changed_at: u64,
    meters: Vec<Meter>,
    tickets: Vec<Ticket>,
    ids: Vec<Known>,
    closed: Vec<(String, u64)>,
}

/// One permit.
#[derive(Clone, Debug)]
struct Ticket {
    policy: Policy,
    at: u64,
    costs: Costs,
    charged: bool,
    settled: bool,
    expires_at: Option<u64>,
}

/// One id and its permit.
#[derive(Clone, Debug)]
struct Known {
    id: String,
    costs: Costs,
    ticket: usize,
    until: u64,
    given: PermitSummary,
}

impl Model {
    /// A subject without history.
    pub fn new(policy: &Policy) -> Self {
        Self {
            policy: policy.clone(),
            changed_at: 0,
            meters: meters_of(policy),
            tickets: Vec::new(),
            ids: Vec::new(),
            closed: Vec::new(),
        }
    }

    /// Replaces the policy; usage stays.
    pub fn change(&mut self, policy: &Policy) {
        let old = std::mem::take(&mut self.meters);
        self.meters = meters_of(policy);
        for meter in &mut self.meters {
            if let Some(before) = old.iter().find(|before| before.name == meter.name) {
                meter.take_over(before, self.changed_at);
            }
        }
        self.policy = policy.clone();
    }

    /// Does one thing at `now`.
    pub fn apply(&mut self, now: Timestamp, action: &Action) -> Reply {
        let asked_at = now;
        let now = self.clock(now);
        let reply = match action {
            Action::Acquire { costs, id } => {
                // A permit that charged nothing carries the caller's time.
                self.acquire(now, costs, id.as_deref()).map(|reply| match reply {
                    Reply::Shadowed(given, refused) => {
                        Reply::Shadowed(PermitSummary { at: asked_at, ..given }, refused)
                    }
                    other => other,
                })
            }
            Action::Charge { costs, id } | Action::Post { costs, id } => {
                self.charge(now, costs, id.as_deref())
            }
            Action::Settle { permit, actual } => self.settle(now, *permit, Some(actual)),
            Action::Release { permit } => self.settle(now, *permit, None),
            Action::Renew { permit } => self.renew(now, *permit),
            Action::Close { limit, until } => self.close(now, limit, until.as_micros()),
            Action::Standing => Ok(Reply::Standings),
            Action::Reset => Ok(Reply::Done(self.reset(now))),
        };
        reply.unwrap_or_else(Reply::Failed)
    }

    /// The limit that binds `costs` at `now`, or nothing if they would be admitted.
    pub fn admit(&self, costs: &Costs, now: Timestamp) -> Option<DenialSummary> {
        let mut refusals = self.refusals(costs, now).into_iter();
        let mut binding = refusals.next()?;
        for other in refusals {
            // Nothing is longer than never.
            if binding.until.is_some() && (other.until.is_none() || binding.until < other.until) {
                binding = other;
            }
        }
        Some(binding)
    }

    /// Every limit that refuses `costs` at `now`, in the order of the policy.
    pub fn refusals(&self, costs: &Costs, now: Timestamp) -> Vec<DenialSummary> {
        let now = self.clock(now);
        let refusal = |meter: &Meter| {
            let cost = cost_of(costs, &meter.unit);
            if meter.most < cost {
                return Some(DenialSummary { limit: meter.name.clone(), until: None });
            }
            let fits =
                |at| self.is_open(meter, at) && meter.used_exact(at).plus_fits(cost, meter.most);
            let ready = match cost {
                0 => now,
                _ => meter.first(now, self.closing_times(meter), &fits),
            };
            let until = Some(Timestamp::from_micros(ready));
            (now < ready).then(|| DenialSummary { limit: meter.name.clone(), until })
        };
        self.meters.iter().filter_map(refusal).collect()
    }

    /// Returns whether a limit counts `unit`.
    pub fn counts(&self, unit: &str) -> bool {
        self.meters.iter().any(|meter| meter.unit == unit)
    }

    /// Returns the costs that are not zero, defaults included.
    pub fn counted_costs(&self, costs: &Costs) -> Vec<(String, u64)> {
        let all = full_costs(&self.policy, costs);
        let counted = all.iter().filter(|(_, amount)| *amount != 0);
        counted.map(|(unit, amount)| (unit.to_owned(), amount)).collect()
    }

    /// Returns the time that decides: never before the last change.
    pub fn now(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_micros(self.clock(now))
    }

    /// Returns whether the permit charged anything.
    pub fn is_charged(&self, permit: usize) -> bool {
        self.tickets[permit].charged
    }

    /// Returns whether the permit still holds its slots, if it took any.
    pub fn keeps(&self, now: Timestamp, permit: usize) -> bool {
        self.still_holds_slots(self.clock(now), permit)
    }

    /// Returns the standings at `now`.
    pub fn standings(&self, now: Timestamp) -> Vec<Standing> {
        let now = self.clock(now);
        self.meters.iter().map(|meter| self.standing(meter, now)).collect()
    }

    fn standing(&self, meter: &Meter, now: u64) -> Standing {
        let remaining = |at| {
            if self.is_open(meter, at) { meter.most.saturating_sub(meter.used(at)) } else { 0 }
        };
        let (used, left) = (meter.used(now), remaining(now));
        let closing = self.closing_times(meter);
        let grows = |at| left < remaining(at);
        let empty = |at| meter.used(at) == 0;
        let can_grow = left < meter.most;
        Standing {
            name: meter.name.as_str().into(),
            unit: meter.unit.as_str().into(),
            limit: meter.configured,
            used,
            remaining: left,
            reset_at: can_grow
                .then(|| Timestamp::from_micros(meter.first(now, closing.clone(), &grows))),
            full_at: (0 < used).then(|| Timestamp::from_micros(meter.first(now, closing, &empty))),
            refilled_at: meter.refilled_at(now).map(Timestamp::from_micros),
        }
    }

    fn clock(&self, now: Timestamp) -> u64 {
        now.as_micros().max(self.changed_at)
    }

    fn is_open(&self, meter: &Meter, at: u64) -> bool {
        self.closed.iter().all(|(limit, until)| *limit != meter.name || *until <= at)
    }

    fn closing_times(&self, meter: &Meter) -> Vec<u64> {
        let of_meter = self.closed.iter().filter(|(limit, _)| *limit == meter.name);
        of_meter.map(|(_, until)| *until).collect()
    }
}

fn meters_of(policy: &Policy) -> Vec<Meter> {
    policy.limits().map(|limit| Meter::new(limit, policy.block_ttl())).collect()
}

fn cost_of(costs: &Costs, unit: &str) -> u64 {
    costs.get(unit).unwrap_or(u64::from(unit == REQUESTS))
}

fn full_costs(policy: &Policy, costs: &Costs) -> Costs {
    policy.units().map(|unit| (unit, cost_of(costs, unit))).collect()
}
