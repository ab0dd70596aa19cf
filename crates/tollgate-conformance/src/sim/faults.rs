//! The faults of a run, and when they end.

use std::sync::Arc;

use fastrand::Rng;
use tollgate_core::Span;
use tollgate_sim::{Condition, SimStore, World};

use super::fleet::Fleet;
use super::scenario::Fault;

/// Injects faults until the end of the run, and ends each by then.
pub(super) async fn run(world: World, fleet: Arc<Fleet>, mut rng: Rng) {
    let scenario = fleet.scenario();
    if scenario.faults.is_empty() {
        return;
    }
    loop {
        world.sleep(Span::from_micros(rng.u64(0..=2 * scenario.fault_gap))).await;
        let left = scenario.lasts.as_micros().saturating_sub(world.elapsed().as_micros());
        if left == 0 {
            return;
        }
        let lasts = Span::from_micros(rng.u64(1..=4_000_000).min(left));
        let machine = rng.usize(..fleet.len());
        let store = fleet.store();
        match scenario.faults[rng.usize(..scenario.faults.len())] {
            Fault::Crash => {
                fleet.machine(machine).crash();
                let fleet = Arc::clone(&fleet);
                let world = world.clone();
                tokio::spawn(async move {
                    world.sleep(lasts).await;
                    fleet.restart(machine);
                });
            }
            Fault::Cut => set_line(&world, &fleet, machine, lasts, |line| line.is_cut = true),
            Fault::Slow => set_line(&world, &fleet, machine, lasts, |line| {
                line.slow_permille = 1_000;
            }),
            Fault::Step => {
                let by = rng.i64(-scenario.step_max..=scenario.step_max);
                world.note("step", machine as u64, by.unsigned_abs(), || {
                    format!("m{machine} {by} us")
                });
                fleet.machine(machine).clock().step(by);
            }
            Fault::StoreStep => {
                let by = rng.i64(0..=scenario.step_max);
                world.note("step", 0, by.unsigned_abs(), || format!("store {by} us"));
                store.clock().step(by);
            }
            Fault::StoreDown => set_store(&world, store, lasts, Condition::Down),
            Fault::StoreThrottled => set_store(&world, store, lasts, Condition::Throttled),
            Fault::StorePaused => {
                set_store(&world, store, lasts, Condition::PausedUntil(world.now() + lasts));
            }
        }
    }
}

fn set_store(world: &World, store: &Arc<SimStore>, lasts: Span, condition: Condition) {
    store.set(condition);
    let (world, store) = (world.clone(), Arc::clone(store));
    tokio::spawn(async move {
        world.sleep(lasts).await;
        store.set(Condition::Up);
    });
}

fn set_line(
    world: &World,
    fleet: &Arc<Fleet>,
    machine: usize,
    lasts: Span,
    spoil: impl FnOnce(&mut tollgate_sim::Network),
) {
    let of = fleet.machine(machine);
    let mut line = of.network();
    spoil(&mut line);
    world.note("line", of.number(), 0, || format!("m{} is {line:?}", of.number()));
    of.set_network(line);
    let (world, good) = (world.clone(), fleet.scenario().line);
    tokio::spawn(async move {
        world.sleep(lasts).await;
        of.set_network(good);
    });
}
