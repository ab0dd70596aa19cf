//! One strategy in a simulated world: the arrivals, and what became of each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;
use tollgate::{Ask, Decision, Error, ErrorKind, Gate, Span, Timestamp};
use tollgate_sim::{Condition, Machine, Ran, SimStore, Watch, World};

use super::hop::Hop;
use super::line::{line_like, line_of};
use super::shape::Shape;
use super::strategy::{Kind, Strategy};

/// How long the last asks may take to be answered.
const REST: Span = Span::from_secs(10);

/// What became of one ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// When it was decided, in microseconds from the start.
    pub(super) at: u64,
    /// When it was asked.
    pub(super) asked_at: u64,
    pub(super) subject: u64,
    /// How long the answer took.
    pub(super) took: u64,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Admitted,
    Denied,
    Failed,
}

/// What one run came to.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    pub(super) events: Vec<Event>,
    /// Operations that reached the store, by what they cost there.
    pub(super) writes: u64,
    pub(super) reads: u64,
    pub(super) lasted: Span,
    /// When the store was away, in microseconds from the start; nothing if it was not.
    pub(super) outage: Option<(u64, u64)>,
}

/// What happens to the store during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Day {
    /// Nothing.
    Quiet,
    /// It is away for the middle third of a time three times as long as the outage.
    Outage,
}

/// What processes met with, for a simulation of just that.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorded {
    /// When each instance asked, in microseconds from the start and in that order, and for which subject.
    pub(super) arrivals: Vec<Arc<[(u64, u64)]>>,
    /// How long the store took, in microseconds, in ascending order.
    pub(super) trips: Vec<u64>,
}

/// Runs the traffic of `shape` through `strategy`.
pub(super) fn run(shape: &Shape, strategy: &Strategy, day: Day) -> Result<Run, Error> {
    in_world(shape, strategy, day, &Recorded::default())
}

/// Runs the arrivals of `recorded` through `strategy`, on a store that is as quick as that was.
pub(super) fn replay(
    shape: &Shape,
    strategy: &Strategy,
    recorded: &Recorded,
) -> Result<Run, Error> {
    in_world(shape, strategy, Day::Quiet, recorded)
}

fn in_world(
    shape: &Shape,
    strategy: &Strategy,
    day: Day,
    recorded: &Recorded,
) -> Result<Run, Error> {
    let ran = World::run(shape.seed, |world| fleet(world, shape, strategy, day, recorded));
    let (run, _) = ran.map_err(|stuck| Error::new(ErrorKind::Unavailable, stuck.to_string()))?;
    run
}

async fn fleet(
    world: World,
    shape: &Shape,
    strategy: &Strategy,
    day: Day,
    recorded: &Recorded,
) -> Result<Run, Error> {
    let lasts = match day {
        Day::Quiet => shape.duration,
        Day::Outage => Span::from_micros(shape.outage.as_micros() * 3),
    };
    let line =
        if recorded.trips.is_empty() { line_of(shape.latency) } else { line_like(&recorded.trips) };
    let counts = Arc::new(Counts::default());
    let store = Arc::new(SimStore::new(&world).watched(Arc::clone(&counts) as _));
    let events = Arc::new(Mutex::new(Vec::new()));
    let mut rng = Rng::with_seed(shape.seed);
    let shared = Arc::new(shape.clone());
    let gate = |number: u64, seed: u64| {
        let machine = Machine::with(&world, &store, line, number, seed, world.clock());
        strategy.gate(&machine, shape)
    };
    // As many seeds with brokers as without, so that every strategy gets the same arrivals.
    let seeds: Vec<u64> = (0..shape.instances).map(|_| rng.u64(..)).collect();
    let gates = if strategy.kind == Kind::Broker {
        let brokers: Vec<Arc<dyn Gate>> =
            (0..shape.brokers).map(|number| gate(number, number)).collect::<Result<_, _>>()?;
        let hop = line_of(shape.broker_latency);
        let asked = seeds.iter().zip(brokers.iter().cycle());
        let reached = asked.map(|(seed, broker)| {
            Hop::new(Arc::clone(broker), Arc::new(world.clock()), hop, *seed)
        });
        reached.map(|hop| Arc::new(hop) as Arc<dyn Gate>).collect()
    } else {
        (0..)
            .zip(&seeds)
            .map(|(number, seed)| gate(number, *seed))
            .collect::<Result<Vec<_>, _>>()?
    };
    for (number, gate) in gates.iter().enumerate() {
        let desk = Desk {
            world: world.clone(),
            began: world.now(),
            policy: strategy.policy.clone(),
            shape: Arc::clone(&shared),
            events: Arc::clone(&events),
            gate: Arc::clone(gate),
        };
        match recorded.arrivals.get(number) {
            Some(arrivals) => drop(tokio::spawn(desk.replay(Arc::clone(arrivals)))),
            None => drop(tokio::spawn(desk.open(rng.fork(), lasts))),
        }
    }
    let mut outage = None;
    if day == Day::Outage {
        let third = shape.outage;
        world.sleep(third).await;
        store.set(Condition::Down);
        world.sleep(third).await;
        store.set(Condition::Up);
        outage = Some((third.as_micros(), 2 * third.as_micros()));
    }
    let left = lasts.as_micros().saturating_sub(world.elapsed().as_micros());
    world.sleep(Span::from_micros(left)).await;
    let (writes, reads) = (counts.writes(), counts.reads());
    world.sleep(REST).await;
    let events = std::mem::take(&mut *events.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Run { events, writes, reads, lasted: lasts, outage })
}

