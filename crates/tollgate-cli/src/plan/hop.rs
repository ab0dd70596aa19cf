//! The network between an instance and its broker.

use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;
use tollgate::{Ask, BoxFuture, Clock, Decision, Error, Gate, Span};
use tollgate_sim::Line;

/// A broker's gate, reached over `line`.
#[derive(Debug)]
pub(super) struct Hop {
    gate: Arc<dyn Gate>,
    clock: Arc<dyn Clock>,
    line: Line,
    rng: Mutex<Rng>,
}

impl Hop {
    pub(super) fn new(gate: Arc<dyn Gate>, clock: Arc<dyn Clock>, line: Line, seed: u64) -> Self {
        Self { gate, clock, line, rng: Mutex::new(Rng::with_seed(seed)) }
    }

    /// Takes as long as one way does.
    async fn travel(&self) {
        let Line { delay_min, delay_max, slow_permille, slow_max, .. } = self.line;
        let delay = {
            let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
            let is_slow = rng.u32(..1_000) < slow_permille;
            rng.u64(delay_min..=if is_slow { slow_max } else { delay_max })
        };
        self.clock.sleep_until(self.clock.now() + Span::from_micros(delay)).await;
    }
}

impl Gate for Hop {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        Box::pin(async move {
            self.travel().await;
            let answer = self.gate.acquire(ask).await;
            self.travel().await;
            answer
        })
    }

    // A plan only asks.
    tollgate::pass_on!(gate: settle, release, renew, charge, close_until, standing, reset);
}
