//! Leases blocks from the store and returns the rest of them.
//!
//! Everything here runs in tasks of its own, so that a caller that goes away leaves no lease half done.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tollgate_core::{Amounts, Ask, Backoff, Decision, Denial, Permit, Span};

use super::LeasedOptions;
use super::block::{Block, Moment};
use super::cached_denial::CachedDenial;
use super::subject_map::SubjectMap;
use super::subject_state::{Plan, REMAINING_PARTS};
use crate::clock::Clock;
use crate::error::Error;
use crate::gate::{Gate, GateExt};
use crate::observe::{Event, Observer};
use crate::retry::{ErrorClass, Retry, Stopped};
use crate::strategy::random::RandomSource;
use crate::sync::{Mutex, lock};

/// How many blocks are given back at once when everything ends.
const RETURNS_MAX: usize = 64;

/// Retries of a return. After that, time gives the tokens back.
static RETURN_RETRY: Retry = Retry {
    max_retries: 3,
    backoff: Backoff {
        base: Span::from_millis(100),
        max: Span::from_secs(2),
        jitter_low: 500,
        jitter_high: 1_500,
        clamp: false,
    },
    deadline: None,
    budget: None,
};

/// The state that the gate and its tasks share.
#[derive(Debug)]
pub(super) struct Shared<G> {
    pub(super) gate: G,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) options: LeasedOptions,
    pub(super) observer: Option<Arc<dyn Observer>>,
    pub(super) subjects: SubjectMap,
    pub(super) random: RandomSource,
    pub(super) leases: Mutex<JoinSet<()>>,
    /// The tasks that end blocks.
    pub(super) lives: Mutex<JoinSet<()>>,
    /// Each returns whether the store knows of the return, or need not.
    pub(super) returns: Mutex<JoinSet<bool>>,
}

/// The result of a lease.
pub(super) enum Taken {
    Block(Permit, Option<CachedDenial>),
    /// The permit of exactly what the first in line asked for: it may have it as it is.
    Single(Permit),
    Refused(CachedDenial),
    /// The store took longer than the life of a block.
    Late,
}

impl<G: Gate> Shared<G> {
    pub(super) fn new(gate: G, options: LeasedOptions, clock: Arc<dyn Clock>) -> Self {
        let subjects = SubjectMap::new(options.subjects_max);
        let [leases, lives] = std::array::from_fn(|_| Mutex::new(JoinSet::new()));
        let returns = Mutex::new(JoinSet::new());
        let random = RandomSource::default();
        Self { gate, clock, options, observer: None, subjects, random, leases, lives, returns }
    }

    #[inline]
    pub(super) fn now(&self) -> Moment {
        let (wall, passed) = self.clock.both();
        Moment { passed, wall }
    }

    /// Returns the rest of `block` in a task of its own.
    pub(super) fn begin_return(self: &Arc<Self>, block: Block) {
        if let Ok(runtime) = Handle::try_current() {
            let shared = Arc::clone(self);
            spawn(&self.returns, &runtime, async move { shared.give_back(&block).await });
        }
    }

    /// Waits for the leases under way, gives back every block, and ends every task. Returns how many blocks the store did not
    /// take.
    pub(super) async fn shut_down(self: &Arc<Self>) -> usize {
        self.subjects.close();
        let mut leases = std::mem::take(&mut *lock(&self.leases));
        while leases.join_next().await.is_some() {}
        lock(&self.lives).abort_all();
        let (mut blocks, mut unreturned) = (self.subjects.drain().into_iter(), 0);
        loop {
            let mut returns = std::mem::take(&mut *lock(&self.returns));
            for block in blocks.by_ref().take(RETURNS_MAX) {
                let shared = Arc::clone(self);
                returns.spawn(async move { shared.give_back(&block).await });
            }
            if returns.is_empty() {
                return unreturned;
            }
            while let Some(returned) = returns.join_next().await {
                unreturned += usize::from(!returned.unwrap_or(false));
            }
        }
    }

    pub(super) fn abort(&self) {
        for tasks in [&self.leases, &self.lives] {
            lock(tasks).abort_all();
        }
        lock(&self.returns).abort_all();
    }

    /// Settles `block` at the store, if that makes any room. Returns whether the store knows.
    async fn give_back(&self, block: &Block) -> bool {
        let owed = block.owed(self.now());
        if let Some(observer) = &self.observer {
            let (policy, taken, unspent) = (block.permit().policy(), block.taken(), block.left());
            let posted = owed.is_some();
            observer.observe(&Event::BlockReturned { policy, taken, unspent, posted });
        }
        let Some(actual) = owed else { return true };
        let settle = |_| self.gate.settle(block.permit(), &actual);
        let judge = |error: &Error| match error.is_unavailable() {
            true => ErrorClass::Retryable,
            false => ErrorClass::Fatal,
        };
        let settled = RETURN_RETRY.run_with(&*self.clock, || self.random.draw(), settle, judge);
        settled.await.map_or_else(|error| error.stopped == Stopped::Fatal, |_| true)
    }