/// The callers on one instance.
#[derive(Clone)]
struct Desk {
    world: World,
    began: Timestamp,
    policy: tollgate::Policy,
    shape: Arc<Shape>,
    gate: Arc<dyn Gate>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Desk {
    async fn open(self, mut rng: Rng, lasts: Span) {
        let Shape { burstiness, subjects, .. } = *self.shape;
        loop {
            self.world.sleep(gap(&mut rng, self.shape.mean_gap())).await;
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
        let name = format!("s{subject}");
        let ask = Ask::new(&self.policy, name.as_str()).with_costs(&self.shape.costs);
        let asked = self.world.now();
        let answer = self.gate.acquire(&ask).await;
        let now = self.world.now();
        let (outcome, at) = match answer {
            Ok(Decision::Admitted(permit)) => {
                // What the store decided counts from then; what was decided here from now.
                (Outcome::Admitted, permit.grant().at.max(asked).min(now))
            }
            Ok(Decision::Denied(_)) => (Outcome::Denied, now),
            Err(_) => (Outcome::Failed, now),
        };
        let event = Event {
            at: at.since(self.began).as_micros(),
            asked_at: asked.since(self.began).as_micros(),
            subject,
            took: now.since(asked).as_micros(),
            outcome,
        };
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

/// A time between two arrivals that do not know of each other, `mean` microseconds on average.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a drawn time is rounded to whole microseconds, and is never below zero"
)]
pub(super) fn gap(rng: &mut Rng, mean: u64) -> Span {
    Span::from_micros((-(1.0 - rng.f64()).ln() * mean as f64) as u64)
}

/// How many operations the store ran.
#[derive(Debug, Default)]
struct Counts {
    writes: AtomicU64,
    reads: AtomicU64,
}

impl Counts {
    fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl Watch for Counts {
    fn wants_standings(&self) -> bool {
        false
    }

    fn ran(&self, ran: &Ran<'_>) {
        let count = if ran.call.is_write() { &self.writes } else { &self.reads };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tollgate::{Limit, Policy, TokenBucket};

    use super::*;

    /// R002.5: a simulation beside a measured run asks when its processes did, whatever the shape would have drawn.
    #[test]
    fn r002_5_a_replay_has_the_arrivals_it_is_given() {
        let limit = Limit::new("burst", "requests", TokenBucket::per_second(10));
        let policy = Policy::new("api", [limit]).expect("the numbers are in bounds");
        let shape = Shape { instances: 2, rate: 1_000, subjects: 2, ..Shape::bare(policy) };
        let strategies = Strategy::all(&shape).expect("the policy has strategies");
        let arrivals = [vec![(100, 0), (100, 1), (70_000, 0)], vec![(5, 1), (900_000, 1)]];
        let trips = vec![200, 400, 600];
        let recorded = Recorded { arrivals: arrivals.clone().map(Arc::from).to_vec(), trips };
        let run = replay(&shape, &strategies[0], &recorded).expect("it runs");
        let mut asked: Vec<_> =
            run.events.iter().map(|event| (event.asked_at, event.subject)).collect();
        asked.sort_unstable();
        let mut expected = arrivals.concat();
        expected.sort_unstable();
        assert_eq!((asked, run.writes), (expected, 5));
        assert!(run.events.iter().all(|event| (200..=600).contains(&event.took)), "{run:?}");
    }
}
