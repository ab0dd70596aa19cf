#![doc = include_str!("../README.md")]

mod catalogue;
mod counters;
mod meters;
mod record;
mod sink;
pub mod sinks;
mod snapshot;
mod telemetry;

pub use catalogue::{Kind, METRICS, Metric, dimension};
pub use counters::{Counters, SERIES_MAX};
pub use meters::{
    CallOutcome, GatewayCall, GatewayLevels, GatewayMeters, GatewayOutcome, Meters, OTHER, Ongoing,
    POLICIES_MAX, TranslationMeters,
};
pub use record::{Record, RecordKind, Severity};
pub use sink::{MeterSink, RecordSink};
pub use snapshot::{
    ATTEMPTS_MAX, CALL_BOUNDS_MS, DURATION_BOUNDS_US, JOB_BOUNDS_SECS, Series, Snapshot, Value,
};
pub use telemetry::{BATCH_MAX, Builder, QUEUE_MAX, Tasks, Telemetry, WRITE_MAX};
