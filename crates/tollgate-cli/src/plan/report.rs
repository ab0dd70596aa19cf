//! The result of a plan.

use serde::Serialize;
use tollgate::Error;

use super::advice::{self, Advice};
use super::figures::{self, Figures};
use super::measure::Measured;
use super::price::{self, Prices};
use super::simulate::{self, Event, Outcome, Run, Scenario};
use super::strategy::{Kind, Strategy};
use super::workload::{Workload, dynamodb_item_bytes};

/// The result of a plan.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    #[serde(rename = "shape")]
    pub(super) workload: Workload,
    pub(super) prices: Prices,
    /// The item of a subject of the first policy that uses all of its limits, as DynamoDB bills it.
    pub(super) dynamodb_item_bytes: usize,
    pub(super) strategies: Vec<Row>,
    pub(super) recommendation: Advice,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) measured: Option<Measured>,
}

/// The figures of one strategy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    /// The largest possible excess of a subject in one window while the store is available.
    pub(super) over_max: u64,
    pub(super) note: String,
    /// The effort of set-up and operation.
    pub(super) effort: &'static str,
    /// The failure modes that the figures do not show.
    pub(super) failure_modes: &'static str,
    #[serde(flatten)]
    pub(super) figures: Figures,
    pub(super) dynamodb_dollars_per_month: f64,
    /// Cores of a Redis server that its operations keep busy; a server uses one.
    pub(super) redis_cores: f64,
    /// Cores of a PostgreSQL server that its operations keep busy.
    pub(super) postgres_cores: f64,
    /// The cost of its brokers, if it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) brokers: Option<Brokers>,
    pub(super) outage: Outage,
}

/// The cost of the brokers of a strategy.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Brokers {
    pub(super) dollars_per_month: f64,
    /// Cores that the asks of the whole fleet keep busy on all of them.
    pub(super) cores: f64,
}

/// The figures of a strategy while the store is unavailable.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Outage {
    pub(super) asks: u64,
    pub(super) admitted: u64,
    pub(super) failed: u64,
    pub(super) failed_percent: f64,
    /// Of the whole run around the outage.
    pub(super) over_issued_percent: f64,
    pub(super) worst_window_percent: f64,
    pub(super) p99_us: u64,
}

impl Report {
    /// Simulates every strategy.
    pub(super) fn new(workload: &Workload, strategies: &[Strategy]) -> Result<Self, Error> {
        let rows = std::thread::scope(|scope| {
            let workers: Vec<_> =
                strategies.iter().map(|strategy| scope.spawn(|| row(workload, strategy))).collect();
            workers
                .into_iter()
                .map(|worker| {
                    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect::<Result<Vec<_>, _>>()
        })?;
        Ok(Self {
            workload: workload.clone(),
            prices: workload.prices,
            dynamodb_item_bytes: dynamodb_item_bytes(&workload.policy),
            recommendation: advice::recommend(workload, &rows),
            strategies: rows,
            measured: None,
        })
    }

    /// Adds the measured run, and bases the recommendation on it instead of the simulation.
    pub(super) fn recommend_measured(&mut self, workload: &Workload, measured: Measured) {
        let mut rows = self.strategies.clone();
        rows.retain_mut(|row| {
            let found = measured.figures.iter().find(|(name, _)| *name == row.name);
            found.is_some_and(|(_, figures)| {
                row.figures = figures.clone();
                true
            })
        });
        if !rows.is_empty() {
            self.recommendation = advice::recommend(workload, &rows).measured_on(&measured.store);
        }
        self.measured = Some(measured);
    }
}

fn row(workload: &Workload, strategy: &Strategy) -> Result<Row, Error> {
    let quiet = simulate::run(workload, strategy, Scenario::Normal)?;
    let figures = figures::measure(workload, &quiet)?;
    let away = simulate::run(workload, strategy, Scenario::Outage)?;
    // Asks with several charges go to the store, so nothing is admitted before it knows.
    let described = match strategy.kind {
        Kind::Optimistic if workload.has_parents() => Kind::Atomic,
        kind => kind,
    };
    Ok(Row {
        name: strategy.kind.name().to_owned(),
        over_max: strategy.over_max,
        note: strategy.note.clone(),
        effort: described.effort(),
        failure_modes: described.failure_modes(),
        dynamodb_dollars_per_month: workload.prices.dynamodb_month(&figures),
        redis_cores: price::cores(figures.store_entries_per_second, price::REDIS_OP_MICROS),
        postgres_cores: price::cores(figures.store_entries_per_second, price::POSTGRES_OP_MICROS),
        figures,
        brokers: (strategy.kind == Kind::Broker).then(|| Brokers {
            dollars_per_month: workload.prices.brokers_month(workload.brokers),
            cores: price::cores(workload.rate as f64, price::BROKER_ASK_MICROS),
        }),
        outage: outage(workload, &away)?,
    })
}

fn outage(workload: &Workload, run: &Run) -> Result<Outage, Error> {
    let whole = figures::measure(workload, run)?;
    let Some((from, to)) = run.outage else { return Ok(Outage::default()) };
    let during: Vec<&Event> =
        run.events.iter().filter(|event| (from..to).contains(&event.asked_at)).collect();
    let count = |outcome| during.iter().filter(|event| event.outcome == outcome).count() as u64;
    let mut took: Vec<u64> = during.iter().map(|event| event.took).collect();
    took.sort_unstable();
    let (asks, failed) = (during.len() as u64, count(Outcome::Failed));
    Ok(Outage {
        asks,
        admitted: count(Outcome::Admitted),
        failed,
        failed_percent: figures::percent(failed, asks),
        over_issued_percent: whole.over_issued_percent,
        worst_window_percent: whole.worst_window_percent,
        p99_us: figures::quantile(&took, 99),
    })
}
