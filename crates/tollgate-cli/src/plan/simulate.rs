//! Runs one strategy in a simulated world.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tollgate::{Ask, Clock, Decision, Error, ErrorKind, Gate, GateExt as _, Span, Timestamp};
use tollgate_sim::{Call, CompletedCall, Condition, Machine, SimStore, Watch, World};

use super::network::{NetworkGate, TransactionGate, from_round_trip, from_samples};
use super::price::ItemUnits;
use super::strategy::{Kind, Strategy};
use super::workload::Workload;
use crate::args::PlanStore;

/// How long the last asks may take.
const GRACE: Span = Span::from_secs(10);

/// The outcome of one ask. Times are in microseconds from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Event {
    /// When it was decided.
    pub(super) at: u64,
    /// When it was asked.
    pub(super) asked_at: u64,
    pub(super) subject: u64,
    /// How long it took.
    pub(super) took: u64,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    Admitted,
    /// With the index of the charge that binds.
    Denied(usize),
    Failed,
}

/// The record of one run.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    pub(super) events: Vec<Event>,
    /// Operations that reached the store.
    pub(super) writes: u64,
    pub(super) reads: u64,
    /// Entries that those operations were about; 0 if not counted, as are the units.
    pub(super) entries: u64,
    /// What DynamoDB would bill.
    pub(super) write_units: u64,
    pub(super) read_units: u64,
    pub(super) lasted: Span,
    /// When the store was unavailable, in microseconds from the start.
    pub(super) outage: Option<(u64, u64)>,
}

/// What happens to the store during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scenario {
    /// It is available.
    Normal,
    /// It is unavailable for the middle third of a run three times as long as the outage.
    Outage,
}

/// Arrivals and round trips that processes recorded, to be replayed.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorded {
    /// When each instance asked, in microseconds from the start and in that order, and for which subject.
    pub(super) arrivals: Vec<Arc<[(u64, u64)]>>,
    /// How long the store took, in microseconds, in ascending order.
    pub(super) trips: Vec<u64>,
}

/// Runs the traffic of `workload` through `strategy`.
pub(super) fn run(
    workload: &Workload,
    strategy: &Strategy,
    scenario: Scenario,
) -> Result<Run, Error> {
    in_world(workload, strategy, scenario, &Recorded::default())
}

/// Replays the arrivals of `recorded` through `strategy`, with similar round trips.
pub(super) fn replay(
    workload: &Workload,
    strategy: &Strategy,
    recorded: &Recorded,
) -> Result<Run, Error> {
    in_world(workload, strategy, Scenario::Normal, recorded)
}

fn in_world(
    workload: &Workload,
    strategy: &Strategy,
    scenario: Scenario,
    recorded: &Recorded,
) -> Result<Run, Error> {
    let ran =
        World::run(workload.seed, |world| fleet(world, workload, strategy, scenario, recorded));
    let (run, _) = ran.map_err(|stuck| Error::new(ErrorKind::Unavailable, stuck.to_string()))?;
    run
}

