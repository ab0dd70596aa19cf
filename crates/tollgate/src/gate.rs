//! The seam of the workspace: a [`Gate`] runs operations.
//!
//! Stores, strategies around a gate, observers around a gate and clients of a broker implement the same two methods, so
//! they stack. A wrapper matches the operations it cares about and passes the others on in one line. Callers use the
//! typed methods of [`GateExt`], which every gate has.
//!
//! # Check-then-act
//! Reading first and charging later admits too much:
//! ```text
//! if gate.standing(&policy, "p7").await?[0].remaining > 0 { call().await }   // two callers both see the last one
//! ```
//! [`GateExt::acquire`] decides and charges in one atomic step.

use std::fmt::{self, Debug};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tollgate_core::{
    Ask, Costs, Decision, Denial, Permit, Policy, Standing, Timestamp, check_subject,
};
pub use tollgate_core::{Operation, Outcome};

pub use crate::alternatives::Alternatives;

use crate::error::{Error, ErrorKind};

/// A boxed future. Gates are trait objects, so their futures are too.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Runs operations: a store, a wrapper around another gate, or the client of a broker.
///
/// A gate that keeps entries does to the entry of an operation what [`tollgate_core::apply`] does, at its own time and
/// atomically, and writes the change before it returns.
pub trait Gate: Debug + Send + Sync + 'static {
    /// Runs `operation`. A denial is an outcome; an error means that the gate could not decide.
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>>;

    /// Synchronous fast path. Returns `None`, without side effects, if deciding might block.
    fn try_run(&self, operation: &Operation<'_>) -> Option<Result<Outcome, Error>>;
}

/// A shared gate is a gate.
impl<G: Gate + ?Sized> Gate for Arc<G> {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        (**self).run(operation)
    }

    fn try_run(&self, operation: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        (**self).try_run(operation)
    }
}

/// The typed operations of every [`Gate`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tollgate::{Ask, Costs, Decision, GateExt, Limit, Memory, Policy, TokenBucket};
///
/// let policy = Policy::new("llm", [
///     Limit::new("rpm", "requests", TokenBucket::per_minute(60)),
///     Limit::new("tpm", "tokens", TokenBucket::per_minute(100_000)),
/// ])?;
/// let gate = Memory::new();
/// let ask = Ask::new(&policy, "project-7").cost("tokens", 3_750);
/// match gate.acquire(&ask).await? {
///     Decision::Admitted(permit) => {
///         let used = Costs::new().with("tokens", 3_100); // the actual cost of the call
///         gate.settle(&permit, &used).await?;
///     }
///     Decision::Denied(denial) => println!("wait {:?}", denial.retry_after()),
/// }
/// # Ok(()) }
/// ```
pub trait GateExt: Gate {
    /// Decides `ask`, and charges every limit or none. A denial charges nothing.
    ///
    /// This is where the synchronous fast path is probed: once, at the outermost gate.
    fn acquire(&self, ask: &Ask<'_>) -> impl Future<Output = Result<Decision, Error>> + Send {
        async move {
            let operation = Operation::Acquire(ask);
            match self.try_run(&operation) {
                Some(outcome) => decided(outcome),
                None => decided(self.run(operation).await),
            }
        }
    }

    /// Decides the first of `alternatives` that fits, in their order. If none does, the denial is that with the shortest
    /// wait. A charge that all of them have in common and that refuses ends the search, and so does an error.
    fn acquire_any(
        &self,
        alternatives: &Alternatives<'_>,
    ) -> impl Future<Output = Result<Decision, Error>> + Send {
        async move {
            let mut trial = alternatives.trial();
            while let Some(ask) = trial.next() {
                trial.add(self.acquire(ask).await);
            }
            trial.finish().map(|(_, decision)| decision)
        }
    }

    /// Replaces the estimate by the actual cost and frees slots. Idempotent; returns whether anything changed.
    fn settle(
        &self,
        permit: &Permit,
        actual: &Costs,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        async move { changed(self.run(Operation::Settle(permit, actual)).await?) }
    }