    /// Asks the store for a block, again with the same id if it does not answer.
    async fn ask(&self, plan: &Plan, amounts: &Amounts, id: &str) -> Result<Decision, Error> {
        let ttl = plan.policy.block_ttl();
        let ask = Ask::new(&plan.policy, &*plan.subject)
            .with_costs(&plan.policy.costs(amounts))
            .id_for(id, ttl.min(tollgate_core::bounds::ID_HORIZON));
        // Not `Retry`: there is no pause, and the time that a block has left ends the attempts.
        let mut tries = 1;
        let answer = loop {
            match self.gate.acquire(&ask).await {
                // Later the store may have forgotten the id, and the block would be over.
                Err(error)
                    if error.is_unavailable()
                        && tries < self.options.lease_tries
                        && !self.is_late(plan) =>
                {
                    tries += 1;
                }
                answer => break answer,
            }
        };
        if let (Some(observer), Ok(decision)) = (&self.observer, &answer) {
            let (policy, admitted) = (&plan.policy, decision.is_admitted());
            observer.observe(&Event::BlockAsked { policy, amounts, admitted });
        }
        answer
    }

    /// Whether a block for `plan` would be over by now.
    fn is_late(&self, plan: &Plan) -> bool {
        plan.policy.block_ttl() <= self.now().since(plan.sent)
    }

    /// Takes a block as planned, or a smaller one, down to what the first in line asks for.
    pub(super) async fn take(&self, plan: &Plan) -> Result<Taken, Error> {
        let whole = match self.ask(plan, &plan.amounts, &plan.id).await? {
            Decision::Admitted(permit) => return Ok(taken(plan, &plan.amounts, permit, None)),
            Decision::Denied(denial) => denial,
        };
        // When a whole block is due so soon, one question per lull gets more out of the store than many crumbs.
        let due = whole.retry_after().unwrap_or(Span::from_micros(u64::MAX));
        let ttl = plan.policy.block_ttl();
        let promised = plan.promised.filter(|promised| whole.decided_at < *promised);
        let lull = promised.map_or(ttl, |promised| ttl.min(promised.since(whole.decided_at)));
        let scarce = |denial, lull, exact| CachedDenial { denial, asked: plan.sent, lull, exact };
        let Some(need) = plan.need.filter(|need| *need != plan.amounts) else {
            // Where no whole block is due, those who come next may still find room for themselves.
            let lull = if plan.need.is_none() && due <= ttl { lull } else { Span::ZERO };
            return Ok(Taken::Refused(scarce(whole, lull, plan.need)));
        };
        if self.is_late(plan) {
            return Ok(Taken::Late);
        }
        if let Some(fitted) = fit(plan, &need, &whole) {
            let id = format!("{}-fit", plan.id);
            if let Decision::Admitted(permit) = self.ask(plan, &fitted, &id).await? {
                let pause = if due <= ttl.plus(ttl) { lull } else { Span::ZERO };
                return Ok(taken(plan, &fitted, permit, Some(scarce(whole, pause, None))));
            }
        }
        if due <= ttl {
            return Ok(Taken::Refused(scarce(whole, lull, None)));
        }
        if self.is_late(plan) {
            return Ok(Taken::Late);
        }
        let id = format!("{}-one", plan.id);
        Ok(match self.ask(plan, &need, &id).await? {
            Decision::Admitted(permit) => Taken::Single(permit),
            Decision::Denied(denial) => Taken::Refused(scarce(denial, Span::ZERO, Some(need))),
        })
    }
}

fn taken(
    plan: &Plan,
    amounts: &Amounts,
    permit: Permit,
    cached_denial: Option<CachedDenial>,
) -> Taken {
    if plan.need == Some(*amounts) {
        return Taken::Single(permit);
    }
    Taken::Block(permit, cached_denial)
}

/// A part of what remains by `denial`, if the first in line finds room in what remains.
fn fit(plan: &Plan, need: &Amounts, denial: &Denial) -> Option<Amounts> {
    let remaining =
        plan.policy.least_by_unit(|limit| denial.limits.get(limit).map_or(0, |at| at.remaining));
    remaining.covers(need).then(|| {
        Amounts::from_fn(|unit| {
            let part = remaining.at(unit) / REMAINING_PARTS;
            plan.amounts.at(unit).min(part).max(need.at(unit))
        })
    })
}

pub(super) fn spawn<T: Send + 'static>(
    tasks: &Mutex<JoinSet<T>>,
    runtime: &Handle,
    task: impl Future<Output = T> + Send + 'static,
) {
    let mut tasks = lock(tasks);
    while tasks.try_join_next().is_some() {}
    tasks.spawn_on(task, runtime);
}
