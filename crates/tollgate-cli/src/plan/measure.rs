//! Runs the workload in processes on the configured store, beside a simulation of the same arrivals.
//!
//! The simulation replays the recorded arrivals, since a busy machine bunches them, with similar round trips, so that only
//! the strategies are compared.
//!
//! Each process runs one instance. The parent writes the work to its standard input and reads the events from its standard
//! output. Subjects have names of their own, and are reset afterwards.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use serde::Serialize;
use tollgate::clock::SystemClock;
use tollgate::{Clock, ErrorKind, GateExt, Span};

use super::figures::{self, Figures};
use super::report::Report;
use super::simulate::{self, Recorded, Run};
use super::strategy::Strategy;
use super::worker::{WORKER, Work, Worked, WorkerLoad};
use super::workload::{Workload, invalid};
use crate::command::runtime;
use tokio::runtime::Builder;
use tollgate_config::Config;
use tollgate_config::open::{self, SHUTDOWN_MAX};
use tollgate_terminal::Failure;

/// The most processes; a larger fleet is measured, and simulated again, with this many.
const PROCESSES_MAX: u64 = 8;
/// The longest measured run.
pub(super) const LONGEST: Span = Span::from_secs(60);
/// How long processes may take to start before the first ask.
const START: Span = Span::from_millis(1_500);

/// How far admissions may be apart, in percent.
const ADMITTED_TOLERANCE: f64 = 10.0;
/// How far over-issue may be apart, in percentage points.
const OVER_TOLERANCE: f64 = 3.0;
/// How far refusals by one charge may be apart, in percentage points of all asks.
const REFUSED_TOLERANCE: f64 = 5.0;
/// How far store operations may be apart, in percent.
const OPS_TOLERANCE: f64 = 25.0;

/// Both runs, side by side.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    pub(super) store: String,
    pub(super) processes: u64,
    pub(super) lasted_us: u64,
    /// The median round trip to the store.
    pub(super) latency_us: u64,
    #[serde(rename = "lines")]
    pub(super) comparisons: Vec<Comparison>,
    /// The figures of each strategy by its name, for the recommendation.
    #[serde(skip)]
    pub(super) figures: Vec<(String, Figures)>,
}

/// One figure of one strategy, simulated and measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) strategy: String,
    pub(super) figure: String,
    pub(super) simulated: f64,
    pub(super) measured: f64,
    pub(super) tolerance: String,
    pub(super) agrees: bool,
    /// Whether agreement is expected.
    pub(super) is_held: bool,
}

/// Measures `workload` with each strategy of `report`.
pub(super) fn run(
    workload: &Workload,
    config: &Config,
    report: &Report,
) -> Result<Measured, Failure> {
    if !matches!(config.store.remote_kind(), Some("redis" | "postgres" | "dynamodb")) {
        return Err(invalid(
            "--measure needs a store that processes share; configure [store] kind = \"redis\", \"postgres\" or \
             \"dynamodb\"",
        )
        .into());
    }
    let runtime = runtime(Builder::new_current_thread())?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let subject = format!("plan-{}", clock.now().as_micros());
    let opened =
        runtime.block_on(open::for_command(&config.store, &config.fallback, Arc::clone(&clock)))?;
    let gate = opened.gate();
    let workload = Workload {
        instances: workload.instances.min(PROCESSES_MAX),
        duration: workload.measure_for,
        ..workload.clone()
    };
    let (mut comparisons, mut trips, mut figures) = (Vec::new(), Vec::new(), Vec::new());
    for strategy in Strategy::all(&workload)? {
        let name = strategy.kind.name();
        if !strategy.kind.is_measured() || !report.strategies.iter().any(|row| row.name == name) {
            continue;
        }
        let subject = format!("{subject}-{name}");
        let (real, recorded) = processes(&workload, config, name, &subject, &*clock)?;
        let simulated = simulate::replay(&workload, &strategy, &recorded)?;
        trips.extend(recorded.trips);
        let real = figures::measure(&workload, &real)?;
        comparisons.extend(compare(name, &figures::measure(&workload, &simulated)?, &real));
        figures.push((name.to_owned(), real));
        let policies = std::iter::once(&strategy.policy).chain(&strategy.parents);
        for (policy, (_, subjects)) in policies.zip(workload.charges()) {
            for number in 0..subjects {
                let subject = format!("{subject}-s{number}");
                runtime.block_on(gate.reset(policy, &subject))?;
            }
        }
    }
    runtime.block_on(opened.shutdown(clock.now() + SHUTDOWN_MAX))?;
    trips.sort_unstable();
    Ok(Measured {
        store: config.store.kind().to_owned(),
        processes: workload.instances,
        lasted_us: workload.duration.as_micros(),
        latency_us: trips.get(trips.len() / 2).copied().unwrap_or(0),
        comparisons,
        figures,
    })
}

fn processes(
    workload: &Workload,
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
    for number in 0..workload.instances {
        let work = Work {
            config: config.document.file().map(std::path::Path::to_owned),
            policy: workload.policy.name().to_owned(),
            strategy: strategy.to_owned(),
            workload: WorkerLoad::new(workload),
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
    let mut run = Run { lasted: workload.duration, ..Run::default() };
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
            worked.events.iter().map(|event| (event.asked_at, event.subject)).collect();
        arrivals.sort_unstable();
        recorded.arrivals.push(arrivals.into());
        run.events.extend(worked.events);
    }
    recorded.trips.sort_unstable();
    Ok((run, recorded))
}

fn compare(strategy: &str, simulated: &Figures, measured: &Figures) -> Vec<Comparison> {
    let line = |figure: &str, simulated: f64, measured: f64, tolerance: Tolerance| Comparison {
        strategy: strategy.to_owned(),
        figure: figure.to_owned(),
        simulated,
        measured,
        agrees: tolerance.holds(simulated, measured),
        is_held: tolerance != Tolerance::None,
        tolerance: tolerance.words(),
    };
    let ops = |figures: &Figures| figures.store_ops_per_second;
    let mut lines = vec![
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
    ];
    if 1 < simulated.refused_by.len() {
        let both = simulated.refused_by.iter().zip(&measured.refused_by);
        lines.extend(both.map(|(simulated, measured)| {
            let figure = format!("refused by {} %", simulated.policy);
            let tolerance = Tolerance::Points(REFUSED_TOLERANCE);
            line(&figure, simulated.percent, measured.percent, tolerance)
        }));
    }
    lines
}

/// How much two figures may differ.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tolerance {
    /// In percent of the simulated one.
    Percent(f64),
    /// In percentage points.
    Points(f64),
    /// Any difference: latency depends on the load of the machine.
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
