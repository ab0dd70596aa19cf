//! The size of chunks that fits a day's quota, for `--fit-rpd` and for the suggestions of a plan.

use tollgate_core::{CalendarWindow, Limit, Period, Policy, REQUESTS, Rule};

use crate::chunk::{fitting_size, size_max};
use crate::document::Document;
use crate::prompt::Task;

/// Returns the smallest size of chunks at which `document` needs no more requests than `policy` admits in a day, or the largest that
/// a model can answer; `None` without a daily limit of requests. Ignores earlier cuts of the document.
#[must_use]
pub fn size_for_a_day(document: &Document, task: &Task, policy: &Policy) -> Option<u64> {
    let daily = requests_per_day(policy)?;
    let most = size_max(&task.from, &task.to);
    Some(fitting_size(&document.uncut(), daily, most).unwrap_or(most))
}

/// Returns the requests per day of the policy.
pub(super) fn requests_per_day(policy: &Policy) -> Option<u64> {
    let limits = policy.limits().zip(policy.effective());
    limits.filter(|(limit, _)| counts_days(limit)).map(|(_, most)| most).min()
}

/// Returns whether a limit counts requests per day.
pub(super) fn counts_days(limit: &Limit) -> bool {
    let by_day =
        matches!(limit.rule(), Rule::CalendarWindow(CalendarWindow { period: Period::Day, .. }));
    by_day && limit.unit() == REQUESTS
}