async fn fleet(
    world: World,
    workload: &Workload,
    strategy: &Strategy,
    scenario: Scenario,
    recorded: &Recorded,
) -> Result<Run, Error> {
    let lasts = match scenario {
        Scenario::Normal => workload.duration,
        Scenario::Outage => Span::from_micros(workload.outage.as_micros() * 3),
    };
    let line = if recorded.trips.is_empty() {
        from_round_trip(workload.latency)
    } else {
        from_samples(&recorded.trips)
    };
    let counts = Arc::new(Counts::new(workload));
    let store = Arc::new(SimStore::new(&world).watched(Arc::clone(&counts) as _));
    let events = Arc::new(Mutex::new(Vec::new()));
    let mut rng = Rng::with_seed(workload.seed);
    let (shared, enforced) = (Arc::new(workload.clone()), Arc::new(strategy.clone()));
    let gate = |number: u64, seed: u64| {
        let machine = Machine::with(&world, &store, line, number, seed, world.clock());
        let clock: Arc<dyn Clock> = Arc::new(machine.clock().clone());
        // Recorded round trips are those of whole operations.
        let reads_after = workload.store == PlanStore::Dynamodb && recorded.trips.is_empty();
        let link: Arc<dyn Gate> = match reads_after && workload.has_parents() {
            true => Arc::new(TransactionGate::new(machine.link(), Arc::clone(&clock), line, seed)),
            false => Arc::new(machine.link()),
        };
        strategy.wrap(link, clock, workload)
    };
    // The same number of seeds with and without brokers, so that every strategy gets the same arrivals.
    let seeds: Vec<u64> = (0..workload.instances).map(|_| rng.u64(..)).collect();
    let gates = if strategy.kind == Kind::Broker {
        let brokers: Vec<Arc<dyn Gate>> =
            (0..workload.brokers).map(|number| gate(number, number)).collect::<Result<_, _>>()?;
        let hop = from_round_trip(workload.broker_latency);
        let asked = seeds.iter().zip(brokers.iter().cycle());
        let reached = asked.map(|(seed, broker)| {
            NetworkGate::new(Arc::clone(broker), Arc::new(world.clock()), hop, *seed)
        });
        reached.map(|hop| Arc::new(hop) as Arc<dyn Gate>).collect()
    } else {
        (0..)
            .zip(&seeds)
            .map(|(number, seed)| gate(number, *seed))
            .collect::<Result<Vec<_>, _>>()?
    };
    for (number, gate) in gates.iter().enumerate() {
        let instance = Instance {
            world: world.clone(),
            began: world.now(),
            strategy: Arc::clone(&enforced),
            workload: Arc::clone(&shared),
            events: Arc::clone(&events),
            gate: Arc::clone(gate),
        };
        match recorded.arrivals.get(number) {
            Some(arrivals) => drop(tokio::spawn(instance.replay(Arc::clone(arrivals)))),
            None => drop(tokio::spawn(instance.generate(rng.fork(), lasts))),
        }
    }
    let mut outage = None;
    if scenario == Scenario::Outage {
        let third = workload.outage;
        world.sleep(third).await;
        store.set(Condition::Down);
        world.sleep(third).await;
        store.set(Condition::Up);
        outage = Some((third.as_micros(), 2 * third.as_micros()));
    }
    let left = lasts.as_micros().saturating_sub(world.elapsed().as_micros());
    world.sleep(Span::from_micros(left)).await;
    let counted = counts.read();
    world.sleep(GRACE).await;
    let events = std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Run { events, lasted: lasts, outage, ..counted })
}

