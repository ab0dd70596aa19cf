//! The account of one subject during an outage: decisions by the share or openly, and the calls owed to the store.

use std::sync::Arc;

use tokio::sync::Notify;
use tollgate_core::{
    Ask, Costs, Decision, Denial, Entry, OnStoreFailure, Operation, Outcome, Permit, Policy,
    Refusal, Standing, Timestamp, Wait, standings,
};

use super::options::{FallbackOptions, ShareStart};
use super::owed::{By, Job, Owed, Settlement};
use crate::error::{Error, ErrorKind};
use crate::internal::Ids;

/// A subject of a policy, since the store failed.
#[derive(Debug)]
pub(super) struct Account {
    policy: Policy,
    /// The enforced policy: the share, or for `open` the policy itself, which only counts; or why there is none.
    rules: Result<Policy, Error>,
    entry: Entry,
    ids: Ids,
    opened: Timestamp,
    began: Timestamp,
    used_at: Timestamp,
    pub(super) owed: Owed,
    /// Set while a task posts for this subject.
    pub(super) posting: Option<Arc<Notify>>,
}

impl Account {
    /// An account of a degradation that began at `began`.
    pub(super) fn new(policy: &Policy, options: &FallbackOptions, began: Timestamp) -> Self {
        let instances = options.instances;
        let rules = rules_of(policy, instances);
        let enforced = rules.as_ref().unwrap_or(policy);
        let entry = match starts_used(policy, options) {
            true => Entry::used_up(enforced, began),
            false => Entry::fresh(enforced, began),
        };
        Self {
            policy: policy.clone(),
            rules,
            entry,
            ids: Ids::default(),
            opened: began,
            began,
            used_at: began,
            owed: Owed::new(policy, instances, began),
            posting: None,
        }
    }

    /// Takes over other numbers; and where a new degradation began, all of the share counts as used again, if that is how
    /// it starts.
    pub(super) fn refresh(&mut self, policy: &Policy, options: &FallbackOptions, began: Timestamp) {
        let instances = options.instances;
        if self.policy != *policy {
            (self.policy, self.rules) = (policy.clone(), rules_of(policy, instances));
            self.owed.change_policy(policy, instances);
        }
        if self.began != began {
            self.began = began;
            if starts_used(policy, options) {
                self.entry.use_up(began);
            }
        }
    }

    pub(super) const fn policy(&self) -> &Policy {
        &self.policy
    }

    pub(super) fn owes(&self) -> bool {
        self.owed.is_any()
    }

    /// Whether nothing is lost if the account is: nothing is owed, no permit of it can be settled any more, and a new account
    /// would not admit what this one denies.
    pub(super) fn is_over(&self, now: Timestamp, options: &FallbackOptions) -> bool {
        let settled_by = self.used_at + tollgate_core::bounds::PERMIT_TTL;
        !self.owes()
            && self.posting.is_none()
            && settled_by <= now
            && (self.policy.on_store_failure() != OnStoreFailure::Fallback
                || starts_used(&self.policy, options)
                || self.standing(now).iter().all(|limit| limit.used == 0))
    }

    /// Decides `ask` here. `in_doubt` is set if the store may have charged it already.
    pub(super) fn decide(
        &mut self,
        ask: &Ask<'_>,
        now: Timestamp,
        in_doubt: bool,
    ) -> Result<Decision, Error> {
        ask.check()?;
        let decision = match self.policy.on_store_failure() {
            OnStoreFailure::Fallback => self.by_share(ask, now)?,
            OnStoreFailure::Open => self.openly(ask, now)?,
            OnStoreFailure::Closed => return Err(Error::new(ErrorKind::Unavailable, "closed")),
        };
        if let Decision::Admitted(permit) = &decision {
            self.used_at = permit.grant().at;
            self.owed.add(permit, ask, By::Admission, in_doubt)?;
        }
        Ok(decision)
    }

    fn by_share(&mut self, ask: &Ask<'_>, now: Timestamp) -> Result<Decision, Error> {
        let share = self.rules.as_ref().map_err(Error::clone)?.clone();
        let asked = relabelled(ask, &share);
        Ok(match self.ids.apply(&Operation::Acquire(&asked), &mut self.entry, now)?.0 {
            Outcome::Decided(Decision::Admitted(permit)) => {
                Decision::Admitted(match permit.shadow_denied {
                    Some(denial) => degraded(Permit::in_shadow(ask, *denial)),
                    None => degraded(Permit::for_ask(ask, *permit.grant(), permit.limits)),
                })
            }
            Outcome::Decided(Decision::Denied(denial)) => {
                Decision::Denied(Denial { degraded: true, ..denial })
            }
            other => return Err(unexpected(&other)),
        })
    }

    /// Admits, unless the provider said no.
    fn openly(&mut self, ask: &Ask<'_>, now: Timestamp) -> Result<Decision, Error> {
        if let Some((limit, until)) = self.owed.closed_at(now) {
            let index = ask.policy().limits().position(|known| known.name() == limit);
            let refusal = Refusal { limit: index.unwrap_or(0), wait: Wait::Until(until) };
            let denial = Denial::for_ask(ask, refusal, now, Vec::new());
            return Ok(Decision::Denied(Denial { degraded: true, ..denial }));
        }
        self.count(ask, now).map(Decision::Admitted)
    }

