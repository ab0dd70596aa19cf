//! Routes a call: to the store, to the local account while the store is away, or to the store once the debts of its subject are
//! posted. Settles permits that were given locally.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate_core::{
    Ask, Charge, Costs, OnStoreFailure, Operation, Outcome, Permit, Policy, Span, Timestamp,
};

use super::account::Account;
use super::owed::{Job, Settlement};
use super::state::{Destination, key_of};
use super::suspicion::may_be_of_store;
use super::{Fallback, Shared};
use crate::error::{Error, ErrorKind};
use crate::gate::{Gate, GateExt};
use crate::internal::timeout_at;
use crate::strategy::foreign_permit::charge_extra;

/// How long an ask waits for what its subject owes to be posted, before it is answered without the store once more.
const POST_WAIT: Span = Span::from_secs(1);

impl<G: Gate> Shared<G> {
    /// Waits until what the subject owes is posted, and says whether the store may be asked.
    async fn ready(&self, of: (&Policy, &str)) -> Result<bool, Error> {
        let since = self.clock.now();
        let key = key_of(of.0, of.1);
        let until = self.clock.now() + POST_WAIT;
        loop {
            let destination = self.state().destination(&key);
            match destination {
                Destination::Store => return Ok(true),
                Destination::Local => return Ok(false),
                Destination::Post => match timeout_at(&*self.clock, until, self.post(&key)).await {
                    Some(Ok(())) => {}
                    Some(Err(error)) if may_be_of_store(&error) => {
                        let error = self.attribute(error, since, of.0).await?;
                        self.fail(&error, of);
                        return Ok(false);
                    }
                    Some(Err(error)) if error.kind() == ErrorKind::Contended => return Err(error),
                    Some(Err(_)) | None => return Ok(false),
                },
            }
        }
    }

    /// Runs `here` on the account of the subject, as a decision that is made without the store.
    pub(super) fn locally<T>(
        self: &Arc<Self>,
        policy: &Policy,
        subject: &str,
        here: impl FnOnce(&mut Account, Timestamp) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let clock = self.clock.as_ref();
        let mut state = self.state();
        state.open_account(policy, subject, clock, &self.options)?;
        let now = state.now(clock);
        let answer = state.counted(&key_of(policy, subject), |account| here(account, now));
        drop(state);
        self.show();
        self.start_recovery();
        answer.unwrap_or_else(|| Err(Error::new(ErrorKind::Corrupt, "an account was lost")))
    }

    /// Keeps `job` for a store that is away.
    pub(super) fn keep(self: &Arc<Self>, permit: &Permit, job: Job) -> Result<bool, Error> {
        self.has_room()?;
        self.locally(permit.policy(), permit.subject(), |account, now| {
            account.keep(job, now);
            Ok(true)
        })
    }

    /// Whether another call can be kept for the store.
    pub(super) fn has_room(&self) -> Result<(), Error> {
        self.state().has_room(self.options.kept_max)
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_degraded.load(Ordering::Acquire) && self.state().cut.is_some()
    }

    /// The error of a policy that does without fallback, or cannot have it.
    pub(super) fn closed(&self, policy: &Policy, why: &str) -> Error {
        let cause = self.state().cut.clone();
        let text = format!("the store cannot be asked, and policy {:?} {why}", policy.name());
        let text = match &cause {
            Some(cause) => format!("{text}: {cause}"),
            None => text,
        };
        let kind = cause.as_ref().map_or(ErrorKind::Unavailable, |cause| match cause.kind() {
            ErrorKind::Misconfigured => ErrorKind::Misconfigured,
            _ => ErrorKind::Unavailable,
        });
        let error = Error::new(kind, text);
        match cause {
            Some(cause) => error.caused_by(cause),
            None => error,
        }
    }
}

impl<G: Gate> Fallback<G> {
    /// Runs `operation`, an acquire or charge of `ask`, at the store if possible, otherwise `here`. The flag of `here` states
    /// whether the store may have carried it out.
    pub(super) async fn answer(
        &self,
        operation: Operation<'_>,
        ask: &Ask<'_>,
        here: impl FnOnce(&mut Account, Timestamp, bool) -> Result<Outcome, Error>,
    ) -> Result<Outcome, Error> {
        let shared = &self.0;
        let (policy, subject) = (operation.policy(), operation.subject());
        let is_closed = |policy: &&Policy| policy.on_store_failure() == OnStoreFailure::Closed;
        let closed = ask.charges().map(Charge::policy).find(is_closed);
        let mut is_ready = true;
        if self.is_degraded() {
            if !shared.state().is_recovering {
                shared.recover_now().await;
            }
            for charge in ask.charges() {
                is_ready = is_ready && shared.ready((charge.policy(), charge.subject())).await?;
            }
        }
        let mut in_doubt = false;
        if is_ready {
            let since = shared.clock.now();
            let answer = shared.gate.run(operation).await;
            shared.note_answer(&answer);
            match answer {
                // The caller gets the error, nothing is kept for later, and others are served: no outage begins.
                Err(error) if error.kind() == ErrorKind::Full && closed.is_some() => {
                    return Err(error);
                }
                Err(error) if may_be_of_store(&error) => {
                    let error = shared.attribute(error, since, policy).await?;
                    in_doubt = shared.has_room().is_ok();
                    shared.fail(&error, (policy, subject));
                    if closed.is_some() {
                        shared.start_recovery();
                        return Err(error);
                    }
                }
                answer => return answer,
            }
        }
        if let Some(policy) = closed {
            return Err(shared.closed(policy, "has on_store_failure = \"closed\""));
        }
        if ask.has_several_charges() {
            return shared.jointly(&operation, ask, in_doubt);
        }
        shared.locally(policy, subject, |account, now| here(account, now, in_doubt))
    }

    /// Settles what was given without the store where it was given; elsewhere only what it cost beyond the estimate can
    /// be charged, once.
    pub(super) async fn settle_local(
        &self,
        permit: &Permit,
        actual: Option<&Costs>,
    ) -> Result<bool, Error> {
        if !permit.is_charged() {
            return Ok(false);
        }
        let shared = &self.0;
        let (policy, subject) = (permit.policy(), permit.subject());
        let key = key_of(policy, subject);
        let is_ours = shared.state().account(&key).is_some_and(|account| account.gave(permit));
        if is_ours {
            let now = shared.state().now(shared.clock.as_ref());
            let settled =
                shared.state().counted(&key, |account| account.settle(permit, actual, now));
            let settled = settled.unwrap_or(Ok(Settlement::Counted(false)))?;
            // Costs beyond the estimate may come after everything else was posted.
            let owes = shared.state().account(&key).is_some_and(|account| account.owes());
            if owes {
                shared.state().is_degraded = true;
                shared.show();
                shared.start_recovery();
            }
            return match settled {
                Settlement::Counted(changed) => Ok(changed),
                Settlement::InStore { permit, actual, has_extra } => {
                    let changed = match &actual {
                        Some(actual) => self.settle(&permit, actual).await?,
                        None => self.release(&permit).await?,
                    };
                    Ok(changed || has_extra)
                }
            };
        }
        let was = permit.costs();
        let more = |unit| {
            actual
                .and_then(|actual| actual.get(unit))
                .map_or(0, |is: u64| is.saturating_sub(was.get(unit).unwrap_or(0)))
        };
        let costs: Costs = policy.units().map(|unit| (unit, more(unit))).collect();
        charge_extra(self, permit, &costs).await
    }
}
