//! Plays a script on any store.

use tollgate_core::{
    Ask, Decision, Error, Operation, Outcome, Permit, Policy, Standing, Timestamp, Wait,
};

use super::{JointAction, JointAsk, JointReply, JointSubject, PartSummary, Party, Refused};
use crate::script::{DenialSummary, Run};

/// Plays a script for some parties, keeping the permits it is given.
pub struct JointPlayer<'a, 'b> {
    parties: Vec<Party>,
    permits: Vec<Permit>,
    run: &'a mut Run<'b>,
}

impl<'a, 'b> JointPlayer<'a, 'b> {
    /// A player without permits, on the store behind `run`.
    pub fn new(parties: &[Party], run: &'a mut Run<'b>) -> Self {
        Self { parties: parties.to_vec(), permits: Vec::new(), run }
    }

    fn ask(&self, ask: &JointAsk) -> Ask<'static> {
        let party = |index: usize| &self.parties[ask.parties[index]];
        let mut built = Ask::new(&party(0).policy, party(0).subject.as_str());
        for index in 1..ask.parties.len() {
            let Party { policy, subject } = party(index);
            built = match ask.has_own_costs(index) {
                true => built.and_costing(policy, subject.as_str(), ask.costs_of(index)),
                false => built.and(policy, subject.as_str()),
            };
        }
        built = built.with_costs(&ask.costs);
        if let Some(id) = &ask.id {
            built = built.id(id.as_str());
        }
        built.into_owned()
    }

    fn outcome(&mut self, now: Timestamp, action: &JointAction) -> Result<Outcome, Error> {
        let permit = |permit: usize| self.permits.get(permit).cloned();
        match action {
            JointAction::Acquire(ask) => {
                let ask = self.ask(ask);
                (self.run)(now, &Operation::Acquire(&ask))
            }
            JointAction::Charge(ask) => {
                let ask = self.ask(ask);
                (self.run)(now, &Operation::Charge(&ask))
            }
            JointAction::Settle { permit: number, actual } => match permit(*number) {
                Some(permit) => (self.run)(now, &Operation::Settle(&permit, actual)),
                None => Ok(Outcome::Changed(false)),
            },
            JointAction::SettlePart { permit: number, charge, actual } => match permit(*number) {
                Some(permit) => match permit.parts().nth(*charge) {
                    Some(part) => (self.run)(now, &Operation::Settle(&part, actual)),
                    None => Ok(Outcome::Changed(false)),
                },
                None => Ok(Outcome::Changed(false)),
            },
            JointAction::Release { permit: number } => match permit(*number) {
                Some(permit) => (self.run)(now, &Operation::Release(&permit)),
                None => Ok(Outcome::Changed(false)),
            },
            JointAction::Renew { permit: number } => match permit(*number) {
                Some(permit) => {
                    let outcome = (self.run)(now, &Operation::Renew(&permit));
                    if let Ok(Outcome::Permitted(renewed)) = &outcome {
                        self.permits[*number] = renewed.clone();
                    }
                    outcome
                }
                None => Ok(Outcome::Changed(false)),
            },
            JointAction::Close { party, limit, until } => {
                let Party { policy, subject } = &self.parties[*party];
                (self.run)(now, &Operation::Close { policy, subject, limit, until: *until })
            }
            JointAction::Reset { party } => {
                let Party { policy, subject } = &self.parties[*party];
                (self.run)(now, &Operation::Reset { policy, subject })
            }
        }
    }

    fn permitted(&mut self, permit: Permit) -> JointReply {
        let is_same = |other: &Permit| {
            let stamps = |permit: &Permit| {
                permit.parts().map(|part| (part.grant().at, part.grant().stamp)).collect::<Vec<_>>()
            };
            permit.parts().any(|part| part.is_charged()) && stamps(other) == stamps(&permit)
        };
        if let Some(known) = self.permits.iter().rposition(is_same) {
            return JointReply::Repeated(known);
        }
        let charges = permit.parts().map(|part| PartSummary {
            at: part.grant().at,
            expires_at: part.expires_at(),
            shadow_denied: part
                .shadow_denied
                .as_ref()
                .map(|denial| summary(&denial.limit, denial.bound())),
        });
        let reply =
            JointReply::Permitted { permit: self.permits.len(), charges: charges.collect() };
        self.permits.push(permit);
        reply
    }
}

impl JointSubject for JointPlayer<'_, '_> {
    fn play(&mut self, now: Timestamp, action: &JointAction) -> JointReply {
        let outcome = self.outcome(now, action);
        match outcome {
            Err(error) => JointReply::Failed(error.kind()),
            Ok(Outcome::Decided(Decision::Denied(denial))) => {
                let by = summary(&denial.limit, denial.bound());
                let Some(joint) = &denial.joint else {
                    let only = Refused { charge: 0, by };
                    return JointReply::Denied { binding: only.clone(), refused: vec![only] };
                };
                let refused = joint.refused.iter().map(|limit| Refused {
                    charge: limit.charge,
                    by: summary(&limit.limit, limit.wait),
                });
                let refused: Vec<Refused> = refused.collect();
                let is_binding = |refused: &&Refused| {
                    refused.by == by && joint.charges[refused.charge].policy == denial.policy
                };
                match refused.iter().find(is_binding).cloned() {
                    Some(binding) => JointReply::Denied { binding, refused },
                    None => JointReply::Unexpected(format!("{by:?} is not among {refused:?}")),
                }
            }
            Ok(Outcome::Permitted(permit)) if matches!(action, JointAction::Renew { .. }) => {
                JointReply::Renewed(permit.expires_at())
            }
            Ok(Outcome::Decided(Decision::Admitted(permit)) | Outcome::Permitted(permit)) => {
                self.permitted(permit)
            }
            Ok(Outcome::Changed(changed)) => JointReply::Changed(changed),
            Ok(other) => JointReply::Unexpected(format!("{other:?}")),
        }
    }

    fn standings(&mut self, now: Timestamp) -> Result<Vec<Vec<Standing>>, String> {
        let mut all = Vec::new();
        for Party { policy, subject } in &self.parties {
            match (self.run)(now, &Operation::Standing { policy, subject }) {
                Ok(Outcome::Standings(standings)) => all.push(standings),
                other => return Err(format!("asked for standings, got {other:?}")),
            }
        }
        Ok(all)
    }

    fn permits(&self) -> usize {
        self.permits.len()
    }

    fn change(&mut self, party: usize, policy: &Policy) {
        self.parties[party].policy = policy.clone();
    }
}

fn summary(limit: &str, wait: Wait) -> DenialSummary {
    let until = match wait {
        Wait::Until(until) => Some(until),
        Wait::Never => None,
    };
    DenialSummary { limit: limit.to_owned(), until }
}
