//! The reference model: a [`Model`] per party, and a decision by trial on copies of them.

use tollgate_core::bounds::{CHARGES_MAX, ID_HORIZON};
use tollgate_core::{Costs, ErrorKind, Policy, Standing, Timestamp};

use super::{JointAction, JointAsk, JointReply, JointSubject, PartSummary, Party, Refused};
use crate::model::Model;
use crate::script::{Action, DenialSummary, PermitSummary, Reply};

/// Everything that ever happened to some parties.
#[derive(Clone, Debug)]
pub struct JointModel {
    parties: Vec<Model>,
    permits: Vec<Given>,
    ids: Vec<Known>,
}

/// A permit: the party and the ticket of each charge.
#[derive(Clone, Debug)]
struct Given {
    ask: JointAsk,
    tickets: Vec<(usize, usize)>,
}

#[derive(Clone, Debug)]
struct Known {
    id: String,
    permit: usize,
    until: Timestamp,
}

impl JointModel {
    /// Parties without history.
    pub fn new(parties: &[Party]) -> Self {
        let parties = parties.iter().map(|party| Model::new(&party.policy)).collect();
        Self { parties, permits: Vec::new(), ids: Vec::new() }
    }

    /// The costs of the charge at `index`, as far as its policy has their units.
    fn costs(&self, ask: &JointAsk, index: usize) -> Costs {
        let party = &self.parties[ask.parties[index]];
        let costs = ask.costs_of(index).iter();
        costs.filter(|(unit, _)| ask.has_own_costs(index) || party.counts(unit)).collect()
    }

    fn check(&self, ask: &JointAsk) -> Result<(), ErrorKind> {
        let sharing = || (0..ask.parties.len()).filter(|index| !ask.has_own_costs(*index));
        let counted =
            |unit: &str| sharing().any(|index| self.parties[ask.parties[index]].counts(unit));
        let mut parties = ask.parties.clone();
        parties.sort_unstable();
        parties.dedup();
        let is_fine = ask.costs.iter().all(|(unit, _)| counted(unit))
            && parties.len() == ask.parties.len()
            && parties.len() <= CHARGES_MAX;
        if is_fine { Ok(()) } else { Err(ErrorKind::Invalid) }
    }

    fn ask(
        &mut self,
        now: Timestamp,
        ask: &JointAsk,
        is_forced: bool,
    ) -> Result<JointReply, ErrorKind> {
        self.check(ask)?;
        let mut trial = self.parties.clone();
        let mut replies = Vec::new();
        for (index, party) in ask.parties.iter().enumerate() {
            let (costs, id) = (self.costs(ask, index), None);
            let action = match is_forced {
                true => Action::Charge { costs, id },
                false => Action::Acquire { costs, id },
            };
            replies.push(trial[*party].apply(now, &action));
        }
        if let Some(Reply::Failed(kind)) =
            replies.iter().find(|reply| matches!(reply, Reply::Failed(_)))
        {
            return Err(*kind);
        }
        let never = |reply: &Reply| matches!(reply, Reply::Denied(by) if by.until.is_none());
        if !replies.iter().any(never)
            && let Some(permit) = self.recognise(now, ask)?
            && (is_forced || self.holds_slots(now, permit))
        {
            return Ok(JointReply::Repeated(permit));
        }
        if replies.iter().any(|reply| matches!(reply, Reply::Denied(_))) {
            return Ok(self.denied(now, ask, &replies));
        }
        self.parties = trial;
        Ok(self.permitted(ask, &replies))
    }

    /// The permit that the id of `ask` was given for, unless the first party was reset since.
    fn recognise(&self, now: Timestamp, ask: &JointAsk) -> Result<Option<usize>, ErrorKind> {
        let of_ask = |known: &&Known| {
            let first = self.permits[known.permit].ask.parties.first();
            Some(&known.id) == ask.id.as_ref() && first == ask.parties.first()
        };
        let clock = self.parties[ask.parties[0]].now(now);
        let Some(known) = self.ids.iter().find(of_ask).filter(|known| clock < known.until) else {
            return Ok(None);
        };
        let digest = |ask: &JointAsk| -> Vec<(usize, Vec<(String, u64)>)> {
            let charges = ask.parties.iter().enumerate();
            charges
                .map(|(index, party)| {
                    let costs = self.parties[*party].counted_costs(&self.costs(ask, index));
                    (*party, costs)
                })
                .collect()
        };
        if digest(&self.permits[known.permit].ask) == digest(ask) {
            Ok(Some(known.permit))
        } else {
            Err(ErrorKind::Conflict)
        }
    }

    fn holds_slots(&self, now: Timestamp, permit: usize) -> bool {
        let tickets = &self.permits[permit].tickets;
        tickets.iter().all(|(party, ticket)| self.parties[*party].keeps(now, *ticket))
    }

    fn denied(&self, now: Timestamp, ask: &JointAsk, replies: &[Reply]) -> JointReply {
        let refused = (0..ask.parties.len()).flat_map(|index| {
            let by = match replies[index] {
                Reply::Denied(_) => {
                    self.parties[ask.parties[index]].refusals(&self.costs(ask, index), now)
                }
                _ => Vec::new(),
            };
            by.into_iter().map(move |by| Refused { charge: index, by })
        });
        let refused: Vec<Refused> = refused.collect();
        let is_longer = |by: &DenialSummary, than: &DenialSummary| match (by.until, than.until) {
            (None, Some(_)) => true,
            (Some(by), Some(than)) => than < by,
            (_, None) => false,
        };
        let mut binding = &refused[0];
        for other in &refused[1..] {
            if is_longer(&other.by, &binding.by) {
                binding = other;
            }
        }
        JointReply::Denied { binding: binding.clone(), refused }
    }

