//! The operations on a subject of the model.

use std::collections::BTreeMap;

use tollgate_core::bounds::{ID_HORIZON, NUMBER_MAX, PERMIT_TTL};
use tollgate_core::{Costs, ErrorKind, Limit, Span, Timestamp};

use super::meter::Meter;
use super::{Known, Model, Ticket, cost_of, full_costs};
use crate::script::{PermitSummary, Reply};

/// Whether a charge holds slots.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Slots,
    Nothing,
}

impl Model {
    pub(super) fn acquire(
        &mut self,
        now: u64,
        costs: &Costs,
        id: Option<&str>,
    ) -> Result<Reply, ErrorKind> {
        self.check(costs)?;
        let verdict = self.admit(costs, Timestamp::from_micros(now));
        let never = verdict.as_ref().is_some_and(|refused| refused.until.is_none());
        if !never
            && let Some(given) = self.recognise(now, costs, id)?
            && self.still_holds_slots(now, given.permit)
        {
            return Ok(Reply::Repeated(given));
        }
        if let Some(refused) = verdict {
            if !self.policy.is_shadow() {
                return Ok(Reply::Denied(refused));
            }
            let given = PermitSummary {
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
            return Ok(Reply::Shadowed(given, refused));
        }
        Ok(Reply::Admitted(self.spend(now, costs, id, Holds::Slots)))
    }

    pub(super) fn charge(
        &mut self,
        now: u64,
        costs: &Costs,
        id: Option<&str>,
    ) -> Result<Reply, ErrorKind> {
        self.check(costs)?;
        if let Some(given) = self.recognise(now, costs, id)? {
            return Ok(Reply::Repeated(given));
        }
        Ok(Reply::Charged(self.spend(now, costs, id, Holds::Nothing)))
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
    ) -> Result<Option<PermitSummary>, ErrorKind> {
        let alive = |known: &&Known| Some(known.id.as_str()) == id && now < known.until;
        let Some(known) = self.ids.iter().find(alive) else { return Ok(None) };
        let named = |costs: &Costs| -> BTreeMap<String, u64> {
            let counted = costs.iter().filter(|(_, amount)| *amount != 0);
            counted.map(|(unit, amount)| (unit.to_owned(), amount)).collect()
        };
        if named(&known.costs) == named(&full_costs(&self.policy, costs)) {
            Ok(Some(PermitSummary { permit: known.ticket, ..known.given.clone() }))
        } else {
            Err(ErrorKind::Conflict)
        }
    }

    /// Whether the permit still holds its slots, if it took any.
    pub(super) fn still_holds_slots(&self, now: u64, ticket: usize) -> bool {
        let costs = &self.tickets[ticket].costs;
        let takes = |meter: &&Meter| meter.is_slots() && 0 < cost_of(costs, &meter.unit);
        let holds = |meter: &Meter| meter.expiry_of(ticket).is_some_and(|until| now < until);
        self.meters.iter().find(takes).is_none() || self.meters.iter().any(holds)
    }

    fn spend(&mut self, now: u64, costs: &Costs, id: Option<&str>, holds: Holds) -> PermitSummary {
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
        let given = PermitSummary {
            permit: ticket,
            at: Timestamp::from_micros(now),
            use_by,
            expires_at: expires_at.map(Timestamp::from_micros),
        };
        let costs = full_costs(&self.policy, costs);
        if let Some(id) = id {
            let (id, costs, given) = (id.to_owned(), costs.clone(), given.clone());
            let until = later(now, ID_HORIZON);
            self.ids.retain(|known| known.id != id);
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

    pub(super) fn settle(
        &mut self,
        now: u64,
        permit: usize,
        actual: Option<&Costs>,
    ) -> Result<Reply, ErrorKind> {
        let Some(ticket) = self.tickets.get(permit).cloned() else { return Ok(Reply::Standings) };
        if !ticket.charged {
            return Ok(Reply::Settled(false));
        }
        for (unit, amount) in actual.into_iter().flat_map(Costs::iter) {
            let known = ticket.policy.units().any(|known| known == unit);
            if !known || NUMBER_MAX < amount {
                return Err(ErrorKind::Invalid);
            }
        }
        if later(ticket.at, PERMIT_TTL) <= now {
            return self.hand_back_slots(now, permit);
        }
        if ticket.settled {
            return Ok(Reply::Settled(false));
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
                meter.give_back(permit, now, estimate - wanted);
            } else if estimate < wanted {
                meter.charge_more(now, wanted - estimate);
            }
        }
        self.tickets[permit].settled = true;
        if actual.is_none() {
            self.ids.retain(|known| known.ticket != permit);
        }
        self.changed_at = now;
        Ok(Reply::Settled(true))
    }

    /// Slots that were renewed outlive the rest of their permit.
    fn hand_back_slots(&mut self, now: u64, permit: usize) -> Result<Reply, ErrorKind> {
        let holding = self.meters.iter_mut().filter(|meter| {
            meter.is_slots() && meter.expiry_of(permit).is_some_and(|until| now < until)
        });
        let freed = holding.map(|meter| meter.free(permit, now)).count();
        if freed == 0 {
            return Err(ErrorKind::Expired);
        }
        self.ids.retain(|known| known.ticket != permit);
        self.changed_at = now;
        Ok(Reply::Settled(true))
    }

    /// Clears everything; permits count as settled. Returns whether there was anything to clear.
    pub(super) fn reset(&mut self, now: u64) -> bool {
        let used = self.meters.iter().any(|meter| meter.used(now) != 0);
        let closed = self.closed.iter().any(|(_, until)| now < *until);
        if !used && !closed {
            return false;
        }
        let mut tickets = std::mem::take(&mut self.tickets);
        tickets.iter_mut().for_each(|ticket| ticket.settled = true);
        *self = Self { tickets, changed_at: now, ..Self::new(&self.policy) };
        true
    }

    pub(super) fn renew(&mut self, now: u64, permit: usize) -> Result<Reply, ErrorKind> {
        let Some(ticket) = self.tickets.get(permit).cloned() else { return Ok(Reply::Standings) };
        if ticket.expires_at.is_none() {
            return Ok(Reply::Renewed(None));
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
        Ok(Reply::Renewed(Some(Timestamp::from_micros(expires_at))))
    }

    pub(super) fn close(&mut self, now: u64, limit: &str, until: u64) -> Result<Reply, ErrorKind> {
        if !self.meters.iter().any(|meter| meter.name == limit) {
            return Err(ErrorKind::Invalid);
        }
        let already = self.closed.iter().any(|(name, closed)| name == limit && until <= *closed);
        if until <= now || already {
            return Ok(Reply::Done(false));
        }
        self.closed.push((limit.to_owned(), until));
        self.changed_at = now;
        Ok(Reply::Done(true))
    }
}

fn later(at: u64, span: Span) -> u64 {
    (Timestamp::from_micros(at) + span).as_micros()
}
