//! The leases of one subject: takes blocks, serves the waiters from them, and ends them.

use std::sync::Arc;

use tokio::runtime::Handle;
use tollgate_core::{Decision, Policy, Span};

use super::block::Block;
use super::subject_state::{Plan, SubjectState};
use super::worker::{Shared, Taken, spawn};
use crate::error::Error;
use crate::gate::{Gate, GateExt};

impl<G: Gate> Shared<G> {
    /// Begins to lease for a state that is marked as leasing. Without a runtime nothing is fetched ahead, and waiters ask the store
    /// themselves.
    pub(super) fn begin_lease(self: &Arc<Self>, policy: &Policy, subject: &str, ahead: bool) {
        let lease = Lease {
            shared: Arc::clone(self),
            policy: policy.clone(),
            subject: subject.into(),
            over: false,
        };
        if let Ok(runtime) = Handle::try_current() {
            spawn(&self.leases, &runtime, lease.run(ahead));
        }
    }
}

/// The leases of one subject, until no ask waits. If it is dropped before, the waiters ask the store themselves.
struct Lease<G: Gate> {
    shared: Arc<Shared<G>>,
    policy: Policy,
    subject: Arc<str>,
    over: bool,
}

impl<G: Gate> Lease<G> {
    async fn run(mut self, mut ahead: bool) {
        let shared = Arc::clone(&self.shared);
        loop {
            let id = format!("lease-{}", shared.random.id());
            let now = shared.now();
            let plan = shared
                .subjects
                .with(&self.policy, &self.subject, |state| state.plan(ahead, id, now));
            let Some(plan) = plan.flatten() else { break };
            ahead = false;
            let answer = shared.take(&plan).await;
            self.deliver(&plan, answer);
        }
        self.over = true;
    }

    fn deliver(&self, plan: &Plan, answer: Result<Taken, Error>) {
        let (shared, now) = (&self.shared, self.shared.now());
        let (mut born, mut unwanted, mut crowded) = (None, None, None);
        shared.subjects.with(&self.policy, &self.subject, |state| match answer {
            Ok(Taken::Block(permit, cached_denial)) => {
                let number = shared.random.draw();
                let block = Block::new(permit, number, plan.sent, shared.options.skew.into());
                born = Some((block.number(), block.life_left(now)));
                crowded = state.oldest_ended(now).and_then(|number| state.remove(number));
                state.cached_denial = cached_denial;
                state.add(block, plan, now);
            }
            Ok(Taken::Single(permit)) => {
                let decision = Decision::Admitted(permit.clone());
                unwanted = (!state.serve_first(plan, decision)).then_some(permit);
            }
            Ok(Taken::Refused(cached_denial)) => state.refuse(plan, cached_denial),
            // Its waiters have waited long enough to go to the store.
            Ok(Taken::Late) => {}
            Err(error) => {
                if error.is_unavailable() {
                    state.keep_unanswered(plan.clone());
                }
                state.fail(&error);
            }
        });
        let Ok(runtime) = Handle::try_current() else { return };
        if let Some((number, life)) = born {
            spawn(&shared.lives, &runtime, self.end_after(number, life));
        }
        if let Some(block) = crowded {
            shared.begin_return(block);
        }
        if let Some(permit) = unwanted {
            let shared = Arc::clone(shared);
            spawn(&self.shared.returns, &runtime, async move {
                shared.gate.release(&permit).await.is_ok()
            });
        }
    }

    /// Ends the block called `number` after `life`, and returns its rest to the store.
    fn end_after(&self, number: u32, life: Span) -> impl Future<Output = ()> + Send + 'static {
        let shared = Arc::clone(&self.shared);
        let (policy, subject) = (self.policy.clone(), Arc::clone(&self.subject));
        async move {
            shared.clock.sleep_until(shared.clock.now() + life).await;
            let ended = shared.subjects.with(&policy, &subject, |state| state.end(number));
            let block = if ended.unwrap_or(false) {
                let wait = shared.options.settle_wait;
                shared.clock.sleep_until(shared.clock.now() + wait).await;
                shared.subjects.with(&policy, &subject, |state| state.remove_kept(number))
            } else {
                shared.subjects.with(&policy, &subject, |state| state.remove(number))
            };
            if let Some(block) = block.flatten() {
                shared.begin_return(block);
            }
        }
    }
}

impl<G: Gate> Drop for Lease<G> {
    fn drop(&mut self) {
        if !self.over {
            self.shared.subjects.with(&self.policy, &self.subject, SubjectState::abandon);
        }
    }
}
