//! The same traffic for real: processes on the configured store, beside a simulation with its round trip.
//!
//! Each process plays one instance. The parent gives it its work on standard input and reads what became of each ask from
//! its standard output. Subjects have names of their own, and are reset afterwards.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use tollgate::{
    Ask, BoxFuture, Clock, Costs, Decision, Error, ErrorKind, Gate, Permit, Policy, Span, Standing,
    SystemClock, Timestamp,
};

use super::meter::{self, Figures};
use super::report::Report;
use super::shape::{Shape, invalid};
use super::simulate::{self, Day, Event, Outcome, Run};
use super::strategy::Strategy;
use crate::config::{Config, StoreConfig};
use crate::failure::Failure;
use crate::open;

/// The word that makes the binary a process of a measured plan.
pub(crate) const WORKER: &str = "plan-worker";
/// The most processes: more instances are measured, and simulated again, with so many.
const PROCESSES_MAX: u64 = 8;
/// The longest run for real.
pub(super) const LONGEST: Span = Span::from_secs(60);
/// How long processes may take to start before the first ask.
const START: Span = Span::from_millis(1_500);
/// How often the store is asked for its round trip.
const PROBES: usize = 40;

/// How far admissions may be apart, in percent.
const ADMITTED_TOLERANCE: f64 = 10.0;
/// How far over-issue may be apart, in percentage points.
const OVER_TOLERANCE: f64 = 3.0;
/// How far store operations may be apart, in percent.
const OPS_TOLERANCE: f64 = 25.0;

/// Both runs, side by side.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    pub(super) store: String,
    pub(super) processes: u64,
    pub(super) lasted_us: u64,
    /// The store's round trip, which the simulation beside it used.
    pub(super) latency_us: u64,
    pub(super) lines: Vec<Line>,
}

/// One figure of one strategy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line {
    pub(super) strategy: String,
    pub(super) figure: String,
    pub(super) simulated: f64,
    pub(super) measured: f64,
    pub(super) tolerance: String,
    pub(super) agrees: bool,
    /// Whether agreement is claimed at all.
    pub(super) is_held: bool,
}

/// What one process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Work {
    config: Option<PathBuf>,
    policy: String,
    strategy: String,
    shape: WorkShape,
    subject: String,
    number: u64,
    /// When the first ask may come, in microseconds since the epoch.
    begin: u64,
}

/// The traffic, as it travels to a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct WorkShape {
    instances: u64,
    rate: u64,
    burstiness: u64,
    subjects: u64,
    costs: Vec<(String, u64)>,
    duration_us: u64,
    latency_us: u64,
    unposted_max: Option<u64>,
    headroom_percent: u8,
    seed: u64,
}

/// What a process answers.
#[derive(Debug, Serialize, Deserialize)]
struct Worked {
    /// Decided at, asked at (from `begin`), subject, took, and how: 0 admitted, 1 denied, 2 failed.
    events: Vec<(u64, u64, u64, u64, u8)>,
    writes: u64,
    reads: u64,
}

