//! Where the calls of a connection run: beside it, and in a task of their own only if they have to wait.
//!
//! hyper hands over one future for each call. A task for each would wake the connection for each answer, which it would
//! write by itself: most of what a call costs. So the calls that arrived together are gathered and polled once, and their
//! answers go out in one write. Whoever is not done by then waits for the store or for room, and gets a task.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use hyper::rt::Executor;

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The calls of one connection that have not begun.
#[derive(Clone, Default)]
pub(super) struct Gathered(Arc<Mutex<Vec<Call>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Gathered {
    fn execute(&self, call: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(call));
    }
}

impl Gathered {
    /// Polls `connection` and what it gathers until neither gets any further.
    pub(super) fn poll_beside<C: Future>(
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

    /// A connection is polled again only when the calls that came together are done, and one that waits holds up nobody.
    #[tokio::test]
    async fn calls_that_come_together_are_done_together() {
        let (gathered, done, go) = <(Gathered, Arc<AtomicUsize>, Arc<Notify>)>::default();
        let mut polls = 0;
        let mut connection = pin!(poll_fn(|_| {
            polls += 1;
            if polls == 2 {
                return Poll::Ready(done.load(Ordering::Relaxed));
            }
            for place in 0..4 {
                let (done, go) = (Arc::clone(&done), Arc::clone(&go));
                gathered.execute(async move {
                    if place == 0 {
                        go.notified().await;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
            Poll::Pending
        }));
        assert_eq!(poll_fn(|context| gathered.poll_beside(connection.as_mut(), context)).await, 3);
        go.notify_one();
        while done.load(Ordering::Relaxed) < 4 {
            tokio::task::yield_now().await;
        }
    }
}
