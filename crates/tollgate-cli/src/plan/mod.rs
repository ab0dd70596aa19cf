//! `tollgate plan`: compares the strategies for a policy, a fleet and its traffic.
//!
//! Each strategy runs in a simulation: the real gates on a simulated network and store, with the same arrivals. Its
//! admissions are then compared with those of an exact limiter without a network.

mod advice;
mod chart;
mod counting_gate;
mod figures;
mod measure;
mod network;
mod notes;
mod price;
mod report;
mod simulate;
mod strategy;
mod text;
mod worker;
mod workload;

use std::path::PathBuf;

use tollgate::ErrorKind;

use crate::args::PlanFlags;
use tollgate_config::Config;
use tollgate_terminal::Failure;
use tollgate_terminal::output::{self, OutputFormat};

pub(crate) use price::{
    BROKER_DOLLARS_PER_HOUR, READ_DOLLARS_PER_MILLION, WRITE_DOLLARS_PER_MILLION,
};
pub(crate) use text::micros;
pub(crate) use worker::{WORKER, work};

use report::Report;
use strategy::Strategy;
use workload::Workload;

/// Simulates every strategy, and prints the comparison.
pub(crate) fn run(flags: &PlanFlags, config: &Config, format: OutputFormat) -> Result<(), Failure> {
    let workload = Workload::new(flags, config)?;
    let mut report = Report::new(&workload, &Strategy::all(&workload)?)?;
    if flags.measure {
        let measured = measure::run(&workload, config, &report)?;
        report.recommend_measured(&workload, measured);
    }
    if let Some(file) = &flags.svg {
        write(file, &chart::svg(&report))?;
    }
    output::print(format, &report, || text::page(&report))
}

fn write(file: &PathBuf, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|error| {
        let text = format!("the chart cannot be written to {}: {error}", file.display());
        Failure::new(ErrorKind::Invalid, text)
    })
}
