//! An executor that polls the calls of a connection in batches, and spawns a task only for those that have to wait.
//!
//! hyper executes one future per call. A task for each would wake the connection for each response, which would be written
//! on its own: most of the cost of a call. Calls that arrive together are therefore polled together once, and their
//! responses go out in one write. A call that is still pending waits for the store or for room, and gets a task.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use hyper::rt::Executor;

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The calls of one connection that have not been polled yet.
#[derive(Clone, Default)]
pub(super) struct BatchingExecutor(Arc<Mutex<Vec<Call>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for BatchingExecutor {
    fn execute(&self, call: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(call));
    }
}

impl BatchingExecutor {
    /// Polls `connection` and the calls that it executes until none makes progress.
    pub(super) fn poll_with<C: Future>(
        &self,
        mut connection: Pin<&mut C>,
        context: &mut Context<'_>,
    ) -> Poll<C::Output> {
        loop {
            if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                return Poll::Ready(ended);
            }
            let calls = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
            if calls.is_empty() {
                return Poll::Pending;
            }
            for mut call in calls {
                if call.as_mut().poll(context).is_pending() {
                    tokio::spawn(call);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::sync::Notify;

    /// A connection is polled again only when the calls of a batch are done; one that waits does not block the others.
    #[tokio::test]
    async fn calls_of_a_batch_are_polled_together() {
        let (executor, done, go) = <(BatchingExecutor, Arc<AtomicUsize>, Arc<Notify>)>::default();
        let mut polls = 0;
        let mut connection = pin!(poll_fn(|_| {
            polls += 1;
            if polls == 2 {
                return Poll::Ready(done.load(Ordering::Relaxed));
            }
            for index in 0..4 {
                let (done, go) = (Arc::clone(&done), Arc::clone(&go));
                executor.execute(async move {
                    if index == 0 {
                        go.notified().await;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
            Poll::Pending
        }));
        assert_eq!(poll_fn(|context| executor.poll_with(connection.as_mut(), context)).await, 3);
        go.notify_one();
        while done.load(Ordering::Relaxed) < 4 {
            tokio::task::yield_now().await;
        }
    }
}
