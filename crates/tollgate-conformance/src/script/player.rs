//! Plays a script on any store.

use tollgate_core::{
    Ask, Costs, Decision, Error, Operation, Outcome, Permit, Policy, Standing, Timestamp, Wait,
};

use super::{Action, DenialSummary, PermitSummary, Reply, Run};

/// Plays a script for one subject, keeping the permits it is given.
#[derive(Clone, Debug)]
pub struct Player {
    policy: Policy,
    subject: String,
    permits: Vec<Permit>,
    shown: Vec<Standing>,
}

impl Player {
    /// A player without permits.
    pub fn new(policy: &Policy, subject: &str) -> Self {
        Self {
            policy: policy.clone(),
            subject: subject.to_owned(),
            permits: Vec::new(),
            shown: Vec::new(),
        }
    }

    /// Uses `policy` from now on; permits keep theirs.
    pub fn change(&mut self, policy: &Policy) {
        self.policy = policy.clone();
    }

    /// The number of permits given so far.
    pub const fn permits(&self) -> usize {
        self.permits.len()
    }

    /// The permit with this number, if it was given.
    pub fn permit(&self, number: usize) -> Option<&Permit> {
        self.permits.get(number)
    }

    /// The standings in the last reply to an ask or a charge.
    pub fn shown(&self) -> &[Standing] {
        &self.shown
    }

    /// Runs one action at `now`; with a permit that was never given it does nothing.
    pub fn play(&mut self, now: Timestamp, action: &Action, run: &mut Run<'_>) -> Reply {
        self.shown.clear();
        let policy = self.policy.clone();
        let subject = self.subject.clone();
        let outcome = match action {
            Action::Acquire { costs, id } => {
                run(now, &Operation::Acquire(&ask(&policy, &subject, costs, id.as_deref())))
            }
            Action::Charge { costs, id } | Action::Post { costs, id } => {
                run(now, &Operation::Charge(&ask(&policy, &subject, costs, id.as_deref())))
            }
            Action::Settle { permit, actual } => match self.permits.get(*permit) {
                Some(permit) => run(now, &Operation::Settle(permit, actual)),
                None => return Reply::Standings,
            },
            Action::Release { permit } => match self.permits.get(*permit) {
                Some(permit) => run(now, &Operation::Release(permit)),
                None => return Reply::Standings,
            },
            Action::Renew { permit } => match self.permits.get(*permit) {
                Some(held) => {
                    let outcome = run(now, &Operation::Renew(held));
                    return self.renewed(*permit, outcome);
                }
                None => return Reply::Standings,
            },
            Action::Close { limit, until } => {
                let subject = &subject;
                run(now, &Operation::Close { policy: &policy, subject, limit, until: *until })
            }
            Action::Standing => {
                run(now, &Operation::Standing { policy: &policy, subject: &subject })
            }
            Action::Reset => run(now, &Operation::Reset { policy: &policy, subject: &subject }),
        };
        self.reply(action, outcome)
    }

    /// Returns the standings at `now`.
    pub fn standings(&self, now: Timestamp, run: &mut Run<'_>) -> Result<Vec<Standing>, String> {
        match run(now, &Operation::Standing { policy: &self.policy, subject: &self.subject }) {
            Ok(Outcome::Standings(standings)) => Ok(standings),
            other => Err(format!("asked for standings, got {other:?}")),
        }
    }

    fn reply(&mut self, action: &Action, outcome: Result<Outcome, Error>) -> Reply {
        self.shown = match &outcome {
            Ok(Outcome::Decided(Decision::Admitted(permit)) | Outcome::Permitted(permit)) => {
                permit.limits.clone()
            }
            Ok(Outcome::Decided(Decision::Denied(denial))) => denial.limits.clone(),
            _ => Vec::new(),
        };
        match outcome {
            Err(error) => Reply::Failed(error.kind()),
            Ok(Outcome::Decided(Decision::Denied(denial))) => {
                Reply::Denied(refused(&denial.limit, denial.bound()))
            }
            Ok(Outcome::Decided(Decision::Admitted(permit))) => match &permit.shadow_denied {
                Some(denial) => {
                    let refused = refused(&denial.limit, denial.bound());
                    Reply::Shadowed(self.keep(permit).0, refused)
                }
                None => match self.keep(permit) {
                    (given, true) => Reply::Admitted(given),
                    (given, false) => Reply::Repeated(given),
                },
            },
            Ok(Outcome::Permitted(permit)) => match self.keep(permit) {
                (given, true) => Reply::Charged(given),
                (given, false) => Reply::Repeated(given),
            },
            Ok(Outcome::Changed(done)) => match action {
                Action::Settle { .. } | Action::Release { .. } => Reply::Settled(done),
                _ => Reply::Done(done),
            },
            Ok(Outcome::Standings(_)) => Reply::Standings,
        }
    }

    /// Keeps a permit under its number; the flag says whether it is new.
    fn keep(&mut self, permit: Permit) -> (PermitSummary, bool) {
        let grant = *permit.grant();
        let known = self.permits.iter().rposition(|other| {
            permit.is_charged()
                && other.grant().stamp == grant.stamp
                && other.grant().at == grant.at
        });
        let number = known.unwrap_or(self.permits.len());
        if known.is_none() {
            self.permits.push(permit);
        }
        let given = PermitSummary {
            permit: number,
            at: grant.at,
            use_by: grant.use_by,
            expires_at: grant.expires_at,
        };
        (given, known.is_none())
    }

    fn renewed(&mut self, number: usize, outcome: Result<Outcome, Error>) -> Reply {
        match outcome {
            Ok(Outcome::Permitted(permit)) => {
                let expires_at = permit.expires_at();
                self.permits[number] = permit;
                Reply::Renewed(expires_at)
            }
            Ok(other) => Reply::Unexpected(format!("renewed, got {other:?}")),
            Err(error) => Reply::Failed(error.kind()),
        }
    }
}

fn ask<'a>(policy: &'a Policy, subject: &'a str, costs: &Costs, id: Option<&'a str>) -> Ask<'a> {
    let ask = Ask::new(policy, subject).with_costs(costs);
    match id {
        Some(id) => ask.id(id),
        None => ask,
    }
}

fn refused(limit: &str, wait: Wait) -> DenialSummary {
    let until = match wait {
        Wait::Until(until) => Some(until),
        Wait::Never => None,
    };
    DenialSummary { limit: limit.to_owned(), until }
}