/// Runs the traffic of `shape` for real with each strategy of `report`.
pub(super) fn run(shape: &Shape, config: &Config, report: &Report) -> Result<Measured, Failure> {
    let store = match &config.store {
        StoreConfig::Redis(_) => "redis",
        StoreConfig::Postgres(_) => "postgres",
        StoreConfig::DynamoDb(_) => "dynamodb",
        StoreConfig::Memory | StoreConfig::Embedded { .. } | StoreConfig::Broker(_) => {
            return Err(invalid(
                "--measure needs a store that processes share; configure [store] kind = \"redis\", \"postgres\" or \
                 \"dynamodb\"",
            )
            .into());
        }
    };
    let runtime = crate::runtime(tokio::runtime::Builder::new_current_thread())?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let subject = format!("plan-{}", clock.now().as_micros());
    let opened =
        runtime.block_on(open::for_command(&config.store, &config.fallback, Arc::clone(&clock)))?;
    let gate = opened.gate();
    let latency = runtime.block_on(probe(&*gate, &shape.policy, &subject, &*clock))?;
    let shape = Shape {
        instances: shape.instances.min(PROCESSES_MAX),
        duration: shape.measure_for,
        latency,
        ..shape.clone()
    };
    let mut lines = Vec::new();
    for strategy in Strategy::all(&shape)? {
        let name = strategy.kind.name();
        if !report.strategies.iter().any(|row| row.name == name) {
            continue;
        }
        let simulated = simulate::run(&shape, &strategy, Day::Quiet)?;
        let subject = format!("{subject}-{name}");
        let real = processes(&shape, config, name, &subject, &*clock)?;
        lines.extend(compare(
            name,
            &meter::measure(&shape, &simulated)?,
            &meter::measure(&shape, &real)?,
        ));
        for number in 0..shape.subjects {
            let subject = format!("{subject}-s{number}");
            runtime.block_on(gate.reset(&strategy.policy, &subject))?;
        }
    }
    runtime.block_on(opened.close())?;
    Ok(Measured {
        store: store.to_owned(),
        processes: shape.instances,
        lasted_us: shape.duration.as_micros(),
        latency_us: latency.as_micros(),
        lines,
    })
}

/// The middle one of some round trips.
async fn probe(
    gate: &dyn Gate,
    policy: &Policy,
    subject: &str,
    clock: &dyn Clock,
) -> Result<Span, Error> {
    let mut took = Vec::with_capacity(PROBES);
    for _ in 0..PROBES {
        let since = clock.now();
        gate.standing(policy, subject).await?;
        took.push(clock.now().since(since));
    }
    took.sort_unstable();
    Ok(took[PROBES / 2].max(Span::from_micros(10)))
}

fn processes(
    shape: &Shape,
    config: &Config,
    strategy: &str,
    subject: &str,
    clock: &dyn Clock,
) -> Result<Run, Failure> {
    let broken = |error: std::io::Error| {
        Failure::new(ErrorKind::Unavailable, format!("a process could not be run: {error}"))
    };
    let binary = std::env::current_exe().map_err(broken)?;
    let begin = (clock.now() + START).as_micros();
    let mut children: Vec<Child> = Vec::new();
    for number in 0..shape.instances {
        let work = Work {
            config: config.file.clone(),
            policy: shape.policy.name().to_owned(),
            strategy: strategy.to_owned(),
            shape: WorkShape::of(shape),
            subject: subject.to_owned(),
            number,
            begin,
        };
        let mut child = Command::new(&binary)
            .arg(WORKER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(broken)?;
        let text = serde_json::to_vec(&work).unwrap_or_default();
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(&text).map_err(broken)?;
        }
        children.push(child);
    }
    let mut run = Run { lasted: shape.duration, ..Run::default() };
    for child in children {
        let output = child.wait_with_output().map_err(broken)?;
        if !output.status.success() {
            return Err(Failure::new(ErrorKind::Unavailable, "a process failed; see above"));
        }
        let worked: Worked = serde_json::from_slice(&output.stdout).map_err(|error| {
            Failure::new(ErrorKind::Unavailable, format!("a process answered oddly: {error}"))
        })?;
        run.writes += worked.writes;
        run.reads += worked.reads;
        run.events.extend(worked.events.iter().map(|&(at, asked_at, subject, took, how)| Event {
            at,
            asked_at,
            subject,
            took,
            outcome: [Outcome::Admitted, Outcome::Denied, Outcome::Failed][usize::from(how.min(2))],
        }));
    }
    Ok(run)
}

