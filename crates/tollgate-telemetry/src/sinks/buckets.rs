//! Bounds of buckets in the units of sinks.

use crate::catalogue::Kind;
#[cfg(any(feature = "prometheus", feature = "otel"))]
use crate::snapshot::{CALL_BOUNDS_MS, DURATION_BOUNDS_US, JOB_BOUNDS_SECS};

/// Microseconds in a second.
const MICROS: f64 = 1e6;

/// Milliseconds in a second.
#[cfg(any(feature = "prometheus", feature = "otel"))]
const MILLIS: f64 = 1e3;

/// Returns the upper bounds of all but the last bucket, in seconds or attempts.
#[cfg(any(feature = "prometheus", feature = "otel"))]
pub(super) fn bounds(kind: Kind, buckets: usize) -> Vec<f64> {
    match kind {
        Kind::Attempts => (1..buckets).map(|attempt| attempt as f64).collect(),
        Kind::JobDuration => JOB_BOUNDS_SECS.map(|bound| bound as f64).to_vec(),
        Kind::CallDuration => CALL_BOUNDS_MS.map(|bound| bound as f64 / MILLIS).to_vec(),
        // Division yields the nearest float, which prints short.
        _ => DURATION_BOUNDS_US.map(|bound| bound as f64 / MICROS).to_vec(),
    }
}

/// Returns the divisor from the sum of `kind` to the unit of its bounds.
pub(super) const fn scale(kind: Kind) -> f64 {
    if matches!(kind, Kind::Attempts) { 1.0 } else { MICROS }
}
