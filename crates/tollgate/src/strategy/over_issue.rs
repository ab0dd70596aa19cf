//! Reports admissions beyond a limit, as far as the store's entry shows them when a charge is posted.

use tollgate_core::{Ask, Policy, Standing};

use crate::observe::{Event, Observer};

/// Reports what of `ask`, which was charged without deciding, is beyond its limits. `limits` stand as they are after the
/// charge.
pub(super) fn observe_charge(observer: &dyn Observer, ask: &Ask<'_>, limits: &[Standing]) {
    for (limit, index) in limits.iter().zip(ask.policy().unit_indexes()) {
        observe(observer, ask.policy(), limit, limit.used, ask.amounts().at(index));
    }
}

/// Reports what of `amount` is beyond `limit`, of which `used` is used with it.
pub(super) fn observe(
    observer: &dyn Observer,
    policy: &Policy,
    limit: &Standing,
    used: u64,
    amount: u64,
) {
    let amount = used.saturating_sub(limit.limit).min(amount);
    if 0 < amount {
        observer.observe(&Event::OverIssued { policy, limit: &limit.name, amount });
    }
}
