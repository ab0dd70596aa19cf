//! How much of a policy's limits an ask takes, so that tenants can be compared.
//!
//! An ask counts as the largest of its parts of the limits: tokens of a limit on tokens, or slots of a limit on slots. So
//! one number orders the tenants of a queue, whatever the limits of its policy count.

use tollgate_core::{Amounts, Costs, Policy, Rule};

/// All of a limit. Fine enough for one of a billion, and for a billion such asks.
const WHOLE: u128 = 1 << 34;

/// Returns the part of the limits of `policy` that `amounts` are.
pub(super) fn share(policy: &Policy, amounts: &Amounts) -> u64 {
    largest(policy, |_, unit| amounts.at(unit))
}

/// Returns the part of the limits that is left of `amounts` when they are settled to `actual`: slots are free then.
pub(super) fn actual_share(policy: &Policy, amounts: &Amounts, actual: &Costs) -> u64 {
    let units: Vec<&str> = policy.units().collect();
    largest(policy, |rule, unit| match rule {
        Rule::Concurrency(_) => 0,
        _ => units.get(unit).and_then(|name| actual.get(name)).unwrap_or(amounts.at(unit)),
    })
}

fn largest(policy: &Policy, amount: impl Fn(&Rule, usize) -> u64) -> u64 {
    let limits = policy.limits().zip(policy.unit_indexes()).zip(policy.effective());
    let part = |((limit, unit), most): ((&tollgate_core::Limit, usize), u64)| {
        let part = u128::from(amount(limit.rule(), unit)) * WHOLE;
        u64::try_from(part.div_ceil(u128::from(most.max(1)))).unwrap_or(u64::MAX)
    };
    limits.map(part).max().unwrap_or(0)
}
