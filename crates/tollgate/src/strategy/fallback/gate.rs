//! The verbs of a fallback: which of them are answered here while the store is away, which are kept for it, and which
//! fail.

use tollgate_core::{Ask, Costs, Decision, OnStoreFailure, Permit, Policy, Standing, Timestamp};

use super::Fallback;
use super::account::Account;
use super::owed::Job;
use super::state::key_of;
use crate::error::{Error, ErrorKind};
use crate::gate::{BoxFuture, Gate};

impl<G: Gate> Gate for Fallback<G> {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        let of = (ask.policy(), ask.subject());
        Box::pin(self.answer(
            of,
            |gate| gate.acquire(ask),
            |account, now, in_doubt| account.decide(ask, now, in_doubt),
        ))
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            if permit.degraded {
                return self.settle_local(permit, Some(actual)).await;
            }
            let kept = || self.0.keep(permit, Job::Settle(permit.clone(), actual.clone()));
            if self.0.is_cut() {
                return kept();
            }
            let since = self.0.clock.now();
            match self.0.gate.settle(permit, actual).await {
                Err(error) if error.is_unavailable() => {
                    let error = self.0.blame(error, since, permit.policy()).await?;
                    self.0.fail(&error, (permit.policy(), permit.subject()));
                    kept()
                }
                answer => answer,
            }
        })
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            if permit.degraded {
                return self.settle_local(permit, None).await;
            }
            let kept = || self.0.keep(permit, Job::Release(permit.clone()));
            if self.0.is_cut() {
                return kept();
            }
            let since = self.0.clock.now();
            match self.0.gate.release(permit).await {
                Err(error) if error.is_unavailable() => {
                    let error = self.0.blame(error, since, permit.policy()).await?;
                    self.0.fail(&error, (permit.policy(), permit.subject()));
                    kept()
                }
                answer => answer,
            }
        })
    }

    /// A slot of the store is renewed by the store alone: an instance that is cut off cannot keep it.
    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        Box::pin(async move {
            let policy = permit.policy();
            if permit.degraded {
                let key = key_of(policy, permit.subject());
                let mut state = self.0.state();
                let now = state.now(self.0.clock.as_ref());
                return match state.account(&key) {
                    Some(account) if account.gave(permit) => account.renew(permit, now),
                    _ => Err(Error::new(
                        ErrorKind::Expired,
                        "the permit was given without the store, by another instance or in another outage; acquire a new one",
                    )),
                };
            }
            if self.0.is_cut() {
                return Err(self
                    .0
                    .closed(policy, "has a slot there that only the store can renew"));
            }
            self.0.gate.renew(permit).await
        })
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        let of = (ask.policy(), ask.subject());
        Box::pin(self.answer(
            of,
            |gate| gate.charge(ask),
            |account, now, in_doubt| account.charge(ask, now, in_doubt),
        ))
    }

    /// Closes here at once if the store is away, whatever the policy says, and there as soon as it is back.
    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let (policy, subject) = (ask.policy(), ask.subject());
            if !self.0.is_cut() {
                let since = self.0.clock.now();
                match self.0.gate.close_until(ask, limit, until).await {
                    Err(error) if error.is_unavailable() => {
                        let error = self.0.blame(error, since, policy).await?;
                        self.0.fail(&error, (policy, subject));
                    }
                    answer => return answer,
                }
            }
            self.0.has_room()?;
            self.0.locally(policy, subject, |account, now| account.close(ask, limit, until, now))
        })
    }

    /// Where the subject stands in the store; while that is away, on this instance's share if the policy has one.
    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        let policy = policy.for_subject(subject);
        Box::pin(async move {
            if !self.0.is_cut() {
                let since = self.0.clock.now();
                match self.0.gate.standing(policy, subject).await {
                    Err(error) if error.is_unavailable() => {
                        let error = self.0.blame(error, since, policy).await?;
                        self.0.fail(&error, (policy, subject));
                        self.0.tended();
                    }
                    answer => return answer,
                }
            }
            if policy.on_store_failure() != OnStoreFailure::Fallback {
                return Err(self.0.closed(policy, "has no share to say where it stands"));
            }
            let mut state = self.0.state();
            let now = state.now(self.0.clock.as_ref());
            let began = state.began.map_or(now, |began| began.wall);
            Ok(match state.account(&key_of(policy, subject)) {
                Some(account) => account.standing(now),
                // Looking leaves no trace.
                None => Account::new(policy, &self.0.settings, began).standing(now),
            })
        })
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            if self.0.is_cut() {
                return Err(self.0.closed(policy, "is forgotten by the store alone"));
            }
            self.0.gate.reset(policy, subject).await
        })
    }
}
