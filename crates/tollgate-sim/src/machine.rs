//! Machines of the fleet: a clock and an end of the network. The caller's tasks run on them.

use std::sync::Arc;

use crate::clock::SimClock;
use crate::link::{Link, Network};
use crate::store::SimStore;
use crate::world::World;

/// A machine. Clones are the same machine.
#[derive(Clone, Debug)]
pub struct Machine {
    world: World,
    number: u64,
    clock: SimClock,
    link: Link,
}

impl Machine {
    /// A machine with a right clock, reaching `store` over `network`. Its `number` names it, and with the numbers that the
    /// scenario draws it seeds its network.
    #[must_use]
    pub fn new(world: &World, store: &Arc<SimStore>, network: Network, number: u64) -> Self {
        Self::with(world, store, network, number, number, world.clock())
    }

    /// A machine with the clock given, and a network that draws from `seed`.
    #[must_use]
    pub fn with(
        world: &World,
        store: &Arc<SimStore>,
        network: Network,
        number: u64,
        seed: u64,
        clock: SimClock,
    ) -> Self {
        let link = Link::new(world, number, clock.clone(), Arc::clone(store), network, seed);
        Self { world: world.clone(), number, clock, link }
    }

    /// Returns its number.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Its clock.
    #[must_use]
    pub const fn clock(&self) -> &SimClock {
        &self.clock
    }

    /// Its end of the network: a [`Gate`](tollgate::Gate) like a store's.
    #[must_use]
    pub fn link(&self) -> Link {
        self.link.clone()
    }

    /// Returns the quality of its network.
    #[must_use]
    pub fn network(&self) -> Network {
        self.link.network()
    }

    /// Changes the quality of its network, also for calls on their way.
    pub fn set_network(&self, network: Network) {
        self.link.set(network);
    }

    /// Returns whether it has crashed.
    #[must_use]
    pub fn is_crashed(&self) -> bool {
        self.link.is_dead()
    }

    /// Stops it between two instructions: nothing on it wakes, sends or receives anything again. Calls that were sent arrive.
    pub fn crash(&self) {
        self.world.note("crash", self.number, 0, || format!("m{}", self.number));
        self.clock.kill();
        self.link.kill();
    }
}
