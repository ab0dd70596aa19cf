//! The slow, obvious reference model.
//!
//! It keeps every charge ever made as a plain record, never merges, and recomputes everything from scratch on each
//! question. A wait is found by *searching* for the first instant at which the ask fits, not by a formula. It shares
//! no code with the core's rules: only the public types for configuration and time. Where the core may be stricter
//! than exact (a log merged at its bound, numbers carried to another rate) the model stays exact.

mod bucket;
mod calendar;
mod meter;
mod rolling;
mod slots;

pub use calendar::{Zone, window_of};

use meter::Meter;
use tollgate_core::bounds::{ID_HORIZON, IDS_MAX, NUMBER_MAX, PERMIT_TTL};
use tollgate_core::{Costs, ErrorKind, Limit, Policy, REQUESTS, Span, Standing, Timestamp};

use crate::script::{Answer, Did, Given, Refused};

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

/// One id and what it was given.
#[derive(Clone, Debug)]
struct Known {
    id: String,
    costs: Costs,
    ticket: usize,
    until: u64,
    given: Given,
}

impl Model {
    /// A subject to whom nothing has happened.
    #[must_use]
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

    /// From now on decides by the numbers of `policy`. What was used stays used.
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
    pub fn apply(&mut self, now: Timestamp, did: &Did) -> Answer {
        let asked_at = now;
        let now = self.clock(now);
        let answer = match did {
            Did::Acquire { costs, id } => {
                // A permit that charged nothing carries the caller's time.
                self.acquire(now, costs, id.as_deref()).map(|answer| match answer {
                    Answer::Shadowed(given, refused) => {
                        Answer::Shadowed(Given { at: asked_at, ..given }, refused)
                    }
                    other => other,
                })
            }
            Did::Charge { costs, id } => self.charge(now, costs, id.as_deref()),
            Did::Settle { permit, actual } => self.settle(now, *permit, Some(actual)),
            Did::Release { permit } => self.settle(now, *permit, None),
            Did::Renew { permit } => self.renew(now, *permit),
            Did::Close { limit, until } => self.close(now, limit, until.as_micros()),
            Did::Look => Ok(Answer::Seen),
            Did::Reset => {
                let tickets = std::mem::take(&mut self.tickets);
                *self = Self { tickets, ..Self::new(&self.policy) };
                Ok(Answer::Done(true))
            }
        };
        answer.unwrap_or_else(Answer::Failed)
    }

    /// Whether `costs` would be admitted at `now`: nothing if so, or the limit that binds.
    #[must_use]
    pub fn admit(&self, costs: &Costs, now: Timestamp) -> Option<Refused> {
        let now = self.clock(now);
        let too_large = self.meters.iter().find(|meter| meter.most < cost_of(costs, &meter.unit));
        if let Some(meter) = too_large {
            return Some(Refused { limit: meter.name.clone(), until: None });
        }
        let mut binding: Option<(u64, &Meter)> = None;
        for meter in &self.meters {
            let cost = cost_of(costs, &meter.unit);
            if cost == 0 {
                continue;
            }
            let fits =
                |at| self.is_open(meter, at) && meter.used_exact(at).plus_fits(cost, meter.most);
            let ready = meter.first(now, self.closing_times(meter), &fits);
            if now < ready && binding.is_none_or(|(latest, _)| latest < ready) {
                binding = Some((ready, meter));
            }
        }
        binding.map(|(until, meter)| Refused {
            limit: meter.name.clone(),
            until: Some(Timestamp::from_micros(until)),
        })
    }

    /// Where the subject stands at `now`.
    #[must_use]
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

    fn acquire(&mut self, now: u64, costs: &Costs, id: Option<&str>) -> Result<Answer, ErrorKind> {
        self.check(costs)?;
        let verdict = self.admit(costs, Timestamp::from_micros(now));
        let never = verdict.as_ref().is_some_and(|refused| refused.until.is_none());
        if !never && let Some(given) = self.recognise(now, costs, id)? {
            return Ok(Answer::Repeated(given));
        }
        if let Some(refused) = verdict {
            if !self.policy.is_shadow() {
                return Ok(Answer::Denied(refused));
            }
            let given = Given {
                permit: self.tickets.len(),
                at: Timestamp::from_micros(now),
                use_by: None,
                expires_at: None,
            };
            self.tickets.push(Ticket {
                policy: self.policy.clone(),
                at: now,
                costs: Costs::new(),
                charged: false,
                settled: false,
                expires_at: None,
            });
            return Ok(Answer::Shadowed(given, refused));
        }
        self.room_for_id(now, id)?;
        Ok(Answer::Admitted(self.spend(now, costs, id, Holds::Slots)))
    }

    fn charge(&mut self, now: u64, costs: &Costs, id: Option<&str>) -> Result<Answer, ErrorKind> {
        self.check(costs)?;
        if let Some(given) = self.recognise(now, costs, id)? {
            return Ok(Answer::Repeated(given));
        }
        self.room_for_id(now, id)?;
        Ok(Answer::Charged(self.spend(now, costs, id, Holds::Nothing)))
    }

    fn check(&self, costs: &Costs) -> Result<(), ErrorKind> {
        let known = |unit: &str| self.meters.iter().any(|meter| meter.unit == unit);
        let fine = costs.iter().all(|(unit, amount)| known(unit) && amount <= NUMBER_MAX);
        if fine { Ok(()) } else { Err(ErrorKind::Invalid) }
    }

