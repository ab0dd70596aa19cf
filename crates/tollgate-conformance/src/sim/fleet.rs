//! The machines of a run: started, crashed, restarted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use tollgate::strategy::{
    Fallback, FallbackOptions, Leased, LeasedOptions, Optimistic, OptimisticOptions, Resend,
    ResendOptions,
};
use tollgate::{Clock, Gate};
use tollgate_core::Span;
use tollgate_sim::{Link, Machine, SimStore, World};

use super::caller::Workload;
use super::judge::{Judged, judge};
use super::ledger::Ledger;
use super::recorder::Recorder;
use super::scenario::Scenario;
use super::{Sabotage, Setup, Strategy, faults};

/// Time to settle after the last fault: the longest retries and the slowest round trip.
const REST: Span = Span::from_secs(60);

/// The machines of a run and their shared state.
pub(super) struct Fleet {
    world: World,
    setup: Setup,
    scenario: Arc<Scenario>,
    store: Arc<SimStore>,
    ledger: Arc<Ledger>,
    machines: Mutex<Machines>,
}

struct Machines {
    rng: Rng,
    /// A restarted machine has the index of the one that crashed.
    all: Vec<Machine>,
    next: u64,
    /// Kept to the end, since a dropped gate posts nothing.
    gates: Vec<Arc<dyn Gate>>,
    crashes: u64,
}

/// Runs `scenario` and judges it.
pub(super) async fn run(world: World, scenario: Scenario, setup: Setup) -> Judged {
    let mut rng = scenario.rng.clone();
    let recorder = Arc::new(Recorder::new(&world));
    let store = match setup.sabotage {
        Some(sabotage) => sabotage.store(&world),
        None => SimStore::new(&world),
    };
    let fleet = Arc::new(Fleet {
        store: Arc::new(store.watched(Arc::clone(&recorder) as _)),
        machines: Mutex::new(Machines {
            rng: rng.fork(),
            all: Vec::new(),
            next: 0,
            gates: Vec::new(),
            crashes: 0,
        }),
        world: world.clone(),
        setup,
        scenario: Arc::new(scenario),
        ledger: Arc::default(),
    });
    for place in 0..fleet.scenario.machines {
        fleet.start(usize::try_from(place).unwrap_or(0));
    }
    let broken = tokio::spawn(faults::run(world.clone(), Arc::clone(&fleet), rng.fork()));
    world.sleep(fleet.scenario.lasts.plus(REST)).await;
    drop(broken);
    let crashes = fleet.machines().crashes;
    judge(&fleet.scenario, setup, crashes, &recorder.histories(), &fleet.ledger.asked())
}

impl Fleet {
    pub(super) fn scenario(&self) -> &Scenario {
        &self.scenario
    }

    pub(super) const fn store(&self) -> &Arc<SimStore> {
        &self.store
    }

    pub(super) fn len(&self) -> usize {
        self.machines().all.len()
    }

    /// The machine at `place` now.
    pub(super) fn machine(&self, place: usize) -> Machine {
        self.machines().all[place].clone()
    }

    /// Replaces a crashed machine.
    pub(super) fn restart(&self, place: usize) {
        if self.machine(place).is_crashed() {
            self.machines().crashes += 1;
            self.start(place);
        }
    }

    fn start(&self, place: usize) {
        let (machine, rng) = {
            let mut machines = self.machines();
            let scenario = &self.scenario;
            let drift = machines.rng.i32(-scenario.drift_ppm..=scenario.drift_ppm);
            let clock = self.world.clock().drifting(drift);
            if scenario.drift_ppm != 0 {
                clock.step(machines.rng.i64(-scenario.step_max..=scenario.step_max));
            }
            let (number, seed) = (machines.next, machines.rng.u64(..));
            machines.next += 1;
            let (world, store) = (&self.world, &self.store);
            let machine = Machine::with(world, store, scenario.line, number, seed, clock);
            if place < machines.all.len() {
                machines.all[place] = machine.clone();
            } else {
                machines.all.push(machine.clone());
            }
            (machine, machines.rng.fork())
        };
        self.world.note("start", machine.number(), 0, || format!("m{}", machine.number()));
        let gate = self.gate(&machine);
        self.machines().gates.push(Arc::clone(&gate));
        let workload = Workload {
            gate,
            world: self.world.clone(),
            machine,
            ledger: Arc::clone(&self.ledger),
            scenario: Arc::clone(&self.scenario),
        };
        tokio::spawn(workload.open(rng));
    }

    /// Builds the production gate stack on `machine`.
    fn gate(&self, machine: &Machine) -> Arc<dyn Gate> {
        let store = machine.link();
        let clock: Arc<dyn Clock> = Arc::new(machine.clock().clone());
        let resend = |store| Resend::new(store, self.attempts(), Arc::clone(&clock));
        match self.setup.sabotage {
            Some(Sabotage::WholeShares) => return self.fallback(resend(store), 1, clock),
            Some(sabotage) => return sabotage.gate(store, machine, &self.world),
            None => {}
        }
        match (self.setup.strategy, self.scenario.resends) {
            (Strategy::Atomic, false) => Arc::new(store),
            (Strategy::Atomic, true) => Arc::new(resend(store)),
            (Strategy::Leased, false) => Arc::new(leased(store, clock)),
            (Strategy::Leased, true) => Arc::new(leased(resend(store), Arc::clone(&clock))),
            (Strategy::Optimistic, false) => Arc::new(self.optimistic(store, clock)),
            (Strategy::Optimistic, true) => {
                Arc::new(self.optimistic(resend(store), Arc::clone(&clock)))
            }
            (Strategy::Fallback, _) => self.fallback(resend(store), self.scenario.machines, clock),
        }
    }

    fn fallback(
        &self,
        store: Resend<Link>,
        instances: u64,
        clock: Arc<dyn Clock>,
    ) -> Arc<dyn Gate> {
        let settings = FallbackOptions {
            probe_min: Duration::from_millis(200),
            probe_max: Duration::from_secs(2),
            ..FallbackOptions::new(instances)
        };
        Arc::new(Fallback::new(store, settings, clock).expect("there is a machine"))
    }

    fn attempts(&self) -> ResendOptions {
        ResendOptions {
            attempt_timeout: self.scenario.line.timeout.into(),
            ..ResendOptions::default()
        }
    }

    fn optimistic<G: Gate>(&self, gate: G, clock: Arc<dyn Clock>) -> Optimistic<G> {
        let options = OptimisticOptions {
            attempt_timeout: Duration::from_secs(1),
            ..OptimisticOptions::new(self.scenario.unposted_max)
        };
        Optimistic::new(gate, options, clock)
    }

    fn machines(&self) -> MutexGuard<'_, Machines> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn leased<G: Gate>(gate: G, clock: Arc<dyn Clock>) -> Leased<G> {
    Leased::new(gate, LeasedOptions::default(), clock)
}
