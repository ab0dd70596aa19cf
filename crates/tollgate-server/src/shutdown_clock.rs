//! A clock on which every deadline has passed once the server closes.
//!
//! Asks wait in a [`Queue`](tollgate::Queue) until their deadline. Dropping them at shutdown could lose a charge in progress.
//! With an expired deadline, each asks once more and returns the final decision.

use std::sync::Arc;

use tokio::sync::watch;
use tollgate::gate::BoxFuture;
use tollgate::{Clock, Span, Timestamp};

/// The clock of queued asks.
#[derive(Debug)]
pub(crate) struct ShutdownClock {
    clock: Arc<dyn Clock>,
    closed: watch::Receiver<bool>,
}

impl ShutdownClock {
    pub(crate) fn new(clock: Arc<dyn Clock>, closed: watch::Receiver<bool>) -> Self {
        Self { clock, closed }
    }
}

impl Clock for ShutdownClock {
    fn now(&self) -> Timestamp {
        if *self.closed.borrow() { Timestamp::MAX } else { self.clock.now() }
    }

    fn monotonic(&self) -> Span {
        self.clock.monotonic()
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        let mut closed = self.closed.clone();
        let alarm = self.clock.sleep_until(at);
        Box::pin(async move {
            tokio::select! {
                () = alarm => {}
                // An error means that the server is gone, and so closed.
                _ = closed.wait_for(|closed| *closed) => {}
            }
        })
    }
}
