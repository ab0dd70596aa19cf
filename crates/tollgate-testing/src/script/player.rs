//! Plays a script on any store.

use tollgate_core::{
    Ask, Costs, Decision, Error, Operation, Outcome, Permit, Policy, Standing, Timestamp, Wait,
};

use super::{Answer, Did, Given, Refused, Run};

/// Plays a script for one subject, keeping the permits it is given.
#[derive(Clone, Debug)]
pub struct Player {
    policy: Policy,
    subject: String,
    permits: Vec<Permit>,
    shown: Vec<Standing>,
}

impl Player {
    /// A player who has done nothing yet.
    #[must_use]
    pub fn new(policy: &Policy, subject: &str) -> Self {
        Self {
            policy: policy.clone(),
            subject: subject.to_owned(),
            permits: Vec::new(),
            shown: Vec::new(),
        }
    }

    /// From now on asks under `policy`; permits keep the policy they were given under.
    pub fn change(&mut self, policy: &Policy) {
        self.policy = policy.clone();
    }

    /// How many permits were given so far.
    #[must_use]
    pub const fn permits(&self) -> usize {
        self.permits.len()
    }

    /// The permit with this number, if it was given.
    #[must_use]
    pub fn permit(&self, number: usize) -> Option<&Permit> {
        self.permits.get(number)
    }

    /// The standings that the last answer to an ask or a charge showed; nothing if it showed none.
    #[must_use]
    pub fn shown(&self) -> &[Standing] {
        &self.shown
    }

    /// Does one thing at `now`. A permit that was never given makes it only look.
    pub fn play(&mut self, now: Timestamp, did: &Did, run: &mut Run<'_>) -> Answer {
        self.shown.clear();
        let policy = self.policy.clone();
        let subject = self.subject.clone();
        let outcome = match did {
            Did::Acquire { costs, id } => {
                run(now, &Operation::Acquire(&ask(&policy, &subject, costs, id.as_deref())))
            }
            Did::Charge { costs, id } | Did::Post { costs, id } => {
                run(now, &Operation::Charge(&ask(&policy, &subject, costs, id.as_deref())))
            }
            Did::Settle { permit, actual } => match self.permits.get(*permit) {
                Some(permit) => run(now, &Operation::Settle(permit, actual)),
                None => return Answer::Seen,
            },
            Did::Release { permit } => match self.permits.get(*permit) {
                Some(permit) => run(now, &Operation::Release(permit)),
                None => return Answer::Seen,
            },
            Did::Renew { permit } => match self.permits.get(*permit) {
                Some(held) => {
                    let outcome = run(now, &Operation::Renew(held));
                    return self.renewed(*permit, outcome);
                }
                None => return Answer::Seen,
            },
            Did::Close { limit, until } => {
                let subject = &subject;
                run(now, &Operation::Close { policy: &policy, subject, limit, until: *until })
            }
            Did::Look => run(now, &Operation::Standing { policy: &policy, subject: &subject }),
            Did::Reset => run(now, &Operation::Reset { policy: &policy, subject: &subject }),
        };
        self.answer(outcome)
    }

    /// Where the subject stands at `now`.
    ///
    /// # Errors
    /// Whatever the store could not decide, as text.
    pub fn standings(&self, now: Timestamp, run: &mut Run<'_>) -> Result<Vec<Standing>, String> {
        match run(now, &Operation::Standing { policy: &self.policy, subject: &self.subject }) {
            Ok(Outcome::Stands(standings)) => Ok(standings),
            other => Err(format!("asked for standings, got {other:?}")),
        }
    }

    fn answer(&mut self, outcome: Result<Outcome, Error>) -> Answer {
        self.shown = match &outcome {
            Ok(Outcome::Decided(Decision::Admitted(permit)) | Outcome::Permitted(permit)) => {
                permit.limits.clone()
            }
            Ok(Outcome::Decided(Decision::Denied(denial))) => denial.limits.clone(),
            _ => Vec::new(),
        };
        match outcome {
            Err(error) => Answer::Failed(error.kind()),
            Ok(Outcome::Decided(Decision::Denied(denial))) => {
                Answer::Denied(refused(&denial.limit, denial.bound()))
            }
            Ok(Outcome::Decided(Decision::Admitted(permit))) => match &permit.shadow_denied {
                Some(denial) => {
                    let refused = refused(&denial.limit, denial.bound());
                    Answer::Shadowed(self.keep(permit).0, refused)
                }
                None => match self.keep(permit) {
                    (given, true) => Answer::Admitted(given),
                    (given, false) => Answer::Repeated(given),
                },
            },
            Ok(Outcome::Permitted(permit)) => match self.keep(permit) {
                (given, true) => Answer::Charged(given),
                (given, false) => Answer::Repeated(given),
            },
            Ok(Outcome::Settled(done)) => Answer::Settled(done),
            Ok(Outcome::Done(done)) => Answer::Done(done),
            Ok(Outcome::Stands(_)) => Answer::Seen,
        }
    }

    /// Keeps a permit under its number; the flag says whether it is new.
    fn keep(&mut self, permit: Permit) -> (Given, bool) {
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
        let given = Given {
            permit: number,
            at: grant.at,
            use_by: grant.use_by,
            expires_at: grant.expires_at,
        };
        (given, known.is_none())
    }

    fn renewed(&mut self, number: usize, outcome: Result<Outcome, Error>) -> Answer {
        match outcome {
            Ok(Outcome::Permitted(permit)) => {
                let expires_at = permit.expires_at();
                self.permits[number] = permit;
                Answer::Renewed(expires_at)
            }
            Ok(other) => Answer::Odd(format!("renewed, got {other:?}")),
            Err(error) => Answer::Failed(error.kind()),
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

fn refused(limit: &str, wait: Wait) -> Refused {
    let until = match wait {
        Wait::Until(until) => Some(until),
        Wait::Never => None,
    };
    Refused { limit: limit.to_owned(), until }
}
