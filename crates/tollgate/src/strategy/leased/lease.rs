//! The leases of one desk: taking a block, giving it to those who wait, and what becomes of it when its life is over.

use std::sync::Arc;

use tokio::runtime::Handle;
use tollgate_core::{Decision, Policy, Span};

use super::block::Block;
use super::desk::{Desk, Plan};
use super::traffic::{Shared, Taken, spawn};
use crate::error::Error;
use crate::gate::Gate;

impl<G: Gate> Shared<G> {
    /// Begins to lease for a desk that says it is leasing. Without a runtime nothing is fetched ahead, and those who
    /// wait ask the store themselves.
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

/// The leases of one desk, until nobody waits. If it is dropped before, those who wait ask the store themselves.
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
            let id = format!("lease-{}", shared.chance.id());
            let now = shared.now();
            let plan =
                shared.book.with(&self.policy, &self.subject, |desk| desk.plan(ahead, id, now));
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
        shared.book.with(&self.policy, &self.subject, |desk| match answer {
            Ok(Taken::Block(permit, scarcity)) => {
                let number = shared.chance.draw();
                let block = Block::new(permit, number, plan.sent, shared.options.skew);
                born = Some((block.number(), block.life_left(now)));
                crowded = desk.oldest_ended(now).and_then(|number| desk.remove(number));
                desk.scarcity = scarcity;
                desk.add(block, plan, now);
            }
            Ok(Taken::Single(permit)) => {
                let decision = Decision::Admitted(permit.clone());
                unwanted = (!desk.serve_first(plan, decision)).then_some(permit);
            }
            Ok(Taken::Refused(scarcity)) => desk.refuse(plan, scarcity),
            // Who waited for it has waited for long enough to go to the store.
            Ok(Taken::Late) => {}
            Err(error) => {
                if error.is_unavailable() {
                    desk.keep_unanswered(plan.clone());
                }
                desk.fail(&error);
            }
        });
        let Ok(runtime) = Handle::try_current() else { return };
        if let Some((number, life)) = born {
            spawn(&shared.lives, &runtime, self.after(number, life));
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

    /// What becomes of the block called `number` when its life is over.
    fn after(&self, number: u32, life: Span) -> impl Future<Output = ()> + Send + 'static {
        let shared = Arc::clone(&self.shared);
        let (policy, subject) = (self.policy.clone(), Arc::clone(&self.subject));
        async move {
            shared.clock.sleep_until(shared.clock.now() + life).await;
            let ended = shared.book.with(&policy, &subject, |desk| desk.end(number));
            let block = if ended.unwrap_or(false) {
                let wait = shared.options.settle_wait;
                shared.clock.sleep_until(shared.clock.now() + wait).await;
                shared.book.with(&policy, &subject, |desk| desk.remove_kept(number))
            } else {
                shared.book.with(&policy, &subject, |desk| desk.remove(number))
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
            self.shared.book.with(&self.policy, &self.subject, Desk::abandon);
        }
    }
}
