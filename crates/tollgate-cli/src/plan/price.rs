//! Prices of store operations and brokers. Each is an assumption that a flag replaces.

use serde::Serialize;
use tollgate::gate::Outcome;
use tollgate::{Decision, Error};
use tollgate_sim::Call;

use super::figures::Figures;
use super::workload::{Workload, dynamodb_item_bytes, invalid};
use crate::args::PlanFlags;

/// Dollars per million write request units of DynamoDB on demand, us-east-1, standard class, as of November 2024.
pub(crate) const WRITE_DOLLARS_PER_MILLION: f64 = 0.625;
/// Dollars per million read request units, likewise.
pub(crate) const READ_DOLLARS_PER_MILLION: f64 = 0.125;
/// Dollars per hour of a machine for a broker: t4g.small on demand, us-east-1, as of November 2024.
pub(crate) const BROKER_DOLLARS_PER_HOUR: f64 = 0.0168;
/// What one write unit writes, and one read unit reads.
const WRITE_UNIT_BYTES: usize = 1_024;
const READ_UNIT_BYTES: usize = 4_096;
/// A write in a transaction costs as much as this many writes.
const TRANSACTION_WRITES: u64 = 2;
/// Hours in a month, as bills count them.
const MONTH_HOURS: f64 = 730.0;
/// What one partition of DynamoDB writes per second, and so one (policy, subject).
pub(super) const DYNAMODB_KEY_WRITES_MAX: f64 = 1_000.0;

/// Processor time of one operation in microseconds, as docs/benchmarks.md has it: Redis, an acquire of three limits with an
/// id on 10,000 keys; PostgreSQL, an acquire of three limits that admits. On other processors it is another.
pub(super) const REDIS_OP_MICROS: f64 = 23.0;
pub(super) const POSTGRES_OP_MICROS: f64 = 108.0;

/// Processor time of one ask at a broker over HTTP in microseconds, as docs/benchmarks.md has it.
pub(super) const BROKER_ASK_MICROS: f64 = 10.6;

/// Returns the cores that `ops_per_second` keep busy, at `op_micros` each.
pub(super) fn cores(ops_per_second: f64, op_micros: f64) -> f64 {
    ops_per_second * op_micros / 1e6
}

/// The units of DynamoDB that a write and a read of an item cost, by policy.
#[derive(Debug)]
pub(super) struct ItemUnits(Vec<(String, u64, u64)>);

impl ItemUnits {
    pub(super) fn new(workload: &Workload) -> Self {
        let units = workload.charges().map(|(policy, _)| {
            let bytes = dynamodb_item_bytes(policy);
            let units = |unit_bytes| bytes.div_ceil(unit_bytes).max(1) as u64;
            (policy.name().to_owned(), units(WRITE_UNIT_BYTES), units(READ_UNIT_BYTES))
        });
        Self(units.collect())
    }

    /// Returns the write and read units of `call`. A refused conditional write is billed. An ask with several charges reads its
    /// items, and writes them in a transaction if it is admitted.
    pub(super) fn billed(&self, call: &Call, outcome: &Result<Outcome, Error>) -> (u64, u64) {
        let item = |name: &str| self.0.iter().find(|(policy, ..)| policy == name);
        let (write, read) = item(call.operation().policy().name())
            .map_or((1, 1), |(_, write, read)| (*write, *read));
        match call {
            Call::Acquire(ask) | Call::Charge(ask) if ask.has_several_charges() => {
                let is_denied = matches!(outcome, Ok(Outcome::Decided(Decision::Denied(_))));
                let items = ask.charges().filter_map(|charge| item(charge.policy().name()));
                items.fold((0, 0), |(writes, reads), (_, write, read)| {
                    let written = if is_denied { 0 } else { TRANSACTION_WRITES * write };
                    (writes + written, reads + read)
                })
            }
            call if call.is_write() => (write, 0),
            _ => (0, read),
        }
    }
}

/// Prices.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Prices {
    pub(crate) write_dollars_per_million: f64,
    pub(crate) read_dollars_per_million: f64,
    pub(crate) broker_dollars_per_hour: f64,
}

impl Prices {
    pub(super) const DEFAULT: Self = Self {
        write_dollars_per_million: WRITE_DOLLARS_PER_MILLION,
        read_dollars_per_million: READ_DOLLARS_PER_MILLION,
        broker_dollars_per_hour: BROKER_DOLLARS_PER_HOUR,
    };

    pub(super) fn new(flags: &PlanFlags) -> Result<Self, Error> {
        let operations = "million operations";
        for (name, price, each) in [
            ("price-write", flags.price_write, operations),
            ("price-read", flags.price_read, operations),
            ("price-broker", flags.price_broker, "hour of a broker"),
        ] {
            if !price.is_finite() || price < 0.0 {
                return Err(invalid(format!(
                    "--{name} is dollars per {each}, 0 or more, not {price}"
                )));
            }
        }
        Ok(Self {
            write_dollars_per_million: flags.price_write,
            read_dollars_per_million: flags.price_read,
            broker_dollars_per_hour: flags.price_broker,
        })
    }

    /// Returns the dollars per month of `brokers` machines.
    pub(super) fn brokers_month(&self, brokers: u64) -> f64 {
        brokers as f64 * self.broker_dollars_per_hour * MONTH_HOURS
    }

    /// Returns the dollars per month on DynamoDB on demand.
    pub(super) fn dynamodb_month(&self, figures: &Figures) -> f64 {
        let millions = |per_second: f64| per_second * 3_600.0 * MONTH_HOURS / 1e6;
        millions(figures.dynamodb_write_units_per_second) * self.write_dollars_per_million
            + millions(figures.dynamodb_read_units_per_second) * self.read_dollars_per_million
    }
}
