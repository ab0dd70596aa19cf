//! `[backoff]`: how commands that wait ask again.

use tollgate::Backoff;

use super::Blame;
use super::fallback::span;
use super::file::BackoffTable;
use super::place::Text;
use crate::backoff::{JITTER_MAX, PAUSE_RANGE, with_jitter};

pub(super) fn resolve(
    text: &Text<'_>,
    table: Option<&BackoffTable>,
) -> Result<Option<Backoff>, Blame> {
    let Some(BackoffTable { base, max, jitter }) = table else { return Ok(None) };
    let mut backoff = Backoff::QUOTA;
    if let Some(base) = base {
        backoff.base = span(text, ["backoff", "base"], base, PAUSE_RANGE)?;
    }
    backoff.max = match max {
        Some(max) => span(text, ["backoff", "max"], max, PAUSE_RANGE)?,
        None => backoff.max.max(backoff.base),
    };
    if backoff.max < backoff.base {
        let what = format!("max must be at least base, which is {}", backoff.base);
        return Err(text.blame(&["backoff", "max"], what));
    }
    if let Some(percent) = *jitter {
        if JITTER_MAX < percent {
            let what = format!("jitter {percent} must be between 0 and {JITTER_MAX}, in percent");
            return Err(text.blame(&["backoff", "jitter"], what));
        }
        backoff = with_jitter(backoff, percent);
    }
    Ok(Some(backoff))
}
