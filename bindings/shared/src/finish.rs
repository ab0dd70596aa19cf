//! Operations at a store that are finished even if their caller goes away.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use tollgate::gate::{BoxFuture, Gate, Operation, Outcome};
use tollgate::{Decision, Error, GateExt as _};

use crate::runtime;

/// A future that goes on in the background when it is dropped before it is done, with `after` for its result.
pub(crate) struct FinishOnDrop<T: Send + 'static> {
    future: Option<BoxFuture<'static, T>>,
    after: fn(T) -> BoxFuture<'static, ()>,
}

impl<T: Send + 'static> FinishOnDrop<T> {
    pub(crate) fn new(
        future: impl Future<Output = T> + Send + 'static,
        after: fn(T) -> BoxFuture<'static, ()>,
    ) -> Self {
        Self { future: Some(Box::pin(future)), after }
    }
}

impl<T: Send + 'static> Future for FinishOnDrop<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let future = self.future.as_mut().expect("a future is not polled after it is done");
        let done = std::task::ready!(future.as_mut().poll(context));
        self.future = None;
        Poll::Ready(done)
    }
}

impl<T: Send + 'static> Drop for FinishOnDrop<T> {
    fn drop(&mut self) {
        let Some(future) = self.future.take() else { return };
        let after = self.after;
        // Without threads the operation is cut off as in a crash, which errs to the strict side.
        if let Ok(runtime) = runtime::handle() {
            runtime.spawn(async move { after(future.await).await });
        }
    }
}

/// A gate whose asks are not cut off: one that is dropped at the store is finished, and released if it was admitted.
#[derive(Debug)]
pub(crate) struct Finishing {
    gate: Arc<dyn Gate>,
    /// The outermost gate, which calls the next waiter when something is released.
    outermost: Weak<dyn Gate>,
}

impl Finishing {
    pub(crate) fn new(gate: Arc<dyn Gate>, outermost: Weak<dyn Gate>) -> Self {
        Self { gate, outermost }
    }
}

impl Gate for Finishing {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        let Operation::Acquire(ask) = operation else { return self.gate.run(operation) };
        if let Some(decided) = self.gate.try_run(&operation) {
            return Box::pin(std::future::ready(decided));
        }
        let (gate, ask) = (Arc::clone(&self.gate), ask.clone().into_owned());
        let outermost = Weak::clone(&self.outermost);
        let asking = async move {
            let outcome = gate.run(Operation::Acquire(&ask)).await;
            (outcome, outermost.upgrade().unwrap_or(gate))
        };
        let finished = FinishOnDrop::new(asking, |(outcome, gate)| {
            Box::pin(async move {
                if let Ok(Outcome::Decided(Decision::Admitted(permit))) = outcome {
                    // The error has no receiver. Slots expire, and the rest stays charged.
                    drop(gate.release(&permit).await);
                }
            })
        });
        Box::pin(async move { finished.await.0 })
    }

    fn try_run(&self, operation: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        self.gate.try_run(operation)
    }
}
