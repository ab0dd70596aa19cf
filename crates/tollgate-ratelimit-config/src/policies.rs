//! Limits as policies of tollgate.
//!
//! The original counts in fixed windows that are aligned to the Unix epoch. Minutes, hours and days of the calendar in UTC
//! have the same borders. A week that begins on Monday has not, and neither has a month: the window of the original begins on
//! Thursday, or every 30 days. A rolling window of the same length admits no more than the limit in any such window,
//! wherever it begins, so it is never looser. Seconds are rolling windows, too: a fixed one admits twice the limit within a
//! millisecond.

use sha2::{Digest as _, Sha256};
use tollgate::core::bounds::NAME_BYTES_MAX;
use tollgate::core::{CalendarWindow, REQUESTS, RollingWindow};
use tollgate::policy::{Period, Rule};
use tollgate::{Error, Limit, Policy, Span};

use crate::config::{Options, Quantity};
use crate::file::Unit;

/// The prefix of the names of policies.
const PREFIX: &str = "envoy.";

/// How many hexadecimal digits tell apart names that had to be changed.
const HASH_DIGITS: usize = 12;

/// The windows that limits are counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Windows {
    /// Minutes, hours and days of the calendar in UTC, which have the borders of the original; others rolling.
    #[default]
    Fixed,
    /// Every window is rolling: at most the limit in any window of the length, also across a border.
    Rolling,
}

impl Windows {
    /// Returns the rule of a limit per `unit`.
    #[must_use]
    pub fn rule(self, requests: u32, unit: Unit, calendar_months: bool) -> Rule {
        let limit = u64::from(requests);
        let period = match unit {
            Unit::Minute => Some(Period::Minute),
            Unit::Hour => Some(Period::Hour),
            Unit::Day => Some(Period::Day),
            Unit::Second | Unit::Week | Unit::Year => None,
            // Calendar months differ in length, so no rolling window is one.
            Unit::Month if calendar_months => {
                return CalendarWindow::new(limit, Period::Month).into();
            }
            Unit::Month => None,
        };
        match (self, period) {
            (Self::Fixed, Some(period)) => CalendarWindow::new(limit, period).into(),
            _ => RollingWindow::new(limit, Span::from_secs(unit.seconds())).into(),
        }
    }
}

/// Returns the policy of the limit at `path`; `None` if it needs no counting.
pub(crate) fn policy(
    path: &[String],
    quantity: Quantity,
    shadow: bool,
    options: Options,
) -> Result<Option<Policy>, Error> {
    let Quantity::PerUnit(requests, unit) = quantity else { return Ok(None) };
    let rule = options.windows.rule(requests, unit, options.calendar_months);
    let limit = Limit::new(unit.name(), REQUESTS, rule);
    let policy = Policy::builder(policy_name(path)).limits([limit]).shadow(shadow).build()?;
    Ok(Some(policy))
}

/// Returns the name of the policy of the limit at `path`. It does not contain the numbers, so that usage is kept when they
/// change.
#[must_use]
pub fn policy_name(path: &[String]) -> String {
    let key = path.join(".");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String =
        PREFIX.chars().chain(key.chars()).map(|c| if is_plain(c) { c } else { '-' }).collect();
    // A dot inside of a value could be mistaken for a level.
    let is_ambiguous = path.iter().any(|part| part.contains('.'));
    if name.len() <= NAME_BYTES_MAX && name[PREFIX.len()..] == key && !is_ambiguous {
        return name;
    }
    let mut digest = Sha256::new();
    for part in path {
        digest.update(part.len().to_be_bytes());
        digest.update(part);
    }
    let mut hash: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    hash.truncate(HASH_DIGITS);
    let kept: String = name.chars().take(NAME_BYTES_MAX - HASH_DIGITS - 1).collect();
    format!("{kept}-{hash}")
}
