//! The store's own history, in the words of the checkers: every operation in the order in which it ran.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::Error;
use tollgate_core::{Ask, Costs, Decision, Grant, Outcome, Permit, Timestamp, Wait};
use tollgate_sim::{Call, CompletedCall, Watch, World};

use crate::script::{Action, DenialSummary, HORIZON, PermitSummary, Record, Reply};

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

    fn ran(&self, ran: &CompletedCall<'_>) {
        let mut subjects = self.subjects();
        let subject = ran.call.operation().subject().to_owned();
        let history = subjects.entry(subject).or_default();
        let Some(action) = history.action(ran.call) else { return };
        let reply = history.reply(ran.call, ran.outcome);
        let number = match &reply {
            Reply::Admitted(given) | Reply::Charged(given) | Reply::Repeated(given) => {
                given.permit as u64
            }
            _ => u64::MAX,
        };
        self.world.note(ran.call.name(), ran.from, number, || {
            format!("m{} {} {action:?} -> {reply:?}", ran.from, ran.call.operation().subject())
        });
        history.follow(ran, &reply);
        let action = forget_short_ids(action, ran.call);
        let (before, after) = (ran.before.clone(), ran.after.clone());
        history.records.push(Record { now: ran.now, action, reply, before, after });
    }
}

/// The checkers take every id for one that lives as long as a caller's.
fn forget_short_ids(mut action: Action, call: &Call) -> Action {
    let (Call::Acquire(ask) | Call::Charge(ask)) = call else { return action };
    if ask.id_ttl() < HORIZON
        && let Action::Acquire { id, .. } | Action::Charge { id, .. } | Action::Post { id, .. } =
            &mut action
    {
        *id = None;
    }
    action
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

    /// The charge of each permit before refunds; `None` for posted arrears.
    pub(super) fn charged(&self) -> Vec<Costs> {
        let charges =
            self.records.iter().filter_map(|record| match (&record.action, &record.reply) {
                (
                    Action::Acquire { costs, .. } | Action::Charge { costs, .. },
                    Reply::Admitted(_) | Reply::Charged(_),
                ) => Some(costs.clone()),
                _ => None,
            });
        charges.collect()
    }

    /// Charges that repeated a known id.
    pub(super) fn twice(&self) -> Result<(), String> {
        match &self.twice {
            Some(problem) => Err(problem.clone()),
            None => Ok(()),
        }
    }

    fn follow(&mut self, ran: &CompletedCall<'_>, reply: &Reply) {
        match (ran.call, reply) {
            (
                Call::Acquire(ask) | Call::Charge(ask),
                Reply::Admitted(given) | Reply::Charged(given),
            ) => {
                let Some(id) = ask.id_text() else { return };
                let until = given.at + ask.id_ttl();
                let known = self.ids.insert(id.to_owned(), (until, given.permit));
                if known.is_some_and(|(until, _)| given.at < until) {
                    self.twice.get_or_insert(format!("id {id} was charged twice by {}", given.at));
                }
            }
            // A released permit is void, so its ask may come again.
            (Call::Release(permit), Reply::Settled(true)) => {
                let released = self.number(permit.grant());
                self.ids.retain(|_, (_, permit)| Some(*permit) != released);
            }
            _ => {}
        }
    }

    fn action(&self, call: &Call) -> Option<Action> {
        let (costs, id) = (Ask::costs, |ask: &Ask<'_>| ask.id_text().map(str::to_owned));
        Some(match call {
            Call::Acquire(ask) => Action::Acquire { costs: costs(ask), id: id(ask) },
            Call::Charge(ask) if ask.arrears().is_some() => {
                Action::Post { costs: costs(ask), id: id(ask) }
            }
            Call::Charge(ask) => Action::Charge { costs: costs(ask), id: id(ask) },
            Call::Settle(permit, actual) => {
                Action::Settle { permit: self.number(permit.grant())?, actual: actual.clone() }
            }
            Call::Release(permit) => Action::Release { permit: self.number(permit.grant())? },
            Call::Renew(permit) => Action::Renew { permit: self.number(permit.grant())? },
            Call::Close { limit, until, .. } => {
                Action::Close { limit: limit.clone(), until: *until }
            }
            Call::Standing(..) => Action::Standing,
            Call::Reset(..) => Action::Reset,
        })
    }

    fn reply(&mut self, call: &Call, outcome: &Result<Outcome, Error>) -> Reply {
        match outcome {
            Err(_) => Reply::Failed(tollgate_core::ErrorKind::Contended),
            Ok(Outcome::Decided(Decision::Denied(denial))) => {
                let until = match denial.bound() {
                    Wait::Until(until) => Some(until),
                    Wait::Never => None,
                };
                Reply::Denied(DenialSummary { limit: denial.limit.to_string(), until })
            }
            Ok(Outcome::Decided(Decision::Admitted(permit))) => self.keep(permit, Reply::Admitted),
            Ok(Outcome::Permitted(permit)) if matches!(call, Call::Renew(_)) => {
                Reply::Renewed(permit.expires_at())
            }
            Ok(Outcome::Permitted(permit)) => self.keep(permit, Reply::Charged),
            Ok(Outcome::Changed(done)) => match call {
                Call::Settle(..) | Call::Release(_) => Reply::Settled(*done),
                _ => Reply::Done(*done),
            },
            Ok(Outcome::Standings(_)) => Reply::Standings,
        }
    }

    fn keep(&mut self, permit: &Permit, new: fn(PermitSummary) -> Reply) -> Reply {
        let grant = permit.grant();
        let known = self.number(grant);
        let number = known.unwrap_or(self.permits.len());
        let given = PermitSummary {
            permit: number,
            at: grant.at,
            use_by: grant.use_by,
            expires_at: grant.expires_at,
        };
        if known.is_some() {
            return Reply::Repeated(given);
        }
        self.permits.push((grant.stamp, grant.at));
        new(given)
    }
}
