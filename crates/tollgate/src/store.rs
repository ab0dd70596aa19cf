//! The smaller seam: a store that can run one operation on one entry atomically, and the gate around it.
//!
//! Memory and embedded databases can run the pure function of the core where their state is, so they implement
//! [`Store`], and every store is a gate. A store that decides elsewhere (a script, an expression, a statement) may do the
//! same, or implement [`Gate`] directly.

use std::fmt::Debug;

use tollgate_core::{
    Ask, Costs, Decision, Operation, Outcome, Permit, Policy, Standing, Timestamp,
};

use crate::error::{Error, ErrorKind};
use crate::gate::{BoxFuture, Gate};

/// Keeps entries under (policy name, subject) and changes one of them atomically.
pub trait Store: Debug + Send + Sync + 'static {
    /// Does what [`tollgate_core::apply`] does to the entry that `operation` means, at the store's own time, such that no
    /// other operation on the same entry comes between; writes what it changed before it answers.
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>>;

    /// The same from a store that never waits, without a future; nothing from any other, which has done nothing then.
    fn run_at_once(&self, operation: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        let _ = operation;
        None
    }
}

/// A store as a gate: the strategy that asks the store every time, and so is exact.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tollgate::{Ask, Atomic, Costs, Decision, Gate, Limit, Memory, Policy, TokenBucket};
///
/// let policy = Policy::new("llm", [
///     Limit::new("rpm", "requests", TokenBucket::per_minute(60)),
///     Limit::new("tpm", "tokens", TokenBucket::per_minute(100_000)),
/// ])?;
/// let gate = Atomic::new(Memory::new());
/// let ask = Ask::new(&policy, "project-7").cost("tokens", 3_750);
/// match gate.acquire(&ask).await? {
///     Decision::Admitted(permit) => {
///         let used = Costs::new().with("tokens", 3_100); // what the call really took
///         gate.settle(&permit, &used).await?;
///     }
///     Decision::Denied(denial) => println!("wait {:?}", denial.retry_after()),
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Atomic<S>(S);

impl<S: Store> Atomic<S> {
    /// The gate around `store`.
    pub const fn new(store: S) -> Self {
        Self(store)
    }

    /// The store inside.
    pub const fn store(&self) -> &S {
        &self.0
    }
}

impl<S: Store> Store for Atomic<S> {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        self.0.run(operation)
    }

    fn run_at_once(&self, operation: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        self.0.run_at_once(operation)
    }
}

impl<S: Store> Gate for S {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(async move {
            let operation = Operation::Acquire(ask);
            decided(match self.run_at_once(&operation) {
                Some(outcome) => outcome,
                None => self.run(operation).await,
            })
        })
    }

    fn acquire_at_once(&self, ask: &Ask<'_>) -> Option<Result<Decision, Error>> {
        self.run_at_once(&Operation::Acquire(ask)).map(decided)
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        done(self, Operation::Settle(permit, actual))
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        done(self, Operation::Release(permit))
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        permitted(self, Operation::Renew(permit))
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        permitted(self, Operation::Charge(ask))
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        let (policy, subject) = (ask.policy(), ask.subject());
        done(self, Operation::Close { policy, subject, limit, until })
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        Box::pin(async move {
            let policy = policy.for_subject(subject);
            match self.run(Operation::Standing { policy, subject }).await? {
                Outcome::Stands(standings) => Ok(standings),
                other => Err(unexpected(&other)),
            }
        })
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        done(self, Operation::Reset { policy, subject })
    }
}

fn decided(outcome: Result<Outcome, Error>) -> Result<Decision, Error> {
    match outcome? {
        Outcome::Decided(decision) => Ok(decision),
        other => Err(unexpected(&other)),
    }
}

fn done<'a>(store: &'a impl Store, operation: Operation<'a>) -> BoxFuture<'a, Result<bool, Error>> {
    Box::pin(async move {
        match store.run(operation).await? {
            Outcome::Settled(done) | Outcome::Done(done) => Ok(done),
            other => Err(unexpected(&other)),
        }
    })
}

fn permitted<'a>(
    store: &'a impl Store,
    operation: Operation<'a>,
) -> BoxFuture<'a, Result<Permit, Error>> {
    Box::pin(async move {
        match store.run(operation).await? {
            Outcome::Permitted(permit) => Ok(permit),
            other => Err(unexpected(&other)),
        }
    })
}

fn unexpected(outcome: &Outcome) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the store answered another question: {outcome:?}"))
}
