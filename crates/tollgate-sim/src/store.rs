//! The store of a simulated fleet: real decisions in memory, with outages, throttling and pauses.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::memory::KEYS_MAX_DEFAULT;
use tollgate::{Clock, Error, ErrorKind, Gate, Memory};
use tollgate_core::{JoinedOutcome, Operation, Outcome, Policy, Standing, Timestamp};

use crate::call::Call;
use crate::clock::SimClock;
use crate::world::World;

/// The condition of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It answers.
    Up,
    /// It refuses every connection.
    Down,
    /// It refuses for its own load.
    Throttled,
    /// It takes requests and answers them when this true time has come, as a stopped process does.
    PausedUntil(Timestamp),
}

/// An operation that the store ran, with its outcome.
#[derive(Debug)]
pub struct CompletedCall<'a> {
    /// The machine that sent it.
    pub from: u64,
    /// The call.
    pub call: &'a Call,
    /// Its outcome.
    pub outcome: &'a Result<Outcome, Error>,
    /// The time by the store's clock.
    pub now: Timestamp,
    /// The standings of each charge before, if the watcher asks for them.
    pub before: Vec<Vec<Standing>>,
    /// The standings of each charge after.
    pub after: Vec<Vec<Standing>>,
}

/// Receives every call that the store runs, in order.
pub trait Watch: Send + Sync + 'static {
    /// Returns whether to read the standings before and after each call.
    fn wants_standings(&self) -> bool;

    /// Receives a completed call.
    fn ran(&self, ran: &CompletedCall<'_>);
}

/// A store that can be down, throttled or paused. What it has written it keeps, as a durable store does.
pub struct SimStore {
    world: World,
    clock: SimClock,
    store: Box<dyn Gate>,
    watch: Option<Arc<dyn Watch>>,
    condition: Mutex<Condition>,
}

impl SimStore {
    /// A store in memory, on a clock that shows true time until it is set.
    #[must_use]
    pub fn new(world: &World) -> Self {
        Self::around(world, |clock| Box::new(Memory::with(clock, KEYS_MAX_DEFAULT)))
    }

    /// The store that `make` makes for the store's clock.
    #[must_use]
    pub fn around(world: &World, make: impl FnOnce(Arc<dyn Clock>) -> Box<dyn Gate>) -> Self {
        let clock = world.clock();
        Self {
            store: make(Arc::new(clock.clone())),
            world: world.clone(),
            clock,
            watch: None,
            condition: Mutex::new(Condition::Up),
        }
    }

    /// Reports every call to `watch`.
    #[must_use]
    pub fn watched(mut self, watch: Arc<dyn Watch>) -> Self {
        self.watch = Some(watch);
        self
    }

    /// The store's own clock.
    #[must_use]
    pub const fn clock(&self) -> &SimClock {
        &self.clock
    }

    /// Changes its condition.
    pub fn set(&self, condition: Condition) {
        self.world.note("store", 0, 0, || format!("is {condition:?}"));
        *self.condition() = condition;
    }

    /// Runs `call`, which came from machine `from`, unless the store is not up.
    pub(crate) async fn run(&self, from: u64, call: &Call) -> Result<Outcome, Error> {
        loop {
            let condition = *self.condition();
            match condition {
                Condition::Up => break,
                Condition::Down => {
                    return Err(Error::new(ErrorKind::Unavailable, "the store is down"));
                }
                Condition::Throttled => {
                    return Err(Error::new(ErrorKind::Throttled, "the store is overloaded"));
                }
                Condition::PausedUntil(at) if at <= self.world.now() => break,
                Condition::PausedUntil(at) => self.world.sleep(at.since(self.world.now())).await,
            }
        }
        let operation = call.operation();
        if self.watch.is_none() || !is_on_joint_permit(&operation) {
            return self.run_one(from, call).await;
        }
        // Stores settle, release and renew charge by charge, and the watcher sees what each of them changed.
        let mut joined = JoinedOutcome::default();
        for part in operation.parts()? {
            joined.add(self.run_one(from, &Call::from_operation(&part.operation())).await);
        }
        joined.finish()
    }

    async fn run_one(&self, from: u64, call: &Call) -> Result<Outcome, Error> {
        let operation = call.operation();
        let Some(watch) = &self.watch else { return self.store.run(operation).await };
        let looks = watch.wants_standings();
        let before = if looks { self.standings(operation).await } else { Vec::new() };
        let now = self.clock.now();
        let outcome = self.store.run(operation).await;
        let after = if looks { self.standings(operation).await } else { Vec::new() };
        watch.ran(&CompletedCall { from, call, outcome: &outcome, now, before, after });
        outcome
    }

    /// The standings of each charge of `operation`.
    async fn standings(&self, operation: Operation<'_>) -> Vec<Vec<Standing>> {
        let subjects: Vec<(&Policy, &str)> = match operation {
            Operation::Acquire(ask) | Operation::Charge(ask) => {
                ask.charges().map(|charge| (charge.policy(), charge.subject())).collect()
            }
            other => vec![(other.policy(), other.subject())],
        };
        let mut standings = Vec::new();
        for (policy, subject) in subjects {
            let read = Operation::Standing { policy, subject };
            standings.push(match self.store.run(read).await {
                Ok(Outcome::Standings(standings)) => standings,
                _ => Vec::new(),
            });
        }
        standings
    }

    fn condition(&self) -> MutexGuard<'_, Condition> {
        self.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_on_joint_permit(operation: &Operation<'_>) -> bool {
    let is_on_permit =
        matches!(operation, Operation::Settle(..) | Operation::Release(_) | Operation::Renew(_));
    is_on_permit && operation.is_joint()
}

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimStore").field("condition", &*self.condition()).finish_non_exhaustive()
    }
}
