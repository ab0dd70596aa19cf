//! The traffic with the store: leases, one at a time per subject, and returns.
//!
//! Everything here runs in tasks of its own, so that a caller that goes away leaves no lease half done.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tollgate_core::{Amounts, Ask, Backoff, Decision, Denial, Permit, Policy, Span};

use super::LeasedOptions;
use super::block::{Block, Moment};
use super::book::Book;
use super::desk::{Plan, REMAINING_PARTS, Scarcity};
use crate::clock::Clock;
use crate::error::Error;
use crate::gate::Gate;
use crate::observe::Event;
use crate::strategy::chance::Chance;
use crate::sync::{Mutex, lock};

/// How many blocks are given back at once when everything ends.
const RETURNS_MAX: usize = 64;

/// How often a return is sent. After that time gives the tokens back.
const RETURN_TRIES: u32 = 4;

/// Between two tries of a return.
const RETURN_BACKOFF: Backoff = Backoff {
    base: Span::from_millis(100),
    max: Span::from_secs(2),
    jitter_low: 500,
    jitter_high: 1_500,
    clamp: false,
};

/// What the gate and its tasks share.
#[derive(Debug)]
pub(super) struct Shared<G> {
    pub(super) gate: G,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) options: LeasedOptions,
    pub(super) book: Book,
    pub(super) chance: Chance,
    leases: Mutex<JoinSet<()>>,
    /// One for each block, asleep until its end.
    lives: Mutex<JoinSet<()>>,
    /// Each says whether the store was told, or did not need to be.
    returns: Mutex<JoinSet<bool>>,
}

/// What a lease came to.
enum Taken {
    Block(Permit, Option<Scarcity>),
    /// The permit of exactly what the first in line asked for: it may have it as it is.
    Single(Permit),
    Refused(Scarcity),
}

impl<G: Gate> Shared<G> {
    pub(super) fn new(gate: G, options: LeasedOptions, clock: Arc<dyn Clock>) -> Self {
        let book = Book::new(options.subjects_max);
        let [leases, lives] = std::array::from_fn(|_| Mutex::new(JoinSet::new()));
        let returns = Mutex::new(JoinSet::new());
        let chance = Chance::default();
        Self { gate, clock, options, book, chance, leases, lives, returns }
    }

    #[inline]
    pub(super) fn now(&self) -> Moment {
        let (wall, passed) = self.clock.both();
        Moment { passed, wall }
    }

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

    /// Gives back in a task of its own what is left of `block`.
    pub(super) fn begin_return(self: &Arc<Self>, block: Block) {
        if let Ok(runtime) = Handle::try_current() {
            let shared = Arc::clone(self);
            spawn(&self.returns, &runtime, async move { shared.give_back(&block).await });
        }
    }

