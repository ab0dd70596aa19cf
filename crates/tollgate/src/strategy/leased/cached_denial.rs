//! The store's last denial, cached so that the store is not asked again too soon.

use tollgate_core::{Amounts, Denial, Policy, Refusal, Span, Wait};

use super::block::Moment;

/// The store's last denial, and until when it answers further asks.
#[derive(Debug)]
pub(super) struct CachedDenial {
    pub(super) denial: Denial,
    /// When the store was asked.
    pub(super) asked: Moment,
    /// For this long everything beyond the blocks is refused, so that the store is not asked for small rests.
    pub(super) lull: Span,
    /// The amounts of a denial for a single ask: as much is refused until the denial's own time.
    pub(super) exact: Option<Amounts>,
}

impl CachedDenial {
    /// Returns how long `amounts` is refused, from when the store was asked.
    fn holds_for(&self, policy: &Policy, amounts: &Amounts) -> Span {
        let unit = policy.units().position(|unit| *unit == *self.denial.unit).unwrap_or(0);
        match (&self.exact, self.denial.retry_after()) {
            (Some(exact), Some(wait)) if exact.at(unit) <= amounts.at(unit) => self.lull.max(wait),
            _ => self.lull,
        }
    }

    pub(super) fn refuses(&self, policy: &Policy, amounts: &Amounts, now: Moment) -> bool {
        let passed = now.since(self.asked);
        // Others may give back, and limits change, so a refusal is believed no longer than a block.
        passed < self.holds_for(policy, amounts).min(policy.block_ttl())
    }

    pub(super) fn refusal(&self, policy: &Policy, amounts: &Amounts) -> Refusal {
        let wait = match self.denial.wait {
            Wait::Until(_) => Wait::Until(self.denial.decided_at + self.holds_for(policy, amounts)),
            Wait::Never => Wait::Never,
        };
        let limit = policy.limits().position(|limit| *limit.name() == *self.denial.limit);
        Refusal { limit: limit.unwrap_or(0), wait }
    }

    /// Returns the denial of an ask for `amounts` at `now`.
    pub(super) fn denial(&self, policy: &Policy, amounts: &Amounts, now: Moment) -> Denial {
        let Refusal { wait, .. } = self.refusal(policy, amounts);
        let unit = policy.units().position(|unit| *unit == *self.denial.unit).unwrap_or(0);
        let decided_at = self.denial.decided_at + now.since(self.asked);
        Denial { wait, decided_at, asked: amounts.at(unit), ..self.denial.clone() }
    }
}
