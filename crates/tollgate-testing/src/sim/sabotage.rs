//! Machines that are wrong in one way each. Seeds that do not find them are worth nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Atomic, BoxFuture, Error, Gate};
use tollgate_core::{Ask, Costs, Decision, Permit, Policy, Standing, Timestamp};
use tollgate_sim::{Link, Machine, SimStore, World};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Reads over the network, and then charges what it decided by what it read.
    ReadThenWrite,
    /// Sends an ask again under a new id.
    NewIds,
}

impl Sabotage {
    pub(super) fn store(self, world: &World) -> SimStore {
        SimStore::new(world)
    }

    pub(super) fn gate(self, store: Atomic<Link>, machine: &Machine) -> Arc<dyn Gate> {
        Arc::new(Wrong { fault: self, store, machine: machine.number(), sent: AtomicU64::new(0) })
    }
}

#[derive(Debug)]
struct Wrong {
    fault: Sabotage,
    store: Atomic<Link>,
    machine: u64,
    sent: AtomicU64,
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
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(async move {
            match self.fault {
                Sabotage::ReadThenWrite => self.read_then_write(ask).await,
                Sabotage::NewIds => self.resend(ask).await,
            }
        })
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.store.settle(permit, actual)
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        self.store.release(permit)
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        self.store.renew(permit)
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        self.store.charge(ask)
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.store.close_until(ask, limit, until)
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        self.store.standing(policy, subject)
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.store.reset(policy, subject)
    }
}