    /// Waits for the leases under way, gives back every block, and ends every task. Says how many blocks the store did not
    /// take.
    pub(super) async fn shut_down(self: &Arc<Self>) -> usize {
        self.book.close();
        let mut leases = std::mem::take(&mut *lock(&self.leases));
        while leases.join_next().await.is_some() {}
        lock(&self.lives).abort_all();
        let (mut blocks, mut unreturned) = (self.book.drain().into_iter(), 0);
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

    /// Tells the store what `block` really cost, if that makes any room. Says whether the store knows.
    async fn give_back(&self, block: &Block) -> bool {
        let owed = block.owed(self.now());
        if let Some(observer) = &self.options.observer {
            let (policy, taken, unspent) = (block.permit().policy(), block.taken(), block.left());
            let posted = owed.is_some();
            observer.observe(&Event::BlockReturned { policy, taken, unspent, posted });
        }
        let Some(actual) = owed else { return true };
        for attempt in 0..RETURN_TRIES {
            match self.gate.settle(block.permit(), &actual).await {
                Err(error) if error.is_unavailable() => {
                    let delay = RETURN_BACKOFF.delay(attempt, self.chance.draw());
                    self.clock.sleep_until(self.clock.now() + delay).await;
                }
                _ => return true,
            }
        }
        false
    }

    /// One question to the store, sent again with the same id if nobody answers.
    async fn ask(&self, plan: &Plan, amounts: &Amounts, id: &str) -> Result<Decision, Error> {
        let ttl = plan.policy.block_ttl();
        let ask = Ask::new(&plan.policy, &*plan.subject)
            .with_costs(&plan.policy.costs(amounts))
            .id_for(id, ttl.min(tollgate_core::bounds::ID_HORIZON));
        let mut tries = 1;
        let answer = loop {
            match self.gate.acquire(&ask).await {
                Err(error) if error.is_unavailable() && tries < self.options.lease_tries => {
                    tries += 1;
                }
                answer => break answer,
            }
        };
        if let (Some(observer), Ok(decision)) = (&self.options.observer, &answer) {
            let (policy, admitted) = (&plan.policy, decision.is_admitted());
            observer.observe(&Event::BlockAsked { policy, amounts, admitted });
        }
        answer
    }

    /// Takes a block as planned, or a smaller one, down to what the first in line asks for.
    async fn take(&self, plan: &Plan) -> Result<Taken, Error> {
        let whole = match self.ask(plan, &plan.amounts, &plan.id).await? {
            Decision::Admitted(permit) => return Ok(taken(plan, &plan.amounts, permit, None)),
            Decision::Denied(denial) => denial,
        };
        // When a whole block is due so soon, one question per lull gets more out of the store than many crumbs.
        let due = whole.retry_after().unwrap_or(Span::from_micros(u64::MAX));
        let ttl = plan.policy.block_ttl();
        let promised = plan.promised.filter(|promised| whole.decided_at < *promised);
        let lull = promised.map_or(ttl, |promised| ttl.min(promised.since(whole.decided_at)));
        let scarce = |denial, lull, exact| Scarcity { denial, asked: plan.sent, lull, exact };
        let Some(need) = plan.need.filter(|need| *need != plan.amounts) else {
            // Where no whole block is due, those who come next may still find room for themselves.
            let lull = if plan.need.is_none() && due <= ttl { lull } else { Span::ZERO };
            return Ok(Taken::Refused(scarce(whole, lull, plan.need)));
        };
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
        let id = format!("{}-one", plan.id);
        Ok(match self.ask(plan, &need, &id).await? {
            Decision::Admitted(permit) => Taken::Single(permit),
            Decision::Denied(denial) => Taken::Refused(scarce(denial, Span::ZERO, Some(need))),
        })
    }
}

fn taken(plan: &Plan, amounts: &Amounts, permit: Permit, scarcity: Option<Scarcity>) -> Taken {
    if plan.need == Some(*amounts) {
        return Taken::Single(permit);
    }
    Taken::Block(permit, scarcity)
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

fn spawn<T: Send + 'static>(
    tasks: &Mutex<JoinSet<T>>,
    runtime: &Handle,
    task: impl Future<Output = T> + Send + 'static,
) {
    let mut tasks = lock(tasks);
    while tasks.try_join_next().is_some() {}
    tasks.spawn_on(task, runtime);
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
            let waits = |desk: &mut super::desk::Desk| {
                let mut blocks = desk.blocks.iter();
                blocks.any(|block| block.number() == number && block.awaits_settles())
            };
            if shared.book.with(&policy, &subject, waits).unwrap_or(false) {
                let wait = shared.options.settle_wait;
                shared.clock.sleep_until(shared.clock.now() + wait).await;
            }
            let block = shared.book.with(&policy, &subject, |desk| desk.remove(number)).flatten();
            if let Some(block) = block {
                shared.begin_return(block);
            }
        }
    }
}

impl<G: Gate> Drop for Lease<G> {
    fn drop(&mut self) {
        if !self.over {
            self.shared.book.with(&self.policy, &self.subject, super::desk::Desk::abandon);
        }
    }
}