    fn permitted(&mut self, ask: &JointAsk, replies: &[Reply]) -> JointReply {
        let part = |reply: &Reply| -> (PermitSummary, Option<DenialSummary>) {
            match reply {
                Reply::Admitted(given) | Reply::Charged(given) => (given.clone(), None),
                Reply::Shadowed(given, by) => (given.clone(), Some(by.clone())),
                other => unreachable!("{other:?} was sorted out before"),
            }
        };
        let parts: Vec<_> = replies.iter().map(part).collect();
        let permit = self.permits.len();
        let tickets =
            ask.parties.iter().zip(&parts).map(|(party, (given, _))| (*party, given.permit));
        self.permits.push(Given { ask: ask.clone(), tickets: tickets.collect() });
        if let Some(id) = &ask.id {
            let first = self.permits[permit].ask.parties[0];
            self.forget(id, first);
            let until = parts[0].0.at + ID_HORIZON;
            self.ids.push(Known { id: id.clone(), permit, until });
        }
        let charges = parts.into_iter().map(|(given, shadow_denied)| PartSummary {
            at: given.at,
            expires_at: given.expires_at,
            shadow_denied,
        });
        JointReply::Permitted { permit, charges: charges.collect() }
    }

    fn forget(&mut self, id: &str, first: usize) {
        let permits = &self.permits;
        self.ids.retain(|known| {
            known.id != id || permits[known.permit].ask.parties.first() != Some(&first)
        });
    }

    /// Runs `action` on the charges of `permit` that `choose` names, and adds up the replies.
    fn on_parts(
        &mut self,
        now: Timestamp,
        permit: usize,
        action: impl Fn(usize, usize, &Model) -> Option<Action>,
    ) -> JointReply {
        let Some(given) = self.permits.get(permit).cloned() else {
            return JointReply::Changed(false);
        };
        let (mut changed, mut expiries, mut failed) = (false, Vec::new(), None);
        for (index, (party, ticket)) in given.tickets.iter().enumerate() {
            let Some(action) = action(index, *ticket, &self.parties[*party]) else { continue };
            match self.parties[*party].apply(now, &action) {
                Reply::Settled(done) => {
                    changed |= done;
                    let is_release = matches!(action, Action::Release { .. });
                    if index == 0
                        && is_release
                        && (done || !self.parties[*party].is_charged(*ticket))
                    {
                        self.ids.retain(|known| known.permit != permit);
                    }
                }
                Reply::Renewed(expires_at) => expiries.push(expires_at),
                Reply::Failed(kind) => failed = failed.or(Some(kind)),
                other => return JointReply::Unexpected(format!("{other:?}")),
            }
        }
        match failed {
            Some(kind) => JointReply::Failed(kind),
            None if expiries.is_empty() => JointReply::Changed(changed),
            None => JointReply::Renewed(expiries.into_iter().flatten().min()),
        }
    }
}

impl JointSubject for JointModel {
    fn play(&mut self, now: Timestamp, action: &JointAction) -> JointReply {
        match action {
            JointAction::Acquire(ask) => {
                self.ask(now, ask, false).unwrap_or_else(JointReply::Failed)
            }
            JointAction::Charge(ask) => self.ask(now, ask, true).unwrap_or_else(JointReply::Failed),
            JointAction::Settle { permit, actual } => {
                let Some(given) = self.permits.get(*permit).cloned() else {
                    return JointReply::Changed(false);
                };
                let counts = |unit: &str| {
                    given.tickets.iter().any(|(party, _)| self.parties[*party].counts(unit))
                };
                if !actual.iter().all(|(unit, _)| counts(unit)) {
                    return JointReply::Failed(ErrorKind::Invalid);
                }
                self.on_parts(now, *permit, |index, ticket, model| {
                    let applies =
                        |unit: &str| model.counts(unit) && !given.ask.has_own_costs(index);
                    let actual = actual.iter().filter(|(unit, _)| applies(unit)).collect();
                    Some(Action::Settle { permit: ticket, actual })
                })
            }
            JointAction::SettlePart { permit, charge, actual } => {
                self.on_parts(now, *permit, |index, ticket, _| {
                    let actual = actual.clone();
                    (index == *charge).then_some(Action::Settle { permit: ticket, actual })
                })
            }
            JointAction::Release { permit } => {
                self.on_parts(now, *permit, |_, ticket, _| Some(Action::Release { permit: ticket }))
            }
            JointAction::Renew { permit } => {
                self.on_parts(now, *permit, |_, ticket, _| Some(Action::Renew { permit: ticket }))
            }
            JointAction::Close { party, limit, until } => {
                let (limit, until) = (limit.clone(), *until);
                changed(self.parties[*party].apply(now, &Action::Close { limit, until }))
            }
            JointAction::Reset { party } => {
                let reply = changed(self.parties[*party].apply(now, &Action::Reset));
                if reply == JointReply::Changed(true) {
                    let permits = &self.permits;
                    self.ids
                        .retain(|known| permits[known.permit].ask.parties.first() != Some(party));
                }
                reply
            }
        }
    }

    fn standings(&mut self, now: Timestamp) -> Result<Vec<Vec<Standing>>, String> {
        Ok(self.parties.iter().map(|party| party.standings(now)).collect())
    }

    fn permits(&self) -> usize {
        self.permits.len()
    }

    fn change(&mut self, party: usize, policy: &Policy) {
        self.parties[party].change(policy);
    }
}

fn changed(reply: Reply) -> JointReply {
    match reply {
        Reply::Done(done) => JointReply::Changed(done),
        Reply::Failed(kind) => JointReply::Failed(kind),
        other => JointReply::Unexpected(format!("{other:?}")),
    }
}
