//! The store's own history, in the words of the checkers: every operation in the order in which it ran.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::Error;
use tollgate_core::{Ask, Costs, Decision, Grant, Outcome, Permit, Timestamp, Wait};
use tollgate_sim::{Call, Ran, Watch, World};

use crate::script::{Answer, Did, Given, HORIZON, Record, Refused};

/// Writes down what the store ran.
#[derive(Debug)]
pub(super) struct Recorder {
    world: World,
    subjects: Mutex<BTreeMap<String, History>>,
}

/// What the store ran for one subject.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub(super) records: Vec<Record>,
    permits: Vec<(u64, Timestamp)>,
    /// Until when each id is known, and its permit.
    ids: BTreeMap<String, (Timestamp, usize)>,
    /// The first id that was charged twice while it was known.
    twice: Option<String>,
}

impl Recorder {
    pub(super) fn new(world: &World) -> Self {
        Self { world: world.clone(), subjects: Mutex::default() }
    }

    /// Every history by subject.
    pub(super) fn histories(&self) -> BTreeMap<String, History> {
        self.subjects().clone()
    }

    fn subjects(&self) -> MutexGuard<'_, BTreeMap<String, History>> {
        self.subjects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Recorder {
    fn wants_standings(&self) -> bool {
        true
    }

    fn ran(&self, ran: &Ran<'_>) {
        let mut subjects = self.subjects();
        let subject = ran.call.operation().subject().to_owned();
        let history = subjects.entry(subject).or_default();
        let Some(did) = history.did(ran.call) else { return };
        let answer = history.answer(ran.call, ran.outcome);
        let number = match &answer {
            Answer::Admitted(given) | Answer::Charged(given) | Answer::Repeated(given) => {
                given.permit as u64
            }
            _ => u64::MAX,
        };
        self.world.note(ran.call.name(), ran.from, number, || {
            format!("m{} {} {did:?} -> {answer:?}", ran.from, ran.call.operation().subject())
        });
        history.follow(ran, &answer);
        let did = forget_short_ids(did, ran.call);
        let (before, after) = (ran.before.clone(), ran.after.clone());
        history.records.push(Record { now: ran.now, did, answer, before, after });
    }
}

/// The checkers take every id for one that lives as long as a caller's.
fn forget_short_ids(mut did: Did, call: &Call) -> Did {
    let (Call::Acquire(ask) | Call::Charge(ask)) = call else { return did };
    if ask.id_ttl() < HORIZON
        && let Did::Acquire { id, .. } | Did::Charge { id, .. } | Did::Post { id, .. } = &mut did
    {
        *id = None;
    }
    did
}

impl History {
    /// The number of the permit with this grant.
    fn number(&self, grant: &Grant) -> Option<usize> {
        self.permits.iter().rposition(|known| *known == (grant.stamp, grant.at))
    }

    /// Whether the store made this charge.
    pub(super) fn has_charged(&self, stamp: u64, at: Timestamp) -> bool {
        self.permits.contains(&(stamp, at))
    }

    /// What was charged under each permit, before anything was given back; nothing for what was posted later.
    pub(super) fn charged(&self) -> Vec<Costs> {
        let charges =
            self.records.iter().filter_map(|record| match (&record.did, &record.answer) {
                (
                    Did::Acquire { costs, .. } | Did::Charge { costs, .. },
                    Answer::Admitted(_) | Answer::Charged(_),
                ) => Some(costs.clone()),
                _ => None,
            });
        charges.collect()
    }

    /// What was charged twice though its id was known, however short that was.
    pub(super) fn twice(&self) -> Result<(), String> {
        match &self.twice {
            Some(problem) => Err(problem.clone()),
            None => Ok(()),
        }
    }

    fn follow(&mut self, ran: &Ran<'_>, answer: &Answer) {
        match (ran.call, answer) {
            (
                Call::Acquire(ask) | Call::Charge(ask),
                Answer::Admitted(given) | Answer::Charged(given),
            ) => {
                let Some(id) = ask.id_text() else { return };
                let until = given.at + ask.id_ttl();
                let known = self.ids.insert(id.to_owned(), (until, given.permit));
                if known.is_some_and(|(until, _)| given.at < until) {
                    self.twice.get_or_insert(format!("id {id} was charged twice by {}", given.at));
                }
            }
            // What was released was not done, so its ask may come again.
            (Call::Release(permit), Answer::Settled(true)) => {
                let released = self.number(permit.grant());
                self.ids.retain(|_, (_, permit)| Some(*permit) != released);
            }
            _ => {}
        }
    }

    fn did(&self, call: &Call) -> Option<Did> {
        let (costs, id) = (Ask::costs, |ask: &Ask<'_>| ask.id_text().map(str::to_owned));
        Some(match call {
            Call::Acquire(ask) => Did::Acquire { costs: costs(ask), id: id(ask) },
            Call::Charge(ask) if ask.arrears().is_some() => {
                Did::Post { costs: costs(ask), id: id(ask) }
            }
            Call::Charge(ask) => Did::Charge { costs: costs(ask), id: id(ask) },
            Call::Settle(permit, actual) => {
                Did::Settle { permit: self.number(permit.grant())?, actual: actual.clone() }
            }
            Call::Release(permit) => Did::Release { permit: self.number(permit.grant())? },
            Call::Renew(permit) => Did::Renew { permit: self.number(permit.grant())? },
            Call::Close { limit, until, .. } => Did::Close { limit: limit.clone(), until: *until },
            Call::Standing(..) => Did::Look,
            Call::Reset(..) => Did::Reset,
        })
    }

    fn answer(&mut self, call: &Call, outcome: &Result<Outcome, Error>) -> Answer {
        match outcome {
            Err(_) => Answer::Failed(tollgate_core::ErrorKind::Contended),
            Ok(Outcome::Decided(Decision::Denied(denial))) => {
                let until = match denial.bound() {
                    Wait::Until(until) => Some(until),
                    Wait::Never => None,
                };
                Answer::Denied(Refused { limit: denial.limit.to_string(), until })
            }
            Ok(Outcome::Decided(Decision::Admitted(permit))) => self.keep(permit, Answer::Admitted),
            Ok(Outcome::Permitted(permit)) if matches!(call, Call::Renew(_)) => {
                Answer::Renewed(permit.expires_at())
            }
            Ok(Outcome::Permitted(permit)) => self.keep(permit, Answer::Charged),
            Ok(Outcome::Settled(done)) => Answer::Settled(*done),
            Ok(Outcome::Done(done)) => Answer::Done(*done),
            Ok(Outcome::Stands(_)) => Answer::Seen,
        }
    }

    fn keep(&mut self, permit: &Permit, new: fn(Given) -> Answer) -> Answer {
        let grant = permit.grant();
        let known = self.number(grant);
        let number = known.unwrap_or(self.permits.len());
        let given = Given {
            permit: number,
            at: grant.at,
            use_by: grant.use_by,
            expires_at: grant.expires_at,
        };
        if known.is_some() {
            return Answer::Repeated(given);
        }
        self.permits.push((grant.stamp, grant.at));
        new(given)
    }
}