fn compare(strategy: &str, simulated: &Figures, measured: &Figures) -> Vec<Line> {
    let line = |figure: &str, simulated: f64, measured: f64, tolerance: Tolerance| Line {
        strategy: strategy.to_owned(),
        figure: figure.to_owned(),
        simulated,
        measured,
        agrees: tolerance.holds(simulated, measured),
        is_held: tolerance != Tolerance::None,
        tolerance: tolerance.words(),
    };
    let ops = |figures: &Figures| figures.store_ops_per_second;
    vec![
        line(
            "admitted/s",
            simulated.admitted_per_second,
            measured.admitted_per_second,
            Tolerance::Percent(ADMITTED_TOLERANCE),
        ),
        line(
            "over-issued %",
            simulated.over_issued_percent,
            measured.over_issued_percent,
            Tolerance::Points(OVER_TOLERANCE),
        ),
        line("store ops/s", ops(simulated), ops(measured), Tolerance::Percent(OPS_TOLERANCE)),
        line("p50 us", simulated.p50_us as f64, measured.p50_us as f64, Tolerance::None),
        line("p99 us", simulated.p99_us as f64, measured.p99_us as f64, Tolerance::None),
    ]
}

/// How far two figures may be apart.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tolerance {
    /// In percent of the simulated one.
    Percent(f64),
    /// In percentage points.
    Points(f64),
    /// Latency on a shared machine says more about the machine.
    None,
}

impl Tolerance {
    fn holds(self, simulated: f64, measured: f64) -> bool {
        let apart = (simulated - measured).abs();
        match self {
            Self::Percent(percent) => apart <= simulated.abs() * percent / 100.0,
            Self::Points(points) => apart <= points,
            Self::None => true,
        }
    }

    fn words(self) -> String {
        match self {
            Self::Percent(percent) => format!("{percent:.0}%"),
            Self::Points(points) => format!("{points:.0} points"),
            Self::None => String::new(),
        }
    }
}

impl WorkShape {
    fn of(shape: &Shape) -> Self {
        Self {
            instances: shape.instances,
            rate: shape.rate,
            burstiness: shape.burstiness,
            subjects: shape.subjects,
            costs: shape.costs.iter().map(|(unit, cost)| (unit.to_owned(), cost)).collect(),
            duration_us: shape.duration.as_micros(),
            latency_us: shape.latency.as_micros(),
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
            latency: Span::from_micros(self.latency_us),
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
    let counted = Arc::new(Counted { gate: opened.gate(), writes: 0.into(), reads: 0.into() });
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
    let mut events = Vec::with_capacity(asks.len());
    for ask in asks {
        events.extend(ask.await.ok());
    }
    drop(gate);
    opened.close().await?;
    Ok(Worked { events, writes, reads })
}

/// A gate whose calls are counted.
#[derive(Debug)]
struct Counted {
    gate: Arc<dyn Gate>,
    writes: AtomicU64,
    reads: AtomicU64,
}

impl Counted {
    fn write(&self) -> &dyn Gate {
        self.writes.fetch_add(1, Ordering::Relaxed);
        &*self.gate
    }
}

impl Gate for Counted {
    fn acquire<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Decision, Error>> {
        self.write().acquire(ask)
    }

    fn settle<'a>(
        &'a self,
        permit: &'a Permit,
        actual: &'a Costs,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.write().settle(permit, actual)
    }

    fn release<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<bool, Error>> {
        self.write().release(permit)
    }

    fn renew<'a>(&'a self, permit: &'a Permit) -> BoxFuture<'a, Result<Permit, Error>> {
        self.write().renew(permit)
    }

    fn charge<'a>(&'a self, ask: &'a Ask<'a>) -> BoxFuture<'a, Result<Permit, Error>> {
        self.write().charge(ask)
    }

    fn close_until<'a>(
        &'a self,
        ask: &'a Ask<'a>,
        limit: &'a str,
        until: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.write().close_until(ask, limit, until)
    }

    fn standing<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Standing>, Error>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.gate.standing(policy, subject)
    }

    fn reset<'a>(
        &'a self,
        policy: &'a Policy,
        subject: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.write().reset(policy, subject)
    }
}
