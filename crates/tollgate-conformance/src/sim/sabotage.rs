//! Machines that are wrong in one way each. Seeds that do not find them are worth nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::gate::BoxFuture;
use tollgate::memory::KEYS_MAX_DEFAULT;
use tollgate::strategy::{Leased, LeasedOptions};
use tollgate::{Error, Gate, GateExt, Memory};
use tollgate_core::{Ask, Decision, Grant, Operation, Outcome, Standing};
use tollgate_sim::{Link, Machine, SimStore, World};

use crate::sabotage::{Forgetful, JointFault, Unjoined};

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Reads over the network, decides, and charges.
    ReadThenWrite,
    /// Sends an ask again under a new id.
    NewIds,
    /// Counts the life of a leased block from the answer to its lease: its clock leaves out how long that took.
    LifeFromAnswer,
    /// Gives back all that is left of a leased block, as if no time had restored any of it.
    FullCredit,
    /// Takes the whole limit for its share while the store is away.
    WholeShares,
    /// A store that leaves out the last charge of an ask, and says that it was charged.
    AllButTheLast,
}

impl Sabotage {
    pub(super) fn store(self, world: &World) -> SimStore {
        match self {
            Self::AllButTheLast => SimStore::around(world, |clock| {
                let memory = Memory::with(clock, KEYS_MAX_DEFAULT);
                Box::new(Unjoined::new(JointFault::ChargesAllButTheLast, memory))
            }),
            _ => SimStore::new(world),
        }
    }

    pub(super) fn gate(self, store: Link, machine: &Machine, world: &World) -> Arc<dyn Gate> {
        let waited = Arc::new(AtomicU64::new(0));
        let wrong = Wrong {
            fault: self,
            store,
            machine: machine.number(),
            world: world.clone(),
            sent: AtomicU64::new(0),
            waited: Arc::clone(&waited),
        };
        match self {
            // Whole shares are a setting of the fleet, and a wrong store has right machines.
            Self::ReadThenWrite | Self::NewIds | Self::WholeShares | Self::AllButTheLast => {
                Arc::new(wrong)
            }
            Self::LifeFromAnswer | Self::FullCredit => {
                let clock = Forgetful::new(machine.clock().clone(), waited);
                Arc::new(Leased::new(wrong, LeasedOptions::default(), Arc::new(clock)))
            }
        }
    }
}

#[derive(Debug)]
struct Wrong {
    fault: Sabotage,
    store: Link,
    machine: u64,
    world: World,
    sent: AtomicU64,
    /// How long leases took, in microseconds, for a clock that leaves it out.
    waited: Arc<AtomicU64>,
}

impl Wrong {
    async fn read_then_write(&self, ask: &Ask<'_>) -> Result<Decision, Error> {
        let standings = self.store.standing(ask.policy(), ask.subject()).await?;
        let costs = ask.costs();
        let fits =
            |standing: &Standing| costs.get(&standing.unit).unwrap_or(0) <= standing.remaining;
        if standings.iter().all(fits) {
            return Ok(Decision::Admitted(self.store.charge(ask).await?));
        }
        self.store.acquire(ask).await
    }

    async fn lease(&self, ask: &Ask<'_>) -> Result<Decision, Error> {
        let began = self.world.now();
        let answer = self.store.acquire(ask).await;
        if ask.id_text().is_some_and(|id| id.starts_with("lease-")) {
            let took = self.world.now().since(began).as_micros();
            self.waited.fetch_add(took, Ordering::Relaxed);
        }
        answer
    }

    /// Like a resend, but each time under another id.
    async fn resend(&self, ask: &Ask<'_>) -> Result<Decision, Error> {
        let mut last = None;
        for _ in 0..2 {
            let number = self.sent.fetch_add(1, Ordering::Relaxed);
            let again = ask.clone().id(format!("r{}-{number}", self.machine));
            match self.store.acquire(&again).await {
                Err(error) => last = Some(error),
                answer => return answer,
            }
        }
        match last {
            Some(error) => Err(error),
            None => self.store.acquire(ask).await,
        }
    }
}

impl Gate for Wrong {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        match operation {
            Operation::Acquire(ask) => Box::pin(async move {
                let decision = match self.fault {
                    Sabotage::ReadThenWrite => self.read_then_write(ask).await,
                    Sabotage::NewIds => self.resend(ask).await,
                    Sabotage::LifeFromAnswer => self.lease(ask).await,
                    Sabotage::FullCredit | Sabotage::WholeShares | Sabotage::AllButTheLast => {
                        self.store.acquire(ask).await
                    }
                };
                decision.map(Outcome::Decided)
            }),
            Operation::Settle(permit, actual) if self.fault == Sabotage::FullCredit => {
                Box::pin(async move {
                    // Charged after everything there is, so nothing was lower since.
                    let stamp = permit.grant().stamp + (1 << 52);
                    let grant = Grant { at: self.world.now(), stamp, ..*permit.grant() };
                    let permit = permit.clone().with_grant(grant);
                    self.store.run(Operation::Settle(&permit, actual)).await
                })
            }
            other => self.store.run(other),
        }
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
