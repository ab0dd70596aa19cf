//! The network between a machine and the store.
//!
//! A request travels on its own: it arrives even if its sender times out or crashes. Each
//! request and each reply draws its own delay, so they overtake each other.

use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::sync::oneshot;
use tollgate::gate::BoxFuture;
use tollgate::{Clock, Error, ErrorKind, Gate};
use tollgate_core::{Operation, Outcome, Span};

use crate::call::Call;
use crate::clock::SimClock;
use crate::store::SimStore;
use crate::world::World;

/// The quality of a machine's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The shortest time one way, in microseconds.
    pub delay_min: u64,
    /// The longest usual time one way.
    pub delay_max: u64,
    /// How many of a thousand are slow.
    pub slow_permille: u32,
    /// The longest time one way of those.
    pub slow_max: u64,
    /// How many requests of a thousand are lost.
    pub lost_requests_permille: u32,
    /// How many replies of a thousand are lost.
    pub lost_replies_permille: u32,
    /// Whether nothing goes through at all.
    pub is_cut: bool,
    /// The timeout of a request.
    pub timeout: Span,
}

impl Default for Network {
    /// Half a millisecond to one each way, and nothing is lost.
    fn default() -> Self {
        Self {
            delay_min: 500,
            delay_max: 1_000,
            slow_permille: 0,
            slow_max: 0,
            lost_requests_permille: 0,
            lost_replies_permille: 0,
            is_cut: false,
            timeout: Span::from_millis(500),
        }
    }
}

/// One direction of an exchange: its delay, and whether it is lost.
struct Leg {
    delay: Span,
    is_lost: bool,
}

/// The machine's end of the network: a store, as far as the machine can tell. Clones are the same end.
#[derive(Clone)]
pub struct Link {
    world: World,
    machine: u64,
    clock: SimClock,
    store: Arc<SimStore>,
    state: Arc<Mutex<State>>,
}

struct State {
    network: Network,
    rng: fastrand::Rng,
    is_dead: bool,
}

impl Link {
    pub(crate) fn new(
        world: &World,
        machine: u64,
        clock: SimClock,
        store: Arc<SimStore>,
        network: Network,
        seed: u64,
    ) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        let state = Arc::new(Mutex::new(State { network, rng, is_dead: false }));
        Self { world: world.clone(), machine, clock, store, state }
    }

    pub(crate) fn set(&self, network: Network) {
        self.state().network = network;
    }

    pub(crate) fn network(&self) -> Network {
        self.state().network
    }

    pub(crate) fn kill(&self) {
        self.state().is_dead = true;
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.state().is_dead
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leg(&self, lost_permille: impl FnOnce(&Network) -> u32) -> Leg {
        let mut state = self.state();
        let (network, rng) = (state.network, &mut state.rng);
        let is_slow = rng.u32(..1_000) < network.slow_permille;
        let longest = if is_slow { network.slow_max } else { network.delay_max };
        let delay = Span::from_micros(rng.u64(network.delay_min..=longest.max(network.delay_min)));
        Leg { delay, is_lost: network.is_cut || rng.u32(..1_000) < lost_permille(&network) }
    }

    /// Sends `call` to the store and its outcome back. A partition that begins on the way stops it.
    async fn travel(self, call: Call, back: oneshot::Sender<Result<Outcome, Error>>) {
        let request = self.leg(|network| network.lost_requests_permille);
        self.world.sleep(request.delay).await;
        if request.is_lost || self.network().is_cut {
            self.world.note("lost", self.machine, 0, || {
                format!("m{} request {}", self.machine, call.name())
            });
            return;
        }
        let outcome = self.store.run(self.machine, &call).await;
        let reply = self.leg(|network| network.lost_replies_permille);
        self.world.sleep(reply.delay).await;
        if reply.is_lost || self.network().is_cut {
            self.world.note("lost", self.machine, 1, || {
                format!("m{} reply to {}", self.machine, call.name())
            });
            return;
        }
        drop(back.send(outcome));
    }
}

impl Gate for Link {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            if self.is_dead() {
                return pending().await;
            }
            let timeout = self.network().timeout;
            let (back, reply) = oneshot::channel();
            tokio::spawn(self.clone().travel(Call::from_operation(&operation), back));
            let mut reply = pin!(reply);
            let mut is_lost = false;
            let mut alarm = self.clock.sleep_until(self.clock.now() + timeout);
            poll_fn(|context| {
                if self.is_dead() {
                    return Poll::Pending;
                }
                if !is_lost && let Poll::Ready(reply) = reply.as_mut().poll(context) {
                    match reply {
                        Ok(outcome) => return Poll::Ready(outcome),
                        // A lost exchange shows as silence.
                        Err(_) => is_lost = true,
                    }
                }
                alarm.as_mut().poll(context).map(|()| {
                    let text = format!("the store did not answer within {timeout}");
                    Err(Error::new(ErrorKind::Unavailable, text))
                })
            })
            .await
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("machine", &self.machine).finish_non_exhaustive()
    }
}
