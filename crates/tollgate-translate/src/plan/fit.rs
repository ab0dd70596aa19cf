//! Chunks as large as a day's quota asks for: the size that `--fit-rpd` takes, and that a plan proposes.
//!
//! Both ask here, so a plan cannot promise what the flag does not do.

use tollgate_core::{CalendarWindow, Limit, Period, Policy, REQUESTS, Rule};

use crate::chunk::{fitting_size, size_max};
use crate::document::Document;
use crate::prompt::Task;

/// The smallest size of chunks at which `document` needs no more requests than `policy` issues in a day, or the largest that a
/// model answers to at once; nothing if there is no limit of requests by the day.
///
/// A document that was cut already counts as whole.
#[must_use]
pub fn size_for_a_day(document: &Document, task: &Task, policy: &Policy) -> Option<u64> {
    let daily = requests_per_day(policy)?;
    let most = size_max(&task.from, &task.to);
    Some(fitting_size(&document.uncut(), daily, most).unwrap_or(most))
}

/// How many requests a day the policy issues.
pub(super) fn requests_per_day(policy: &Policy) -> Option<u64> {
    let limits = policy.limits().zip(policy.effective());
    limits.filter(|(limit, _)| counts_days(limit)).map(|(_, most)| most).min()
}

/// Whether a limit counts requests by the day.
pub(super) fn counts_days(limit: &Limit) -> bool {
    let by_day =
        matches!(limit.rule(), Rule::CalendarWindow(CalendarWindow { period: Period::Day, .. }));
    by_day && limit.unit() == REQUESTS
}
