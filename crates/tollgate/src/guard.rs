//! A permit that gives itself back unless it is settled.

use std::sync::Arc;
use std::task::{Context, Waker};

use tollgate_core::{Ask, Costs, Decision, Permit};

use crate::error::Error;
use crate::gate::{AcquireError, BoxFuture, Gate, GateExt};
use crate::internal::edge;

/// Holds a permit and releases it when dropped: the call was not made, or failed before it cost anything.
///
/// A gate in memory has released it when `drop` returns. A gate behind a network finishes in a task on the current tokio
/// runtime, or on a thread of its own where there is none. If that fails, slots expire by themselves and the rest stays charged,
/// which errs to the strict side. Call [`Guard::release`] or [`Guard::settle`] to see errors.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use tollgate::{Ask, Concurrency, Gate, GateExt, Guard, Limit, Memory, Policy, Span};
///
/// let gate: Arc<dyn Gate> = Arc::new(Memory::new());
/// let policy = Policy::new("jobs", [Limit::new("slots", "jobs", Concurrency::new(2, Span::from_mins(5)))])?;
/// let ask = Ask::new(&policy, "region-1").cost("jobs", 1);
/// {
///     let _slot = Guard::acquire(&gate, &ask).await?;
///     assert_eq!(gate.standing(&policy, "region-1").await?[0].remaining, 1);
/// }
/// assert_eq!(gate.standing(&policy, "region-1").await?[0].remaining, 2);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Guard {
    gate: Arc<dyn Gate>,
    permit: Option<Permit>,
}

impl Guard {
    /// Acquires `ask` at `gate` and guards the permit.
    ///
    /// # Errors
    /// [`AcquireError::Denied`], or [`AcquireError::Failed`] if the gate could not decide.
    pub async fn acquire(gate: &Arc<dyn Gate>, ask: &Ask<'_>) -> Result<Self, AcquireError> {
        match gate.acquire(ask).await.map_err(AcquireError::Failed)? {
            Decision::Admitted(permit) => Ok(Self::new(gate, permit)),
            Decision::Denied(denial) => Err(AcquireError::Denied(Box::new(denial))),
        }
    }

    /// Guards a permit that `gate` gave.
    #[must_use]
    pub fn new(gate: &Arc<dyn Gate>, permit: Permit) -> Self {
        Self { gate: Arc::clone(gate), permit: Some(permit) }
    }

    /// Returns the permit; `None` after it was taken.
    #[must_use]
    pub const fn permit(&self) -> Option<&Permit> {
        self.permit.as_ref()
    }

    /// Settles the permit: the call was made and cost `actual`.
    ///
    /// # Errors
    /// Whatever the gate could not do; the permit is not released then.
    pub async fn settle(mut self, actual: &Costs) -> Result<(), Error> {
        if let Some(permit) = self.permit.take() {
            self.gate.settle(&permit, actual).await?;
        }
        Ok(())
    }

    /// Releases the permit: the call was not made.
    ///
    /// # Errors
    /// Errors of the gate.
    pub async fn release(mut self) -> Result<(), Error> {
        if let Some(permit) = self.permit.take() {
            self.gate.release(&permit).await?;
        }
        Ok(())
    }

    /// Takes the permit out, to be settled elsewhere.
    #[must_use]
    pub fn into_permit(mut self) -> Option<Permit> {
        self.permit.take()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let gate = Arc::clone(&self.gate);
        let mut release: BoxFuture<'static, ()> = Box::pin(async move {
            // The error has no receiver. Slots expire, and the rest stays charged.
            drop(gate.release(&permit).await);
        });
        let mut context = Context::from_waker(Waker::noop());
        if release.as_mut().poll(&mut context).is_pending() {
            edge::spawn(release);
        }
    }
}
