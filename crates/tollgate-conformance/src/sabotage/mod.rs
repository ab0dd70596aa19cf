//! Gates with one defect each, which the suite must catch.

mod clock;
mod joint;

pub use clock::Forgetful;
pub use joint::{JointFault, Unjoined};

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate::gate::BoxFuture;
use tollgate::internal::Ids;
use tollgate::{Clock, Error, Gate};
use tollgate_core::{Ask, Change, Entry, Known, Operation, Outcome, Span, Timestamp};

/// The defect of a [`Broken`] store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None; the control.
    None,
    /// Reads, yields, and writes a decision on the old state.
    ReadThenWrite,
    /// Charges denied asks.
    ChargesRefusals,
    /// Forgets ids.
    ForgetsIds,
    /// Decides by a clock that runs a millisecond ahead of the one it promises by.
    HastyClock,
    /// Loses usage when the numbers of a policy change.
    FreshOnChange,
    /// Settles a permit twice.
    SettlesTwice,
}

impl Fault {
    /// Every defect.
    pub const ALL: [Self; 6] = [
        Self::ReadThenWrite,
        Self::ChargesRefusals,
        Self::ForgetsIds,
        Self::HastyClock,
        Self::FreshOnChange,
        Self::SettlesTwice,
    ];
}

type Entries = HashMap<(String, String), Entry>;

/// A simple store with one fault.
#[derive(Debug)]
pub struct Broken {
    fault: Fault,
    clock: Arc<dyn Clock>,
    entries: Mutex<Entries>,
    ids: Mutex<Ids>,
}

impl Broken {
    /// A store with `fault` on `clock`.
    pub fn new(fault: Fault, clock: Arc<dyn Clock>) -> Self {
        Self { fault, clock, entries: Mutex::default(), ids: Mutex::default() }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, entries: &Entries, operation: &Operation<'_>, now: Timestamp) -> Entry {
        let stored = entries.get(&key(operation));
        let forgotten = self.fault == Fault::FreshOnChange;
        match stored.filter(|entry| !forgotten || entry.policy() == operation.policy()) {
            Some(entry) => entry.clone(),
            None => Entry::fresh(operation.policy(), now),
        }
    }

    /// Runs `operation` on `entry` with the defect.
    fn apply(
        &self,
        operation: &Operation<'_>,
        entry: &mut Entry,
        now: Timestamp,
    ) -> Result<(Outcome, Change), tollgate_core::Error> {
        let before = entry.clone();
        let stripped = match operation {
            Operation::Acquire(ask) if self.fault == Fault::ForgetsIds => {
                Some(Ask::new(ask.policy(), ask.subject()).with_costs(&ask.costs()))
            }
            _ => None,
        };
        let operation = stripped.as_ref().map_or(*operation, Operation::Acquire);
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let (outcome, change) = ids.apply(&operation, entry, now)?;
        match (&operation, &outcome) {
            (Operation::Acquire(ask), Outcome::Decided(decision))
                if self.fault == Fault::ChargesRefusals && !decision.is_admitted() =>
            {
                tollgate_core::charge(entry, now, ask, Known::New)?;
                Ok((outcome, Change::Entry))
            }
            (Operation::Settle(permit, actual), _)
                if self.fault == Fault::SettlesTwice && *entry == before =>
            {
                let again = Ask::new(permit.policy(), permit.subject()).with_costs(actual);
                tollgate_core::charge(entry, now, &again, Known::New)?;
                Ok((outcome, Change::Entry))
            }
            _ => Ok((outcome, change)),
        }
    }
}

fn key(operation: &Operation<'_>) -> (String, String) {
    (operation.policy().name().to_owned(), operation.subject().to_owned())
}

fn store(entries: &mut Entries, operation: &Operation<'_>, entry: Entry, change: Change) {
    if change == Change::Entry {
        entries.insert(key(operation), entry);
    }
}

impl Gate for Broken {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            let mut now = self.clock.now();
            if self.fault == Fault::HastyClock {
                now = now + Span::from_millis(1);
            }
            if self.fault == Fault::ReadThenWrite {
                let mut entry = self.load(&self.entries(), &operation, now);
                tokio::task::yield_now().await;
                let (outcome, change) = self.apply(&operation, &mut entry, now)?;
                store(&mut self.entries(), &operation, entry, change);
                return Ok(outcome);
            }
            let mut entries = self.entries();
            let mut entry = self.load(&entries, &operation, now);
            let (outcome, change) = self.apply(&operation, &mut entry, now)?;
            store(&mut entries, &operation, entry, change);
            Ok(outcome)
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
