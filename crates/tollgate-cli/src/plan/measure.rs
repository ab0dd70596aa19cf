//! The same traffic for real: processes on the configured store, beside a simulation of what they met with.
//!
//! The simulation gets the arrivals as they came, since a busy machine bunches them, and round trips like those that the
//! processes saw: what is compared is what the strategy made of them.
//!
//! Each process plays one instance. The parent gives it its work on standard input and reads what became of each ask from
//! its standard output. Subjects have names of their own, and are reset afterwards.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde::Serialize;
use tollgate::{Clock, ErrorKind, Span, SystemClock};

use super::meter::{self, Figures};
use super::report::Report;
use super::shape::{Shape, invalid};
use super::simulate::{self, Event, Outcome, Recorded, Run};
use super::strategy::Strategy;
use super::worker::{WORKER, Work, WorkShape, Worked};
use crate::config::{Config, StoreConfig};
use crate::failure::Failure;
use crate::open;

/// The most processes: more instances are measured, and simulated again, with so many.
const PROCESSES_MAX: u64 = 8;
/// The longest run for real.
pub(super) const LONGEST: Span = Span::from_secs(60);
/// How long processes may take to start before the first ask.
const START: Span = Span::from_millis(1_500);

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
    /// The middle one of all round trips to the store.
    pub(super) latency_us: u64,
    pub(super) lines: Vec<Line>,
    /// What each strategy came to, by its name: what the recommendation goes by.
    #[serde(skip)]
    pub(super) figures: Vec<(String, Figures)>,
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

/// Runs the traffic of `shape` for real with each strategy of `report`.
pub(super) fn run(shape: &Shape, config: &Config, report: &Report) -> Result<Measured, Failure> {
    let store = match &config.store {
        StoreConfig::Redis(_) => "redis",
        StoreConfig::Postgres(_) => "postgres",
        StoreConfig::DynamoDb(_) => "dynamodb",
        StoreConfig::Memory { .. } | StoreConfig::Embedded { .. } | StoreConfig::Broker(_) => {
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
    let shape = Shape {
        instances: shape.instances.min(PROCESSES_MAX),
        duration: shape.measure_for,
        ..shape.clone()
    };
    let (mut lines, mut trips, mut figures) = (Vec::new(), Vec::new(), Vec::new());
    for strategy in Strategy::all(&shape)? {
        let name = strategy.kind.name();
        if !strategy.kind.is_measured() || !report.strategies.iter().any(|row| row.name == name) {
            continue;
        }
        let subject = format!("{subject}-{name}");
        let (real, recorded) = processes(&shape, config, name, &subject, &*clock)?;
        let simulated = simulate::replay(&shape, &strategy, &recorded)?;
        trips.extend(recorded.trips);
        let real = meter::measure(&shape, &real)?;
        lines.extend(compare(name, &meter::measure(&shape, &simulated)?, &real));
        figures.push((name.to_owned(), real));
        for number in 0..shape.subjects {
            let subject = format!("{subject}-s{number}");
            runtime.block_on(gate.reset(&strategy.policy, &subject))?;
        }
    }
    runtime.block_on(opened.close())?;
    trips.sort_unstable();
    Ok(Measured {
        store: store.to_owned(),
        processes: shape.instances,
        lasted_us: shape.duration.as_micros(),
        latency_us: trips.get(trips.len() / 2).copied().unwrap_or(0),
        lines,
        figures,
    })
}

fn processes(
    shape: &Shape,
    config: &Config,
    strategy: &str,
    subject: &str,
    clock: &dyn Clock,
) -> Result<(Run, Recorded), Failure> {
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
    let mut recorded = Recorded::default();
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
        recorded.trips.extend(worked.trips);
        let mut arrivals: Vec<_> =
            worked.events.iter().map(|&(_, asked_at, subject, ..)| (asked_at, subject)).collect();
        arrivals.sort_unstable();
        recorded.arrivals.push(arrivals.into());
        run.events.extend(worked.events.iter().map(|&(at, asked_at, subject, took, how)| Event {
            at,
            asked_at,
            subject,
            took,
            outcome: [Outcome::Admitted, Outcome::Denied, Outcome::Failed][usize::from(how.min(2))],
        }));
    }
    recorded.trips.sort_unstable();
    Ok((run, recorded))
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
