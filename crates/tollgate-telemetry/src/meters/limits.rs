//! The counters of the limits of one policy.
//!
//! A limit keeps the slot at which it was first seen: its index in the policy, unless a policy of the same name was loaded
//! with other limits since. Standings share the names of the policy, so an equal pointer means the same limit, and text is
//! compared only after a change.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use tollgate::core::bounds::LIMITS_MAX;
use tollgate::{Ask, Denial, Policy, Standing};

use super::policy::UNKNOWN;
use crate::catalogue;
use crate::snapshot::{Series, Value};

/// The most limits per policy name: those of one policy, and as many of earlier versions. Further ones are not counted.
pub(super) const LIMIT_SLOTS: usize = 2 * LIMITS_MAX;

#[derive(Debug, Default)]
pub(super) struct Limits([OnceLock<LimitMeters>; LIMIT_SLOTS]);

#[derive(Debug)]
struct LimitMeters {
    name: Arc<str>,
    unit: Arc<str>,
    /// The index of the unit in the policy.
    unit_index: usize,
    available: AtomicU64,
    refused: AtomicU64,
    violations: AtomicU64,
    over_issued: AtomicU64,
}

impl Limits {
    /// Counts the charges of `ask` on each limit, and what they leave.
    #[inline]
    pub(super) fn charged(
        &self,
        ask: &Ask<'_>,
        standings: &[Standing],
        charge: impl Fn(usize, u64),
    ) {
        for (index, standing) in standings.iter().enumerate() {
            let found = match self.0.get(index).and_then(OnceLock::get) {
                Some(limit) if limit.is_shared_with(standing) => {
                    Some((index, limit, limit.unit_index))
                }
                _ => self.find_slowly(index, &standing.name, &standing.unit, ask.policy()),
            };
            let Some((slot, limit, unit_index)) = found else { continue };
            charge(slot, ask.amounts().at(unit_index));
            limit.available.store(standing.remaining, Relaxed);
        }
    }

    /// Counts the charges of `ask` where the standings are unknown.
    pub(super) fn charged_unseen(&self, ask: &Ask<'_>, charge: impl Fn(usize, u64)) {
        for (index, limit) in ask.policy().limits().enumerate() {
            let (name, unit) = (limit.name().into(), limit.unit().into());
            if let Some((slot, _, unit_index)) = self.find_slowly(index, &name, &unit, ask.policy())
            {
                charge(slot, ask.amounts().at(unit_index));
            }
        }
    }

    pub(super) fn refused(&self, policy: &Policy, denial: &Denial) {
        for (index, standing) in denial.limits.iter().enumerate() {
            let found = self.find_slowly(index, &standing.name, &standing.unit, policy);
            if let Some((_, limit, _)) = found {
                limit.available.store(standing.remaining, Relaxed);
            }
        }
        if let Some(limit) = self.find_named(&denial.limit, policy) {
            limit.refused.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn violated(&self, policy: &Policy, name: &str) {
        if let Some(limit) = self.find_named(name, policy) {
            limit.violations.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn over_issued(&self, policy: &Policy, name: &str, amount: u64) {
        if let Some(limit) = self.find_named(name, policy) {
            limit.over_issued.fetch_add(amount, Relaxed);
        }
    }

    fn find_named(&self, name: &str, policy: &Policy) -> Option<&LimitMeters> {
        let known = self.0.iter().filter_map(OnceLock::get).find(|limit| *limit.name == *name);
        known.or_else(|| {
            let (index, limit) =
                policy.limits().enumerate().find(|(_, limit)| limit.name() == name)?;
            let found = self.find_slowly(index, &name.into(), &limit.unit().into(), policy);
            found.map(|(_, limit, _)| limit)
        })
    }

    /// Returns the slot and the meters of the limit `name` at `index` of `policy`, and the index of its unit.
    fn find_slowly(
        &self,
        index: usize,
        name: &Arc<str>,
        unit: &Arc<str>,
        policy: &Policy,
    ) -> Option<(usize, &LimitMeters, usize)> {
        let unit_index = policy.units().position(|known| known == &**unit)?;
        let known = self.0.iter().enumerate().find_map(|(slot, limit)| {
            limit.get().filter(|limit| limit.name == *name).map(|limit| (slot, limit))
        });
        let (slot, limit) = known.or_else(|| {
            [index].into_iter().chain(LIMITS_MAX..LIMIT_SLOTS).find_map(|slot| {
                let limit = self.0[slot].get_or_init(|| LimitMeters::new(name, unit, unit_index));
                (limit.name == *name).then_some((slot, limit))
            })
        })?;
        Some((slot, limit, unit_index))
    }

    pub(super) fn read(
        &self,
        policy: &Arc<str>,
        charged: impl Fn(usize) -> u64,
        all: &mut Vec<Series>,
    ) {
        for (slot, limit) in self.0.iter().enumerate() {
            let Some(limit) = limit.get() else { continue };
            let labels = vec![Arc::clone(policy), Arc::clone(&limit.name)];
            let mut push = |metric, number| {
                all.push(Series { metric, labels: labels.clone(), value: Value::Number(number) });
            };
            push(&catalogue::ACQUIRED, charged(slot));
            match limit.available.load(Relaxed) {
                UNKNOWN => {}
                available => push(&catalogue::AVAILABLE, available),
            }
            push(&catalogue::REFUSED, limit.refused.load(Relaxed));
            push(&catalogue::OVER_ISSUED, limit.over_issued.load(Relaxed));
            push(&catalogue::VIOLATIONS, limit.violations.load(Relaxed));
        }
    }
}

impl LimitMeters {
    fn new(name: &Arc<str>, unit: &Arc<str>, unit_index: usize) -> Self {
        Self {
            name: Arc::clone(name),
            unit: Arc::clone(unit),
            unit_index,
            available: AtomicU64::new(UNKNOWN),
            refused: AtomicU64::default(),
            violations: AtomicU64::default(),
            over_issued: AtomicU64::default(),
        }
    }

    #[inline]
    fn is_shared_with(&self, standing: &Standing) -> bool {
        Arc::ptr_eq(&self.name, &standing.name) && Arc::ptr_eq(&self.unit, &standing.unit)
    }
}
