//! One process of a measured plan: it runs one instance, and prints the outcome of each of its asks.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use tollgate::clock::SystemClock;
use tollgate::policy::Policies;
use tollgate::{Clock, Costs, Error, ErrorKind, Policy, Span, Timestamp};

use super::counting_gate::CountingGate;
use super::simulate::{self, Event};
use super::strategy::Strategy;
use super::workload::{Parent, Workload, invalid};
use crate::command::block_on;
use crate::config;
use tollgate_config::Config;
use tollgate_config::open::{self, SHUTDOWN_MAX};
use tollgate_terminal::Failure;
use tollgate_terminal::output;

/// The argument that makes the binary a worker of a measured plan.
pub(crate) const WORKER: &str = "plan-worker";

/// The work of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Work {
    pub(super) config: Option<PathBuf>,
    pub(super) policy: String,
    pub(super) strategy: String,
    pub(super) workload: WorkerLoad,
    pub(super) subject: String,
    pub(super) number: u64,
    /// When the first ask may come, in microseconds since the epoch.
    pub(super) begin: u64,
}

/// The part of a workload that a process needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct WorkerLoad {
    instances: u64,
    rate: u64,
    burstiness: u64,
    subjects: u64,
    /// The policies of the parents, and how many subjects each has.
    parents: Vec<(String, u64)>,
    costs: Vec<(String, u64)>,
    duration_us: u64,
    unposted_max: Option<u64>,
    headroom_percent: u8,
    seed: u64,
}

/// The output of a process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Worked {
    pub(super) events: Vec<Event>,
    pub(super) writes: u64,
    pub(super) reads: u64,
    /// How long each call of the store took, in microseconds.
    pub(super) trips: Vec<u64>,
}

impl WorkerLoad {
    pub(super) fn new(workload: &Workload) -> Self {
        Self {
            instances: workload.instances,
            rate: workload.rate,
            burstiness: workload.burstiness,
            subjects: workload.subjects,
            parents: workload
                .parents
                .iter()
                .map(|parent| (parent.policy.name().to_owned(), parent.subjects))
                .collect(),
            costs: workload.costs.iter().map(|(unit, cost)| (unit.to_owned(), cost)).collect(),
            duration_us: workload.duration.as_micros(),
            unposted_max: workload.unposted_max,
            headroom_percent: workload.headroom_percent,
            seed: workload.seed,
        }
    }

    fn workload(self, policy: Policy, policies: &Policies) -> Result<Workload, Error> {
        let parent = |(name, subjects): (String, u64)| {
            Ok(Parent { policy: policies.get(&name)?.clone(), subjects })
        };
        Ok(Workload {
            parents: self.parents.into_iter().map(parent).collect::<Result<_, Error>>()?,
            instances: self.instances,
            rate: self.rate,
            burstiness: self.burstiness,
            subjects: self.subjects,
            costs: self.costs.into_iter().collect::<Costs>(),
            duration: Span::from_micros(self.duration_us),
            unposted_max: self.unposted_max,
            headroom_percent: self.headroom_percent,
            seed: self.seed,
            ..Workload::minimal(policy)
        })
    }
}

/// Runs one instance: `tollgate plan-worker`, with its work on standard input.
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
    let config = config::load(work.config.as_deref())?;
    output::print_json(&block_on(async { Ok(worker(work, &config).await?) })?)
}

async fn worker(work: Work, config: &Config) -> Result<Worked, Error> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let policy = config.policies.get(&work.policy)?.clone();
    let workload = Arc::new(work.workload.workload(policy, &config.policies)?);
    let strategies = Strategy::all(&workload)?;
    let strategy = strategies
        .into_iter()
        .find(|strategy| strategy.kind.name() == work.strategy)
        .ok_or_else(|| invalid(format!("there is no strategy {:?}", work.strategy)))?;
    let strategy = Arc::new(strategy);
    let opened = open::for_command(&config.store, &config.fallback, Arc::clone(&clock)).await?;
    let counted = Arc::new(CountingGate::new(opened.gate(), Arc::clone(&clock)));
    let gate = strategy.wrap(Arc::clone(&counted) as _, Arc::clone(&clock), &workload)?;
    let begin = Timestamp::from_micros(work.begin);
    let mut rng = fastrand::Rng::with_seed(workload.seed ^ (work.number + 1) << 32);
    let mut asks = Vec::new();
    let mut next = begin;
    loop {
        next = next + simulate::gap(&mut rng, workload.mean_gap());
        if begin + workload.duration <= next {
            break;
        }
        clock.sleep_until(next).await;
        for _ in 0..rng.u64(1..=2 * workload.burstiness - 1) {
            let (number, gate, clock) =
                (rng.u64(..workload.subjects), Arc::clone(&gate), Arc::clone(&clock));
            let prefix = format!("{}-", work.subject);
            let (strategy, workload) = (Arc::clone(&strategy), Arc::clone(&workload));
            asks.push(tokio::spawn(async move {
                let ask = strategy.ask(&workload, &prefix, number);
                simulate::record(&*gate, &ask, number, begin, || clock.now()).await
            }));
        }
    }
    // A simulation does not count operations after the last arrival either.
    clock.sleep_until(begin + workload.duration).await;
    let (writes, reads) =
        (counted.writes.load(Ordering::Relaxed), counted.reads.load(Ordering::Relaxed));
    let trips = counted.trips().clone();
    let mut events = Vec::with_capacity(asks.len());
    for ask in asks {
        events.extend(ask.await.ok());
    }
    drop(gate);
    opened.shutdown(clock.now() + SHUTDOWN_MAX).await?;
    Ok(Worked { events, writes, reads, trips })
}
