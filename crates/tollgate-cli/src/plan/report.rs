//! The whole plan: what is printed, for people and for programs.

use serde::Serialize;
use tollgate::Error;

use super::advice::{self, Advice};
use super::measure::Measured;
use super::meter::{self, Figures};
use super::price::{self, Prices};
use super::shape::{Printed, Shape};
use super::simulate::{self, Day, Event, Outcome, Run};
use super::strategy::{Kind, Strategy};

/// A plan.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(super) shape: Printed,
    pub(super) prices: Prices,
    /// The item of a subject that uses all of its limits, as DynamoDB bills it.
    pub(super) dynamodb_item_bytes: usize,
    pub(super) strategies: Vec<Row>,
    pub(super) recommendation: Advice,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) measured: Option<Measured>,
}

/// What one strategy comes to.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    /// The most that a subject can be over within one window while the store answers.
    pub(super) over_max: u64,
    pub(super) note: String,
    /// What it takes to set up and to run.
    pub(super) effort: &'static str,
    /// How it fails, apart from what the figures show.
    pub(super) failure_modes: &'static str,
    #[serde(flatten)]
    pub(super) figures: Figures,
    pub(super) dynamodb_dollars_per_month: f64,
    /// Cores of a Redis server that its operations keep busy; a server uses one.
    pub(super) redis_cores: f64,
    /// Cores of a PostgreSQL server that its operations keep busy.
    pub(super) postgres_cores: f64,
    /// What the machines of its brokers cost; nothing without brokers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) brokers: Option<Brokers>,
    pub(super) outage: Outage,
}

/// What the brokers of a strategy come to.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Brokers {
    pub(super) dollars_per_month: f64,
    /// Cores that the asks of the whole fleet keep busy on all of them.
    pub(super) cores: f64,
}

/// What a strategy does while the store is away.
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
    /// Simulates every strategy, two at a time.
    pub(super) fn new(shape: &Shape, strategies: &[Strategy]) -> Result<Self, Error> {
        let rows = std::thread::scope(|scope| {
            let workers: Vec<_> =
                strategies.iter().map(|strategy| scope.spawn(|| row(shape, strategy))).collect();
            workers
                .into_iter()
                .map(|worker| {
                    worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                })
                .collect::<Result<Vec<_>, _>>()
        })?;
        Ok(Self {
            shape: shape.printed(),
            prices: shape.prices,
            dynamodb_item_bytes: shape.dynamodb_item_bytes(),
            recommendation: advice::of(shape, &rows),
            strategies: rows,
            measured: None,
        })
    }

    /// Takes the measured run in, and recommends by what the strategies did there instead of in the simulation.
    pub(super) fn recommend_measured(&mut self, shape: &Shape, measured: Measured) {
        let mut rows = self.strategies.clone();
        rows.retain_mut(|row| {
            let found = measured.figures.iter().find(|(name, _)| *name == row.name);
            found.is_some_and(|(_, figures)| {
                row.figures = figures.clone();
                true
            })
        });
        if !rows.is_empty() {
            self.recommendation = advice::of(shape, &rows).measured_on(&measured.store);
        }
        self.measured = Some(measured);
    }
}

fn row(shape: &Shape, strategy: &Strategy) -> Result<Row, Error> {
    let quiet = simulate::run(shape, strategy, Day::Quiet)?;
    let figures = meter::measure(shape, &quiet)?;
    let away = simulate::run(shape, strategy, Day::Outage)?;
    Ok(Row {
        name: strategy.kind.name().to_owned(),
        over_max: strategy.over_max,
        note: strategy.note.clone(),
        effort: strategy.kind.effort(),
        failure_modes: strategy.kind.failure_modes(),
        dynamodb_dollars_per_month: shape
            .prices
            .dynamodb_month(&figures, shape.dynamodb_item_bytes()),
        redis_cores: price::cores(figures.store_ops_per_second, price::REDIS_OP_MICROS),
        postgres_cores: price::cores(figures.store_ops_per_second, price::POSTGRES_OP_MICROS),
        figures,
        brokers: (strategy.kind == Kind::Broker).then(|| Brokers {
            dollars_per_month: shape.prices.brokers_month(shape.brokers),
            cores: price::cores(shape.rate as f64, price::BROKER_ASK_MICROS),
        }),
        outage: outage(shape, &away)?,
    })
}

fn outage(shape: &Shape, run: &Run) -> Result<Outage, Error> {
    let whole = meter::measure(shape, run)?;
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
        failed_percent: meter::percent(failed, asks),
        over_issued_percent: whole.over_issued_percent,
        worst_window_percent: whole.worst_window_percent,
        p99_us: took.get((took.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or(0),
    })
}