/// The callers of one instance.
#[derive(Clone)]
struct Instance {
    world: World,
    began: Timestamp,
    strategy: Arc<Strategy>,
    workload: Arc<Workload>,
    gate: Arc<dyn Gate>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Instance {
    async fn generate(self, mut rng: Rng, lasts: Span) {
        let Workload { burstiness, subjects, .. } = *self.workload;
        loop {
            self.world.sleep(gap(&mut rng, self.workload.mean_gap())).await;
            if lasts <= self.world.elapsed() {
                return;
            }
            for _ in 0..rng.u64(1..=2 * burstiness - 1) {
                tokio::spawn(self.clone().one(rng.u64(..subjects)));
            }
        }
    }

    async fn replay(self, arrivals: Arc<[(u64, u64)]>) {
        for &(at, subject) in &*arrivals {
            let left = at.saturating_sub(self.world.elapsed().as_micros());
            self.world.sleep(Span::from_micros(left)).await;
            tokio::spawn(self.clone().one(subject));
        }
    }

    async fn one(self, subject: u64) {
        let ask = self.strategy.ask(&self.workload, "", subject);
        let event = record(&*self.gate, &ask, subject, self.began, || self.world.now()).await;
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

/// Makes an ask, and records its outcome.
pub(super) async fn record(
    gate: &dyn Gate,
    ask: &Ask<'_>,
    subject: u64,
    began: Timestamp,
    now: impl Fn() -> Timestamp,
) -> Event {
    let asked = now();
    let decision = gate.acquire(ask).await;
    let now = now();
    let (outcome, at) = match decision {
        // A decision of the store counts from its time at the store, one of the instance from now.
        Ok(Decision::Admitted(permit)) => {
            (Outcome::Admitted, permit.grant().at.max(asked).min(now))
        }
        Ok(Decision::Denied(denial)) => {
            (Outcome::Denied(denial.binding_charge().unwrap_or(0)), now)
        }
        Err(_) => (Outcome::Failed, now),
    };
    let since = |at: Timestamp| at.since(began).as_micros();
    Event {
        at: since(at),
        asked_at: since(asked),
        subject,
        took: now.since(asked).as_micros(),
        outcome,
    }
}

/// Draws the time between two independent arrivals, `mean` microseconds on average.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a drawn time is rounded to whole microseconds, and is never below zero"
)]
pub(super) fn gap(rng: &mut Rng, mean: u64) -> Span {
    Span::from_micros((-(1.0 - rng.f64()).ln() * mean as f64) as u64)
}

/// How many operations the store ran, and what DynamoDB would bill for them.
#[derive(Debug)]
struct Counts {
    units: ItemUnits,
    writes: AtomicU64,
    reads: AtomicU64,
    entries: AtomicU64,
    write_units: AtomicU64,
    read_units: AtomicU64,
}

impl Counts {
    fn new(workload: &Workload) -> Self {
        Self {
            units: ItemUnits::new(workload),
            writes: 0.into(),
            reads: 0.into(),
            entries: 0.into(),
            write_units: 0.into(),
            read_units: 0.into(),
        }
    }

    fn read(&self) -> Run {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Run {
            writes: get(&self.writes),
            reads: get(&self.reads),
            entries: get(&self.entries),
            write_units: get(&self.write_units),
            read_units: get(&self.read_units),
            ..Run::default()
        }
    }
}

impl Watch for Counts {
    fn wants_standings(&self) -> bool {
        false
    }

    fn ran(&self, ran: &CompletedCall<'_>) {
        let add = |count: &AtomicU64, number: u64| count.fetch_add(number, Ordering::Relaxed);
        add(if ran.call.is_write() { &self.writes } else { &self.reads }, 1);
        let entries = match ran.call {
            Call::Acquire(ask) | Call::Charge(ask) => ask.charges().len() as u64,
            _ => 1,
        };
        add(&self.entries, entries);
        let (writes, reads) = self.units.billed(ran.call, ran.outcome);
        add(&self.write_units, writes);
        add(&self.read_units, reads);
    }
}

#[cfg(test)]
mod tests {
    use tollgate::{Limit, Policy, TokenBucket};

    use super::*;

    /// A simulation beside a measured run has the arrivals of its processes.
    #[test]
    fn r002_5_a_replay_has_the_arrivals_it_is_given() {
        let limit = Limit::new("burst", "requests", TokenBucket::per_second(10));
        let policy = Policy::new("api", [limit]).expect("the numbers are in bounds");
        let workload =
            Workload { instances: 2, rate: 1_000, subjects: 2, ..Workload::minimal(policy) };
        let strategies = Strategy::all(&workload).expect("the policy has strategies");
        let arrivals = [vec![(100, 0), (100, 1), (70_000, 0)], vec![(5, 1), (900_000, 1)]];
        let trips = vec![200, 400, 600];
        let recorded = Recorded { arrivals: arrivals.clone().map(Arc::from).to_vec(), trips };
        let run = replay(&workload, &strategies[0], &recorded).expect("it runs");
        let mut asked: Vec<_> =
            run.events.iter().map(|event| (event.asked_at, event.subject)).collect();
        asked.sort_unstable();
        let mut expected = arrivals.concat();
        expected.sort_unstable();
        assert_eq!((asked, run.writes), (expected, 5));
        assert!(run.events.iter().all(|event| (200..=600).contains(&event.took)), "{run:?}");
    }
}
