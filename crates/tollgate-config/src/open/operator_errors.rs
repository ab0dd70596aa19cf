//! The gate of a broker whose own key may be refused by its store.

use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Error, ErrorKind, Gate};

/// A gate on a store that is called with this broker's own key. An operation that the key does not allow is a mistake of the
/// operator, not of the caller, so `Forbidden` becomes `Misconfigured`. It is outside of the fallback: one such operation
/// must not cut the other callers off.
#[derive(Debug)]
pub(super) struct OperatorErrors<G>(pub(super) G);

fn as_misconfigured(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Forbidden => {
            Error::new(ErrorKind::Misconfigured, error.to_string()).caused_by(error)
        }
        _ => error,
    }
}

impl<G: Gate> Gate for OperatorErrors<G> {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move { self.0.run(operation).await.map_err(as_misconfigured) })
    }

    fn try_run(&self, operation: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        Some(self.0.try_run(operation)?.map_err(as_misconfigured))
    }
}