    /// Gives everything back that time has not given back already: the call was not made. Idempotent; returns whether
    /// anything changed.
    fn release(&self, permit: &Permit) -> impl Future<Output = Result<bool, Error>> + Send {
        async move { changed(self.run(Operation::Release(permit)).await?) }
    }

    /// Extends the slots of `permit` by another time to live.
    fn renew(&self, permit: &Permit) -> impl Future<Output = Result<Permit, Error>> + Send {
        async move { permitted(self.run(Operation::Renew(permit)).await?) }
    }

    /// Charges without deciding: debt, or arrears that are posted later. Takes no slots.
    fn charge(&self, ask: &Ask<'_>) -> impl Future<Output = Result<Permit, Error>> + Send {
        async move { permitted(self.run(Operation::Charge(ask)).await?) }
    }

    /// Closes one limit of the ask's policy and subject until a time, because the provider refused a call. Returns
    /// whether anything changed. The ask has one charge: a limit belongs to one policy and subject.
    fn close_until(
        &self,
        ask: &Ask<'_>,
        limit: &str,
        until: Timestamp,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        async move {
            ask.check()?;
            if ask.has_several_charges() {
                let text = "a limit is closed for one policy and subject; ask with one charge";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let (policy, subject) = (ask.policy(), ask.subject());
            changed(self.run(Operation::Close { policy, subject, limit, until }).await?)
        }
    }

    /// Returns the standing of `subject` on every limit of `policy`, consuming nothing.
    fn standing(
        &self,
        policy: &Policy,
        subject: &str,
    ) -> impl Future<Output = Result<Vec<Standing>, Error>> + Send {
        async move {
            check_subject(subject)?;
            let policy = policy.for_subject(subject);
            match self.run(Operation::Standing { policy, subject }).await? {
                Outcome::Standings(standings) => Ok(standings),
                other => Err(unexpected(&other)),
            }
        }
    }

    /// Deletes the entry of `subject`, for an operator. Returns whether there was one.
    fn reset(
        &self,
        policy: &Policy,
        subject: &str,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        async move {
            check_subject(subject)?;
            let policy = policy.for_subject(subject);
            changed(self.run(Operation::Reset { policy, subject }).await?)
        }
    }
}

impl<G: Gate + ?Sized> GateExt for G {}

/// Acquires without probing the fast path, for a gate whose own fast path gave up.
pub(crate) async fn decide(gate: &impl Gate, ask: &Ask<'_>) -> Result<Decision, Error> {
    decided(gate.run(Operation::Acquire(ask)).await)
}

#[inline]
fn decided(outcome: Result<Outcome, Error>) -> Result<Decision, Error> {
    match outcome {
        Ok(Outcome::Decided(decision)) => Ok(decision),
        Ok(other) => Err(unexpected(&other)),
        Err(error) => Err(error),
    }
}

fn changed(outcome: Outcome) -> Result<bool, Error> {
    match outcome {
        Outcome::Changed(changed) => Ok(changed),
        other => Err(unexpected(&other)),
    }
}

fn permitted(outcome: Outcome) -> Result<Permit, Error> {
    match outcome {
        Outcome::Permitted(permit) => Ok(permit),
        other => Err(unexpected(&other)),
    }
}

#[cold]
pub(crate) fn unexpected(outcome: &Outcome) -> Error {
    Error::new(ErrorKind::Corrupt, format!("unexpected outcome from the store: {outcome:?}"))
}

/// Why an ask got no permit.
#[derive(Debug)]
pub enum AcquireError {
    /// The gate denied it.
    Denied(Box<Denial>),
    /// The gate could not decide.
    Failed(Error),
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(denial) => write!(f, "{denial}"),
            Self::Failed(_) => f.write_str("the gate could not decide"),
        }
    }
}

impl std::error::Error for AcquireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Denied(_) => None,
            Self::Failed(error) => Some(error),
        }
    }
}

// A gate that is not a trait object cannot be stacked.
const _: fn(&dyn Gate) = |_| {};
