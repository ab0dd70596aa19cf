//! Recovery after an outage: probes the store, posts what is owed, and ends the degradation.

use std::borrow::Cow;
use std::sync::Arc;

use tollgate_core::{Arrears, Ask, LocalSpending, Permit, Policy, Span, Standing, Timestamp};

use super::Shared;
use super::owed::Job;
use super::state::{Claim, Key};
use super::suspicion::may_be_of_store;
use crate::error::{Error, ErrorKind};
use crate::gate::{Gate, GateExt};
use crate::observe::Event;
use crate::strategy::over_issue;

/// However short the probes are set, this is between two of them.
const LOOK_AGAIN_MIN: Span = Span::from_millis(1);

/// The next step of the recovery.
enum Next {
    Sleep(Timestamp),
    Probe,
    Post,
    Over,
}

impl<G: Gate> Shared<G> {
    /// Starts the recovery task if none runs.
    pub(super) fn start_recovery(self: &Arc<Self>) {
        let is_idle = !std::mem::replace(&mut self.state().is_recovering, true);
        if is_idle && !self.spawn_recovery() {
            self.state().is_recovering = false;
        }
    }

    /// Spawns the recovery task, which ends with the degradation. It holds no gate while it sleeps.
    fn spawn_recovery(self: &Arc<Self>) -> bool {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return false };
        let (weak, clock) = (Arc::downgrade(self), Arc::clone(&self.clock));
        runtime.spawn(async move {
            while let Some(shared) = weak.upgrade() {
                match shared.next() {
                    Next::Over => return,
                    Next::Sleep(until) => {
                        drop(shared);
                        clock.sleep_until(until).await;
                    }
                    next => shared.take(next).await,
                }
            }
        });
        true
    }

    /// Takes the next step if one is due, for callers without a runtime.
    pub(super) async fn recover_now(&self) {
        match self.next() {
            Next::Sleep(_) | Next::Over => {}
            next => self.take(next).await,
        }
    }

    fn next(&self) -> Next {
        let now = self.clock.now();
        let mut state = self.state();
        // Further away than any pause is a clock that was set back.
        if now < state.look_at && state.look_at.since(now) <= self.options.probe_max.into() {
            return Next::Sleep(state.look_at);
        }
        if state.cut.is_some() {
            return Next::Probe;
        }
        if state.owes_anything() {
            return Next::Post;
        }
        (state.is_recovering, state.is_degraded) = (false, false);
        let began = state.began.take();
        drop(state);
        self.show();
        if let Some(began) = began {
            let ended = began.wall_at(self.clock.boot_time());
            self.observe(&Event::DegradedEnded { lasted: ended.since(began.wall) });
        }
        Next::Over
    }

    async fn take(&self, next: Next) {
        match next {
            Next::Probe => {
                self.probe().await;
            }
            Next::Post => drop(self.post_all().await),
            Next::Sleep(_) | Next::Over => {}
        }
    }

    /// Probes the store, one probe at a time. Returns whether it is back.
    pub(super) async fn probe(&self) -> bool {
        let Some((policy, subject)) = ({
            let mut state = self.state();
            let asked = if state.is_probing { None } else { state.failed.clone() };
            state.is_probing |= asked.is_some();
            asked
        }) else {
            return self.state().cut.is_none();
        };
        let probing = Probing(self);
        let failed = match self.gate.standing(&policy, &subject).await {
            Err(error) if may_be_of_store(&error) && !error.may_be_of_subject() => Some(error),
            // A store that only reads would fail the next caller.
            _ => self.touch(&policy).await.err(),
        };
        let mut state = self.state();
        let Some(error) = failed else {
            (state.cut, state.is_misconfigured) = (None, false);
            state.look_at = self.clock.now();
            return true;
        };
        state.probes = state.probes.saturating_add(1);
        state.look_at = self.look_again(state.probes);
        let is_news = state.note_misconfigured(&error);
        state.cut = Some(error.clone());
        drop(state);
        drop(probing);
        if is_news {
            self.observe(&Event::Misconfigured { error: &error });
        }
        false
    }

    /// Posts the debts of all subjects until the store fails. A subject that cannot be served is left for later.
    pub(super) async fn post_all(&self) -> Result<(), Error> {
        let owing = self.state().owing();
        let mut left = Ok(());
        for key in owing {
            let since = self.clock.now();
            let Err(error) = self.post(&key).await else { continue };
            // Whatever it was, not at once again.
            let again = self.look_again(1);
            self.state().look_at = again;
            let policy = self.state().account(&key).map(|account| account.policy().clone());
            let Some(policy) = policy.filter(|_| may_be_of_store(&error)) else {
                left = Err(error);
                continue;
            };
            match self.attribute(error, since, &policy).await {
                Ok(error) => {
                    self.fail(&error, (&policy, &key.1));
                    return Err(error);
                }
                Err(error) => left = Err(error),
            }
        }
        left
    }

    /// Posts the debts of `key` one after the other, or waits for the task that does. A caller that
    /// drops the future loses nothing.
    pub(super) async fn post(&self, key: &Key) -> Result<(), Error> {
        loop {
            let claim = self.state().claim(key);
            match claim {
                Claim::Mine => break,
                Claim::Idle => return Ok(()),
                Claim::Taken(posting) => {
                    let posted = posting.notified();
                    // It may have been over before we listened.
                    let now = self.state().account(key).and_then(|account| account.posting.clone());
                    if now.is_some_and(|now| Arc::ptr_eq(&now, &posting)) {
                        posted.await;
                    }
                }
            }
        }
        let _posting = Posting { shared: self, key };
        loop {
            let now = self.state().now(self.clock.as_ref());
            let Some((policy, job)) = self.state().next_job(key, now, &self.random) else {
                return Ok(());
            };
            let posted = match &job {
                Job::Settle(permit, actual) => self.gate.settle(permit, actual).await.map(|_| None),
                Job::Release(permit) => self.gate.release(permit).await.map(|_| None),
                Job::Close { limit, until } => {
                    let ask = Ask::new(&policy, key.1.as_str());
                    self.gate.close_until(&ask, limit, *until).await.map(|_| None)
                }
                Job::Charge { doubtful, id, ttl, costs, spent, before } => {
                    let before = match before {
                        Some(before) => Arc::clone(before),
                        None => self.standings_before(key, &policy).await,
                    };
                    let arrears = spent.arrears(now);
                    let ask = Ask::new(&policy, key.1.as_str()).with_costs(costs);
                    let ask = ask.with_arrears(arrears.clone()).id_for(id.as_str(), *ttl);
                    let posted = self.gate.charge(&ask).await;
                    if let Ok(permit) = &posted
                        && (doubtful.is_none() || has_grown(&before, &permit.limits))
                    {
                        self.report_over_issue(&policy, &before, spent, &arrears);
                    }
                    posted.map(Some)
                }
                Job::Joint { index, charge, .. } => {
                    let posted = match charge.posted() {
                        Some(permit) => Ok(permit),
                        None => self.gate.charge(&charge.ask).await.map(Some),
                    };
                    match &posted {
                        Err(error) if may_pass(error.kind()) => {}
                        Err(_) => charge.done(None),
                        Ok(permit) => charge.done(permit.clone()),
                    }
                    let part = |permit: &Permit| permit.parts().nth(*index).map(Cow::into_owned);
                    posted.map(|permit| permit.as_ref().and_then(part))
                }
            };
            match posted {
                Err(error) if may_pass(error.kind()) => return Err(error),
                posted => self.state().done(key, posted.ok().flatten()),
            }
        }
    }

    /// Reads the standings of `key` before it is charged, for the observer. If the store does not answer they stay unknown: later
    /// it may have the charge already.
    async fn standings_before(&self, key: &Key, policy: &Policy) -> Arc<[Standing]> {
        let limits = match &self.observer {
            Some(_) => self.gate.standing(policy, &key.1).await.unwrap_or_default(),
            None => Vec::new(),
        };
        let limits = Arc::from(limits);
        self.state().note_before(key, &limits);
        limits
    }

    /// Reports what was admitted beyond the limits, which stood at `before` without it: what of `arrears` has no room, and what
    /// of `spent` is no part of them because it would have put a bucket into debt.
    fn report_over_issue(
        &self,
        policy: &Policy,
        before: &[Standing],
        spent: &LocalSpending,
        arrears: &Arrears,
    ) {
        let Some(observer) = &self.observer else { return };
        for limit in before {
            let amount = arrears.sum_of(&limit.name) + spent.beyond(&limit.name);
            over_issue::observe(&**observer, policy, limit, limit.used + amount, amount);
        }
    }

    fn look_again(&self, probes: u32) -> Timestamp {
        self.clock.now() + self.pause(probes).max(LOOK_AGAIN_MIN)
    }
}

/// Whether a limit shows that something was charged between the two.
fn has_grown(before: &[Standing], after: &[Standing]) -> bool {
    before.iter().zip(after).any(|(before, after)| before.used < after.used)
}

/// Whether trying again may help. An expired or invalid call would be refused for ever.
const fn may_pass(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::Invalid
            | ErrorKind::Forbidden
            | ErrorKind::UnknownPolicy
            | ErrorKind::Conflict
            | ErrorKind::Expired
    )
}

/// Lets the next one probe, also if this one was dropped half way.
struct Probing<'a, G: Gate>(&'a Shared<G>);

impl<G: Gate> Drop for Probing<'_, G> {
    fn drop(&mut self) {
        self.0.state().is_probing = false;
    }
}

/// Lets the next one post, also if this one was dropped half way.
struct Posting<'a, G: Gate> {
    shared: &'a Shared<G>,
    key: &'a Key,
}

impl<G: Gate> Drop for Posting<'_, G> {
    fn drop(&mut self) {
        self.shared.state().unclaim(self.key);
    }
}
