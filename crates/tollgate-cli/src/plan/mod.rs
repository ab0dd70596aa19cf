//! `tollgate plan`: what each strategy would do with a policy, a fleet and its traffic, so that a team can choose
//! (R002.5).
//!
//! Each strategy runs in a simulated world: the real gates, on a simulated network and store, with the same arrivals. What
//! they admitted is then held against an exact limiter that had no network at all.

mod advice;
mod chart;
mod counted;
mod hop;
mod line;
mod measure;
mod meter;
mod price;
mod report;
mod shape;
mod simulate;
mod strategy;
mod text;
mod words;
mod worker;

use std::path::PathBuf;

use tollgate::ErrorKind;

use crate::args::PlanFlags;
use crate::config::Config;
use crate::failure::Failure;
use crate::output::{self, Reader};

pub(crate) use price::{
    BROKER_DOLLARS_PER_HOUR, READ_DOLLARS_PER_MILLION, WRITE_DOLLARS_PER_MILLION,
};
pub(crate) use text::micros;
pub(crate) use worker::{WORKER, work};

use report::Report;
use shape::Shape;
use strategy::Strategy;

/// Plans, and prints the plan.
pub(crate) fn run(flags: &PlanFlags, config: &Config, reader: Reader) -> Result<(), Failure> {
    let shape = Shape::of(flags, config)?;
    let mut report = Report::new(&shape, &Strategy::all(&shape)?)?;
    if flags.measure {
        let measured = measure::run(&shape, config, &report)?;
        report.recommend_measured(&shape, measured);
    }
    if let Some(file) = &flags.svg {
        write(file, &chart::svg(&report))?;
    }
    output::answer(reader, &report, || text::page(&report))
}

fn write(file: &PathBuf, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|error| {
        let text = format!("the chart cannot be written to {}: {error}", file.display());
        Failure::new(ErrorKind::Invalid, text)
    })
}