    fn count(&mut self, ask: &Ask<'_>, now: Timestamp) -> Result<Permit, Error> {
        let rules = self.rules.as_ref().map_err(Error::clone)?.clone();
        let asked = relabelled(ask, &rules);
        match self.ids.apply(&Operation::Charge(&asked), &mut self.entry, now)?.0 {
            Outcome::Permitted(permit) => {
                Ok(degraded(Permit::for_ask(ask, *permit.grant(), Vec::new())))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Charges `ask` without deciding.
    pub(super) fn charge(
        &mut self,
        ask: &Ask<'_>,
        now: Timestamp,
        in_doubt: bool,
    ) -> Result<Permit, Error> {
        ask.check()?;
        let permit = self.count(ask, now)?;
        self.used_at = permit.grant().at;
        self.owed.add(&permit, ask, By::Charge, in_doubt)?;
        Ok(permit)
    }

    /// Returns the enforced policy.
    pub(super) fn rules(&self) -> Result<&Policy, Error> {
        self.rules.as_ref().map_err(Error::clone)
    }

    pub(super) const fn entry(&mut self) -> &mut Entry {
        &mut self.entry
    }

    pub(super) const fn ids(&mut self) -> &mut Ids {
        &mut self.ids
    }

    /// Whether a charge is admitted whatever the entry says. A limit that the provider closed stays closed.
    pub(super) fn is_open(&self, now: Timestamp) -> bool {
        self.policy.on_store_failure() == OnStoreFailure::Open && self.owed.closed_at(now).is_none()
    }

    /// Owes `part`, a charge of an ask that was decided here with others: by `job` if the store may have charged it.
    pub(super) fn owe(
        &mut self,
        permit: &Permit,
        part: &Ask<'_>,
        by: By,
        job: Option<Job>,
    ) -> Result<(), Error> {
        if permit.shadow_denied.is_some() {
            return Ok(());
        }
        self.used_at = permit.grant().at;
        match job {
            Some(job) => self.owed.add_doubtful(permit.grant().stamp, job),
            None => self.owed.add(permit, part, by, false)?,
        }
        Ok(())
    }

    /// Whether `permit` was given here.
    pub(super) fn gave(&self, permit: &Permit) -> bool {
        self.opened <= permit.grant().at && permit.grant().stamp <= self.owed.last_stamp()
    }

    /// Settles a permit that was given here, with `actual` or with nothing at all.
    pub(super) fn settle(
        &mut self,
        permit: &Permit,
        actual: Option<&Costs>,
        now: Timestamp,
    ) -> Result<Settlement, Error> {
        let local = self.localised(permit)?;
        let operation = match actual {
            Some(actual) => Operation::Settle(&local, actual),
            None => Operation::Release(&local),
        };
        match self.ids.apply(&operation, &mut self.entry, now)?.0 {
            Outcome::Changed(true) => {
                let held_slots = permit.expires_at().is_some();
                Ok(match self.owed.settle(permit.grant(), &permit.costs(), actual, now)? {
                    Settlement::Counted(changed) => Settlement::Counted(changed || held_slots),
                    in_store @ Settlement::InStore { .. } => in_store,
                })
            }
            _ => Ok(Settlement::Counted(false)),
        }
    }

    pub(super) fn renew(&mut self, permit: &Permit, now: Timestamp) -> Result<Permit, Error> {
        let local = self.localised(permit)?;
        match self.ids.apply(&Operation::Renew(&local), &mut self.entry, now)?.0 {
            Outcome::Permitted(renewed) => Ok(permit.clone().with_grant(*renewed.grant())),
            other => Err(unexpected(&other)),
        }
    }

    /// The permit in the numbers that are enforced here.
    fn localised(&self, permit: &Permit) -> Result<Permit, Error> {
        let rules = self.rules.as_ref().map_err(Error::clone)?;
        let amounts = rules.amounts(&permit.costs())?;
        let local = Permit::new(rules, permit.subject(), amounts, *permit.grant());
        Ok(local.with_id(permit.id()))
    }

    /// Closes a limit here at once, and in the store later.
    pub(super) fn close(
        &mut self,
        subject: &str,
        limit: &str,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<bool, Error> {
        let policy = self.rules.as_ref().unwrap_or(&self.policy).clone();
        let close = Operation::Close { policy: &policy, subject, limit, until };
        let done =
            matches!(self.ids.apply(&close, &mut self.entry, now)?.0, Outcome::Changed(true));
        if done {
            self.used_at = now;
            self.owed.keep(Job::Close { limit: limit.to_owned(), until });
        }
        Ok(done)
    }

    pub(super) fn standing(&self, now: Timestamp) -> Vec<Standing> {
        standings(&self.entry, now)
    }

    /// Keeps a call for the store.
    pub(super) fn keep(&mut self, job: Job, now: Timestamp) {
        self.used_at = now;
        self.owed.keep(job);
    }
}

fn starts_used(policy: &Policy, options: &FallbackOptions) -> bool {
    policy.on_store_failure() == OnStoreFailure::Fallback && options.start == ShareStart::Used
}

fn rules_of(policy: &Policy, instances: u64) -> Result<Policy, Error> {
    if policy.on_store_failure() != OnStoreFailure::Fallback {
        return Ok(policy.clone());
    }
    policy.share(instances).map_err(|error| {
        let text =
            format!("the store cannot be asked, and there is no share to decide by: {error}");
        Error::new(ErrorKind::Unavailable, text)
    })
}

/// `ask` in the numbers of `rules`, which has the same units.
fn relabelled<'a>(ask: &'a Ask<'_>, rules: &'a Policy) -> Ask<'a> {
    let asked =
        Ask::new(rules, ask.subject()).with_costs(&ask.costs()).behind(ask.in_front().to_vec());
    match ask.id_text() {
        Some(id) => asked.id_for(id, ask.id_ttl()),
        None => asked,
    }
}

/// The permit, which says that the store did not give it.
pub(super) const fn degraded(mut permit: Permit) -> Permit {
    permit.degraded = true;
    permit
}

pub(super) fn unexpected(outcome: &Outcome) -> Error {
    Error::new(ErrorKind::Corrupt, format!("unexpected outcome from the store: {outcome:?}"))
}
