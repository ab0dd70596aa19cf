//! One process of a measured plan: it plays one instance, and answers with what became of each of its asks.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use tollgate::{
    Ask, Clock, Costs, Decision, Error, ErrorKind, Policy, Span, SystemClock, Timestamp,
};

use super::counted::Counted;
use super::shape::{Shape, invalid};
use super::simulate;
use super::strategy::Strategy;
use crate::config::Config;
use crate::failure::Failure;
use crate::open;

/// The word that makes the binary a process of a measured plan.
pub(crate) const WORKER: &str = "plan-worker";

/// What one process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Work {
    pub(super) config: Option<PathBuf>,
    pub(super) policy: String,
    pub(super) strategy: String,
    pub(super) shape: WorkShape,
    pub(super) subject: String,
    pub(super) number: u64,
    /// When the first ask may come, in microseconds since the epoch.
    pub(super) begin: u64,
}

/// The traffic, as it travels to a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct WorkShape {
    instances: u64,
    rate: u64,
    burstiness: u64,
    subjects: u64,
    costs: Vec<(String, u64)>,
    duration_us: u64,
    unposted_max: Option<u64>,
    headroom_percent: u8,
    seed: u64,
}

/// What a process answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Worked {
    /// Decided at, asked at (from `begin`), subject, took, and how: 0 admitted, 1 denied, 2 failed.
    pub(super) events: Vec<(u64, u64, u64, u64, u8)>,
    pub(super) writes: u64,
    pub(super) reads: u64,
    /// How long each call of the store took, in microseconds.
    pub(super) trips: Vec<u64>,
}

impl WorkShape {
    pub(super) fn of(shape: &Shape) -> Self {
        Self {
            instances: shape.instances,
            rate: shape.rate,
            burstiness: shape.burstiness,
            subjects: shape.subjects,
            costs: shape.costs.iter().map(|(unit, cost)| (unit.to_owned(), cost)).collect(),
            duration_us: shape.duration.as_micros(),
            unposted_max: shape.unposted_max,
            headroom_percent: shape.headroom_percent,
            seed: shape.seed,
        }
    }

    fn shape(self, policy: Policy) -> Shape {
        Shape {
            instances: self.instances,
            rate: self.rate,
            burstiness: self.burstiness,
            subjects: self.subjects,
            costs: self.costs.into_iter().collect::<Costs>(),
            duration: Span::from_micros(self.duration_us),
            unposted_max: self.unposted_max,
            headroom_percent: self.headroom_percent,
            seed: self.seed,
            ..Shape::bare(policy)
        }
    }
}

/// Plays one instance: `tollgate plan-worker`, with its work on standard input.
pub(crate) fn work() -> Result<(), Failure> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|error| {
        Failure::new(ErrorKind::Invalid, format!("the work could not be read: {error}"))
    })?;
    let work: Work = serde_json::from_str(&text).map_err(|error| {
        Failure::new(
            ErrorKind::Invalid,
            format!("plan-worker is for tollgate plan --measure, which gives it its work: {error}"),
        )
    })?;
    let config = Config::load(work.config.as_deref())?;
    let worked = crate::runtime(tokio::runtime::Builder::new_current_thread())?
        .block_on(worker(work, &config))?;
    crate::output::json(&worked)
}

async fn worker(work: Work, config: &Config) -> Result<Worked, Error> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let policy = config.policies.get(&work.policy)?.clone();
    let shape = work.shape.shape(policy);
    let strategies = Strategy::all(&shape)?;
    let strategy = strategies
        .iter()
        .find(|strategy| strategy.kind.name() == work.strategy)
        .ok_or_else(|| invalid(format!("there is no strategy {:?}", work.strategy)))?;
    let opened = open::for_command(&config.store, &config.fallback, Arc::clone(&clock)).await?;
    let counted = Arc::new(Counted::new(opened.gate(), Arc::clone(&clock)));
    let gate = strategy.around(Arc::clone(&counted) as _, Arc::clone(&clock), &shape)?;
    let begin = Timestamp::from_micros(work.begin);
    let mut rng = fastrand::Rng::with_seed(shape.seed ^ (work.number + 1) << 32);
    let mut asks = Vec::new();
    let mut next = begin;
    loop {
        next = next + simulate::gap(&mut rng, shape.mean_gap());
        if begin + shape.duration <= next {
            break;
        }
        clock.sleep_until(next).await;
        for _ in 0..rng.u64(1..=2 * shape.burstiness - 1) {
            let (number, gate, clock) =
                (rng.u64(..shape.subjects), Arc::clone(&gate), Arc::clone(&clock));
            let subject = format!("{}-s{number}", work.subject);
            let (policy, costs) = (strategy.policy.clone(), shape.costs.clone());
            asks.push(tokio::spawn(async move {
                let ask = Ask::new(&policy, subject).with_costs(&costs);
                let asked = clock.now();
                let answer = gate.acquire(&ask).await;
                let now = clock.now();
                let (at, how) = match answer {
                    Ok(Decision::Admitted(permit)) => (permit.grant().at.max(asked).min(now), 0),
                    Ok(Decision::Denied(_)) => (now, 1),
                    Err(_) => (now, 2),
                };
                let since = |at: Timestamp| at.since(begin).as_micros();
                (since(at), since(asked), number, now.since(asked).as_micros(), how)
            }));
        }
    }
    // What is written after the last arrival would not be counted in a simulation either.
    clock.sleep_until(begin + shape.duration).await;
    let (writes, reads) =
        (counted.writes.load(Ordering::Relaxed), counted.reads.load(Ordering::Relaxed));
    let trips = counted.trips().clone();
    let mut events = Vec::with_capacity(asks.len());
    for ask in asks {
        events.extend(ask.await.ok());
    }
    drop(gate);
    opened.close().await?;
    Ok(Worked { events, writes, reads, trips })
}
