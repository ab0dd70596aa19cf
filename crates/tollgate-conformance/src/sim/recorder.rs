//! The store's own history, in the words of the checkers: every operation in the order in which it ran.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate_core::{
    Ask, Costs, Decision, Grant, Outcome, Permit, Policy, Standing, Timestamp, Wait,
};
use tollgate_sim::{Call, CompletedCall, Watch, World};

use super::ledger::Key;
use crate::script::{Action, DenialSummary, HORIZON, PermitSummary, Record, Reply};

/// Writes down what the store ran.
#[derive(Debug)]
pub(super) struct Recorder {
    world: World,
    subjects: Mutex<BTreeMap<Key, History>>,
}

/// What the store ran for one policy and subject.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub(super) records: Vec<Record>,
    permits: Vec<(u64, Timestamp)>,
    /// Until when each id is known, and its permit.
    ids: BTreeMap<String, (Timestamp, usize)>,
    /// The first thing that was wrong with an ask: its id was charged twice while it was known, a repeat was charged in
    /// part, or a refusal changed the entry.
    problem: Option<String>,
}

impl Recorder {
    pub(super) fn new(world: &World) -> Self {
        Self { world: world.clone(), subjects: Mutex::default() }
    }

    /// Every history by policy and subject.
    pub(super) fn histories(&self) -> BTreeMap<Key, History> {
        self.subjects().clone()
    }

    fn subjects(&self) -> MutexGuard<'_, BTreeMap<Key, History>> {
        self.subjects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch for Recorder {
    fn wants_standings(&self) -> bool {
        true
    }

    /// Writes down one record for each charge.
    fn ran(&self, ran: &CompletedCall<'_>) {
        let mut subjects = self.subjects();
        let charges = charges(ran.call);
        let mut is_new = Vec::new();
        for (index, key) in charges.iter().enumerate() {
            let history = subjects.entry(key.clone()).or_default();
            let Some(action) = history.action(ran.call, index) else { return };
            let reply = history.reply(ran, index, charges.len());
            let number = match &reply {
                Reply::Admitted(given) | Reply::Charged(given) | Reply::Repeated(given) => {
                    is_new.push(!matches!(reply, Reply::Repeated(_)));
                    given.permit as u64
                }
                _ => u64::MAX,
            };
            self.world.note(ran.call.name(), ran.from, number, || {
                format!("m{} {} {action:?} -> {reply:?}", ran.from, key.1)
            });
            if index == 0 {
                history.follow(ran, &reply);
            }
            let action = forget_short_ids(action, ran.call);
            let at = |all: &[Vec<Standing>]| all.get(index).cloned().unwrap_or_default();
            let (before, after) = (at(&ran.before), at(&ran.after));
            let is_refused = matches!(ran.outcome, Ok(Outcome::Decided(Decision::Denied(_))));
            if is_refused && before != after {
                let problem = format!("a refusal at {} changed {before:?} to {after:?}", ran.now);
                history.problem.get_or_insert(problem);
            }
            history.records.push(Record { now: ran.now, action, reply, before, after });
        }
        if is_new.contains(&true)
            && is_new.contains(&false)
            && let Some(history) = subjects.get_mut(&charges[0])
        {
            let problem =
                format!("at {} some charges of an ask were repeated, others new", ran.now);
            history.problem.get_or_insert(problem);
        }
    }
}

/// The policy and subject of each charge of `call`.
fn charges(call: &Call) -> Vec<Key> {
    let key = |policy: &Policy, subject: &str| (policy.name().to_owned(), subject.to_owned());
    match call {
        Call::Acquire(ask) | Call::Charge(ask) => {
            ask.charges().map(|charge| key(charge.policy(), charge.subject())).collect()
        }
        other => vec![key(other.operation().policy(), other.operation().subject())],
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

    /// The first thing that was wrong with an ask.
    pub(super) fn problem(&self) -> Result<(), String> {
        match &self.problem {
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
                    let problem = format!("id {id} was charged twice by {}", given.at);
                    self.problem.get_or_insert(problem);
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

    /// The action of the charge at `index`. The id belongs to the first charge.
    fn action(&self, call: &Call, index: usize) -> Option<Action> {
        let costs = |ask: &Ask<'_>| ask.part(index).map(|part| part.costs()).unwrap_or_default();
        let id = |ask: &Ask<'_>| ask.id_text().filter(|_| index == 0).map(str::to_owned);
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

    /// The reply to the charge at `index` of `charges`.
    fn reply(&mut self, ran: &CompletedCall<'_>, index: usize, charges: usize) -> Reply {
        let call = ran.call;
        match ran.outcome {
            Err(_) => Reply::Failed(tollgate_core::ErrorKind::Contended),
            Ok(Outcome::Decided(Decision::Denied(denial))) => {
                // A charge that another one kept from being admitted has no promise of its own.
                let Some(denial) = denial.for_charge(index) else {
                    return Reply::Failed(tollgate_core::ErrorKind::Contended);
                };
                let until = match denial.bound() {
                    Wait::Until(until) => Some(until),
                    Wait::Never => None,
                };
                Reply::Denied(DenialSummary { limit: denial.limit.to_string(), until })
            }
            Ok(Outcome::Permitted(permit)) if matches!(call, Call::Renew(_)) => {
                Reply::Renewed(permit.expires_at())
            }
            Ok(Outcome::Decided(Decision::Admitted(permit))) => {
                self.keep_part(permit, index, charges, Reply::Admitted)
            }
            Ok(Outcome::Permitted(permit)) => {
                self.keep_part(permit, index, charges, Reply::Charged)
            }
            Ok(Outcome::Changed(done)) => match call {
                Call::Settle(..) | Call::Release(_) => Reply::Settled(*done),
                _ => Reply::Done(*done),
            },
            Ok(Outcome::Standings(_)) => Reply::Standings,
        }
    }

    fn keep_part(
        &mut self,
        permit: &Permit,
        index: usize,
        charges: usize,
        new: fn(PermitSummary) -> Reply,
    ) -> Reply {
        match permit.parts().nth(index) {
            Some(part) => self.keep(&part, new),
            None => {
                let text = format!("the permit of {charges} charges has no charge {index}");
                self.problem.get_or_insert(text);
                Reply::Failed(tollgate_core::ErrorKind::Corrupt)
            }
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
