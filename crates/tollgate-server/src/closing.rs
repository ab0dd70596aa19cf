//! A clock on which every deadline has passed once the server closes.
//!
//! Asks wait in a [`Queue`](tollgate::Queue) until their deadline. To answer them early, dropping them would not do: one
//! that is just being charged would be charged for nothing. Told that their time is up, they ask once more and leave with
//! the answer that holds.

use std::sync::Arc;

use tokio::sync::watch;
use tollgate::{BoxFuture, Clock, Span, Timestamp};

/// The clock of those who wait.
#[derive(Debug)]
pub(crate) struct Closing {
    clock: Arc<dyn Clock>,
    closed: watch::Receiver<bool>,
}

impl Closing {
    pub(crate) fn new(clock: Arc<dyn Clock>, closed: watch::Receiver<bool>) -> Self {
        Self { clock, closed }
    }
}

impl Clock for Closing {
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
                // An error says that the server is gone, and so closed.
                _ = closed.wait_for(|closed| *closed) => {}
            }
        })
    }
}
