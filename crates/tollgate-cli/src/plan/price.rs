//! What the store operations of a plan cost.
//!
//! Prices and sizes are assumptions: each is named, dated and can be given by a flag.

use serde::Serialize;
use tollgate::Error;

use super::meter::Figures;
use super::shape::invalid;
use crate::args::PlanFlags;

/// Dollars per million write request units of DynamoDB on demand, us-east-1, standard class, as of November 2024.
pub(crate) const WRITE_DOLLARS_PER_MILLION: f64 = 0.625;
/// Dollars per million read request units, likewise.
pub(crate) const READ_DOLLARS_PER_MILLION: f64 = 0.125;
/// Hours in a month, as bills count them.
const MONTH_HOURS: f64 = 730.0;
/// What one partition of DynamoDB writes per second, and so one (policy, subject).
pub(super) const DYNAMODB_KEY_WRITES_MAX: f64 = 1_000.0;

/// What operations cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Prices {
    pub(crate) write_dollars_per_million: f64,
    pub(crate) read_dollars_per_million: f64,
}

impl Prices {
    pub(super) const DEFAULT: Self = Self {
        write_dollars_per_million: WRITE_DOLLARS_PER_MILLION,
        read_dollars_per_million: READ_DOLLARS_PER_MILLION,
    };

    pub(super) fn of(flags: &PlanFlags) -> Result<Self, Error> {
        for (name, price) in [("price-write", flags.price_write), ("price-read", flags.price_read)]
        {
            if !price.is_finite() || price < 0.0 {
                return Err(invalid(format!(
                    "--{name} is dollars per million operations, 0 or more, not {price}"
                )));
            }
        }
        Ok(Self {
            write_dollars_per_million: flags.price_write,
            read_dollars_per_million: flags.price_read,
        })
    }

    /// Dollars per month on DynamoDB on demand. A refused conditional write is a write; items stay below 1 KB.
    pub(super) fn dynamodb_month(&self, figures: &Figures) -> f64 {
        let millions = |per_second: f64| per_second * 3_600.0 * MONTH_HOURS / 1e6;
        millions(figures.store_writes_per_second) * self.write_dollars_per_million
            + millions(figures.store_reads_per_second) * self.read_dollars_per_million
    }
}