    fn recognise(
        &self,
        now: u64,
        costs: &Costs,
        id: Option<&str>,
    ) -> Result<Option<Given>, ErrorKind> {
        let alive = |known: &&Known| Some(known.id.as_str()) == id && now < known.until;
        let Some(known) = self.ids.iter().find(alive) else { return Ok(None) };
        let same =
            |meter: &Meter| cost_of(&known.costs, &meter.unit) == cost_of(costs, &meter.unit);
        if self.meters.iter().all(same) {
            Ok(Some(Given { permit: known.ticket, ..known.given.clone() }))
        } else {
            Err(ErrorKind::Conflict)
        }
    }

    fn room_for_id(&self, now: u64, id: Option<&str>) -> Result<(), ErrorKind> {
        let alive = self.ids.iter().filter(|known| now < known.until).count();
        if id.is_some() && IDS_MAX <= alive { Err(ErrorKind::Contended) } else { Ok(()) }
    }

    fn spend(&mut self, now: u64, costs: &Costs, id: Option<&str>, holds: Holds) -> Given {
        let ticket = self.tickets.len();
        let mut expiries = Vec::new();
        for meter in &mut self.meters {
            let cost = cost_of(costs, &meter.unit);
            if cost == 0 || (meter.is_slots() && holds == Holds::Nothing) {
                continue;
            }
            meter.charge(ticket, now, cost);
            expiries.extend(meter.expiry_of(ticket));
        }
        let margins =
            self.policy.limits().map(Limit::margin_setting).filter(|span| !span.is_zero());
        let use_by = margins.min().map(|margin| Timestamp::from_micros(now) + margin);
        let expires_at = expiries.into_iter().min();
        let given = Given {
            permit: ticket,
            at: Timestamp::from_micros(now),
            use_by,
            expires_at: expires_at.map(Timestamp::from_micros),
        };
        let costs = full_costs(&self.policy, costs);
        if let Some(id) = id {
            let (id, costs, given) = (id.to_owned(), costs.clone(), given.clone());
            let until = later(now, ID_HORIZON);
            self.ids.push(Known { id, costs, ticket, until, given });
        }
        self.tickets.push(Ticket {
            policy: self.policy.clone(),
            at: now,
            costs,
            charged: true,
            settled: false,
            expires_at,
        });
        self.changed_at = now;
        given
    }

    fn settle(
        &mut self,
        now: u64,
        permit: usize,
        actual: Option<&Costs>,
    ) -> Result<Answer, ErrorKind> {
        let Some(ticket) = self.tickets.get(permit).cloned() else { return Ok(Answer::Seen) };
        if !ticket.charged {
            return Ok(Answer::Settled(false));
        }
        for (unit, amount) in actual.into_iter().flat_map(Costs::iter) {
            let known = ticket.policy.units().any(|known| known == unit);
            if !known || NUMBER_MAX < amount {
                return Err(ErrorKind::Invalid);
            }
        }
        if later(ticket.at, PERMIT_TTL) <= now {
            return Err(ErrorKind::Expired);
        }
        if ticket.settled {
            return Ok(Answer::Settled(false));
        }
        for meter in &mut self.meters {
            let estimate = ticket.costs.get(&meter.unit).unwrap_or(0);
            let wanted = match actual {
                Some(actual) => actual.get(&meter.unit).unwrap_or(estimate),
                None => 0,
            };
            if meter.is_slots() {
                meter.free(permit, now);
            } else if wanted < estimate {
                meter.give_back(permit, ticket.at, now, estimate - wanted);
            } else if estimate < wanted {
                meter.charge_more(now, wanted - estimate);
            }
        }
        self.tickets[permit].settled = true;
        self.changed_at = now;
        Ok(Answer::Settled(true))
    }

    fn renew(&mut self, now: u64, permit: usize) -> Result<Answer, ErrorKind> {
        let Some(ticket) = self.tickets.get(permit).cloned() else { return Ok(Answer::Seen) };
        if ticket.expires_at.is_none() {
            return Ok(Answer::Renewed(None));
        }
        let holding = self.meters.iter_mut().filter(|meter| {
            meter.is_slots() && ticket.costs.get(&meter.unit).is_some_and(|cost| 0 < cost)
        });
        let mut expiries = Vec::new();
        let mut renewed: Vec<Meter> = Vec::new();
        for meter in holding {
            let mut trial = meter.clone();
            expiries.push(trial.renew(permit, now).ok_or(ErrorKind::Expired)?);
            renewed.push(trial);
        }
        let Some(expires_at) = expiries.into_iter().min() else { return Err(ErrorKind::Expired) };
        for trial in renewed {
            if let Some(meter) = self.meters.iter_mut().find(|meter| meter.name == trial.name) {
                *meter = trial;
            }
        }
        self.tickets[permit].expires_at = Some(expires_at);
        self.changed_at = now;
        Ok(Answer::Renewed(Some(Timestamp::from_micros(expires_at))))
    }

    fn close(&mut self, now: u64, limit: &str, until: u64) -> Result<Answer, ErrorKind> {
        if !self.meters.iter().any(|meter| meter.name == limit) {
            return Err(ErrorKind::Invalid);
        }
        let already = self.closed.iter().any(|(name, closed)| name == limit && until <= *closed);
        if until <= now || already {
            return Ok(Answer::Done(false));
        }
        self.closed.push((limit.to_owned(), until));
        self.changed_at = now;
        Ok(Answer::Done(true))
    }
}

/// Whether a charge holds slots.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Slots,
    Nothing,
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

fn later(at: u64, span: Span) -> u64 {
    (Timestamp::from_micros(at) + span).as_micros()
}
