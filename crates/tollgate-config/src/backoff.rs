//! `[backoff]`: the back-off of commands that wait.

use serde::Deserialize;
use tollgate::Span;
use tollgate::core::PER_MILLE;
use tollgate::retry::Backoff;

use crate::{Diagnostic, Document};

/// The shortest and the longest delay that can be set.
pub const PAUSE_RANGE: [Span; 2] = [Span::from_millis(1), Span::from_hours(24)];

/// The most jitter that can be set, in percent of a delay.
pub const JITTER_MAX: u64 = 100;

/// The section as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackoffTable {
    base: Option<String>,
    max: Option<String>,
    jitter: Option<u64>,
}

/// Returns `backoff` with up to `percent` of each delay on top. Nothing is subtracted, so no delay is shorter than the base.
#[must_use]
pub const fn with_jitter(backoff: Backoff, percent: u64) -> Backoff {
    Backoff { jitter_high: PER_MILLE + percent * PER_MILLE / 100, ..backoff }
}

pub(crate) fn resolve(
    document: &Document,
    table: Option<&BackoffTable>,
) -> Result<Option<Backoff>, Diagnostic> {
    let Some(BackoffTable { base, max, jitter }) = table else { return Ok(None) };
    let mut backoff = Backoff::QUOTA;
    if let Some(base) = base {
        backoff.base = document.duration(&["backoff", "base"], base, PAUSE_RANGE)?;
    }
    backoff.max = match max {
        Some(max) => document.duration(&["backoff", "max"], max, PAUSE_RANGE)?,
        None => backoff.max.max(backoff.base),
    };
    if backoff.max < backoff.base {
        let message = format!("max must be at least base, which is {}", backoff.base);
        return Err(document.error(&["backoff", "max"], message));
    }
    if let Some(percent) = *jitter {
        if JITTER_MAX < percent {
            let message =
                format!("jitter {percent} must be between 0 and {JITTER_MAX}, in percent");
            return Err(document.error(&["backoff", "jitter"], message));
        }
        backoff = with_jitter(backoff, percent);
    }
    Ok(Some(backoff))
}
