//! A clock that does not count the time spent waiting for a reply.
//!
//! A gate that counts the life of a block from the answer to its lease, and not from when it asked, is a right gate on
//! such a clock: so the sabotage is in the clock, and the gate that is tested is the real one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Clock;
use tollgate::gate::BoxFuture;
use tollgate_core::{Span, Timestamp};

/// A clock that stops while a reply is awaited.
#[derive(Debug)]
pub struct Forgetful<C> {
    clock: C,
    waited: Arc<AtomicU64>,
}

impl<C: Clock> Forgetful<C> {
    /// `clock` less what `waited` says, in microseconds.
    pub const fn new(clock: C, waited: Arc<AtomicU64>) -> Self {
        Self { clock, waited }
    }

    fn waited(&self) -> Span {
        Span::from_micros(self.waited.load(Ordering::Relaxed))
    }
}

impl<C: Clock> Clock for Forgetful<C> {
    fn now(&self) -> Timestamp {
        self.clock.now() - self.waited()
    }

    fn monotonic(&self) -> Span {
        let passed = self.clock.monotonic().as_micros();
        Span::from_micros(passed.saturating_sub(self.waited().as_micros()))
    }

    fn sleep_until(&self, at: Timestamp) -> BoxFuture<'static, ()> {
        self.clock.sleep_until(at + self.waited())
    }
}
