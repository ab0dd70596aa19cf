//! The simulated network between an instance and the store, or a broker.

use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Clock, Decision, Error, Gate, Span};
use tollgate_sim::{Link, Network};

/// How many of a thousand messages are slow, and by how much at most.
const SLOW_PERMILLE: u32 = 10;
const SLOW_TIMES: u64 = 8;
/// A recorded round trip is slow if it is this many times the median.
const SLOW_FROM: u64 = 3;

/// The timeout of a request, in round trips and at least.
const TIMEOUT_TRIPS: u64 = 50;
const TIMEOUT_MIN: Span = Span::from_millis(250);

/// Returns a network with the round trip `trip` ± 50 %, and one slow message in a hundred.
pub(super) fn from_round_trip(trip: Span) -> Network {
    let trip = trip.as_micros();
    Network {
        delay_min: trip / 4,
        delay_max: trip * 3 / 4,
        slow_permille: SLOW_PERMILLE,
        slow_max: trip * SLOW_TIMES,
        timeout: Span::from_micros(trip * TIMEOUT_TRIPS).max(TIMEOUT_MIN),
        ..Network::default()
    }
}

/// Returns a network with round trips similar to `trips`, which are in ascending order.
pub(super) fn from_samples(trips: &[u64]) -> Network {
    let (low, middle) = (trips[trips.len() / 10], trips[trips.len() / 2]);
    let slow = &trips[trips.partition_point(|trip| *trip <= SLOW_FROM * middle)..];
    let mean = slow.iter().sum::<u64>() / (slow.len() as u64).max(1);
    // Either direction may be slow, by any delay up to the longest.
    let permille = (1_000 * slow.len() as u64).div_ceil(2 * trips.len() as u64);
    Network {
        delay_min: low / 2,
        delay_max: middle - low / 2,
        slow_permille: u32::try_from(permille).unwrap_or(1_000),
        slow_max: 2 * mean,
        timeout: TIMEOUT_MIN.max(Span::from_micros(middle * TIMEOUT_TRIPS)),
        ..Network::default()
    }
}

/// Delays of messages.
#[derive(Debug)]
struct Delays {
    clock: Arc<dyn Clock>,
    line: Network,
    rng: Mutex<Rng>,
}

impl Delays {
    fn new(clock: Arc<dyn Clock>, line: Network, seed: u64) -> Self {
        Self { clock, line, rng: Mutex::new(Rng::with_seed(seed)) }
    }

    /// Sleeps for the delay of one message.
    async fn travel(&self) {
        let Network { delay_min, delay_max, slow_permille, slow_max, .. } = self.line;
        let delay = {
            let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
            let is_slow = rng.u32(..1_000) < slow_permille;
            rng.u64(delay_min..=if is_slow { slow_max } else { delay_max })
        };
        self.clock.sleep_until(self.clock.now() + Span::from_micros(delay)).await;
    }
}

/// The gate of a broker behind a simulated network.
#[derive(Debug)]
pub(super) struct NetworkGate {
    gate: Arc<dyn Gate>,
    delays: Delays,
}

impl NetworkGate {
    pub(super) fn new(
        gate: Arc<dyn Gate>,
        clock: Arc<dyn Clock>,
        line: Network,
        seed: u64,
    ) -> Self {
        Self { gate, delays: Delays::new(clock, line, seed) }
    }
}

impl Gate for NetworkGate {
    /// A plan only acquires, so only that takes time.
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        match operation {
            Operation::Acquire(_) => Box::pin(async move {
                self.delays.travel().await;
                let outcome = self.gate.run(operation).await;
                self.delays.travel().await;
                outcome
            }),
            other => self.gate.run(other),
        }
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

/// DynamoDB, which reads the items of an admitted ask with several charges after their transaction: another round trip.
#[derive(Debug)]
pub(super) struct TransactionGate {
    link: Link,
    delays: Delays,
}

impl TransactionGate {
    pub(super) fn new(link: Link, clock: Arc<dyn Clock>, line: Network, seed: u64) -> Self {
        Self { link, delays: Delays::new(clock, line, seed) }
    }
}

impl Gate for TransactionGate {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            let outcome = self.link.run(operation).await;
            let is_admitted = matches!(&outcome, Ok(Outcome::Decided(Decision::Admitted(_))));
            if is_admitted && operation.is_joint() {
                self.delays.travel().await;
                self.delays.travel().await;
            }
            outcome
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_as_slow_as_the_round_trips_it_is_made_of() {
        let mut trips = vec![300; 98];
        trips.extend([40_000, 60_000]);
        let line = from_samples(&trips);
        assert_eq!((line.delay_min, line.delay_max), (150, 150));
        assert_eq!((line.slow_permille, line.slow_max), (10, 100_000));
    }
}
