//! Operations on permits of several charges, for stores that run them one charge at a time.

use tollgate_core::{JoinedOutcome, Operation, Outcome};

use crate::error::Error;
use crate::gate::Gate;

/// Settles, releases or renews a permit of several charges on `gate`, one charge after the other.
///
/// # Errors
/// The first error of a charge, after the others were tried. Safe to repeat.
pub async fn run_parts(gate: &dyn Gate, operation: Operation<'_>) -> Result<Outcome, Error> {
    let mut outcome = JoinedOutcome::default();
    for part in operation.parts()? {
        outcome.add(gate.run(part.operation()).await);
    }
    outcome.finish()
}
