//! Buckets in the units that sinks show.

use crate::catalogue::Kind;
#[cfg(any(feature = "prometheus", feature = "otel"))]
use crate::snapshot::{DURATION_BOUNDS_US, JOB_BOUNDS_SECS};

/// Microseconds in a second.
const MICROS: f64 = 1e6;

/// The upper bounds of all but the last of `buckets` buckets of `kind`, in seconds or attempts.
#[cfg(any(feature = "prometheus", feature = "otel"))]
pub(super) fn bounds(kind: Kind, buckets: usize) -> Vec<f64> {
    match kind {
        Kind::Attempts => (1..buckets).map(|attempt| attempt as f64).collect(),
        Kind::JobDuration => JOB_BOUNDS_SECS.map(|bound| bound as f64).to_vec(),
        // Dividing gives the nearest number, and so short bounds.
        _ => DURATION_BOUNDS_US.map(|bound| bound as f64 / MICROS).to_vec(),
    }
}

/// What the sum of `kind` is divided by to be in the unit of its bounds.
pub(super) const fn scale(kind: Kind) -> f64 {
    if matches!(kind, Kind::Attempts) { 1.0 } else { MICROS }
}
