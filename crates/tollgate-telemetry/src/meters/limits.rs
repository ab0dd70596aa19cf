//! The counters of the limits of one policy.
//!
//! A limit keeps the place at which it was first seen, which is its place in the policy unless a policy of the same name
//! was loaded with other limits since. The names in a standing are shared with the policy, so the same pointer means the
//! same limit of the same policy, and text is compared only after a change.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use tollgate::core::bounds::LIMITS_MAX;
use tollgate::{Ask, Denial, Policy, Standing};

use super::policy::UNKNOWN;
use crate::catalogue;
use crate::snapshot::{Series, Value};

/// The most limits that are told apart under one policy's name: all of one policy, and as many again that it had
/// before it was changed. Further ones are not counted.
pub(super) const LIMIT_PLACES: usize = 2 * LIMITS_MAX;

#[derive(Debug, Default)]
pub(super) struct Limits([OnceLock<LimitMeters>; LIMIT_PLACES]);

#[derive(Debug)]
struct LimitMeters {
    name: Arc<str>,
    unit: Arc<str>,
    /// The place of the unit in the policy that the names are shared with.
    unit_place: usize,
    available: AtomicU64,
    refused: AtomicU64,
    violations: AtomicU64,
    over_issued: AtomicU64,
}

impl Limits {
    /// Counts what `ask` was charged on each limit, and where that left it.
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
                    Some((index, limit, limit.unit_place))
                }
                _ => self.find_slowly(index, &standing.name, &standing.unit, ask.policy()),
            };
            let Some((place, limit, unit_place)) = found else { continue };
            charge(place, ask.amounts().at(unit_place));
            limit.available.store(standing.remaining, Relaxed);
        }
    }

    /// The same where nobody said where it left the limits.
    pub(super) fn charged_unseen(&self, ask: &Ask<'_>, charge: impl Fn(usize, u64)) {
        for (index, limit) in ask.policy().limits().enumerate() {
            let (name, unit) = (limit.name().into(), limit.unit().into());
            if let Some((place, _, unit_place)) =
                self.find_slowly(index, &name, &unit, ask.policy())
            {
                charge(place, ask.amounts().at(unit_place));
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

    /// The place and the meters of the limit called `name`, which is at `index` of `policy`, and the place of its unit.
    fn find_slowly(
        &self,
        index: usize,
        name: &Arc<str>,
        unit: &Arc<str>,
        policy: &Policy,
    ) -> Option<(usize, &LimitMeters, usize)> {
        let unit_place = policy.units().position(|known| known == &**unit)?;
        let known = self.0.iter().enumerate().find_map(|(place, limit)| {
            limit.get().filter(|limit| limit.name == *name).map(|limit| (place, limit))
        });
        let (place, limit) = known.or_else(|| {
            [index].into_iter().chain(LIMITS_MAX..LIMIT_PLACES).find_map(|place| {
                let limit = self.0[place].get_or_init(|| LimitMeters::new(name, unit, unit_place));
                (limit.name == *name).then_some((place, limit))
            })
        })?;
        Some((place, limit, unit_place))
    }

    pub(super) fn read(
        &self,
        policy: &Arc<str>,
        charged: impl Fn(usize) -> u64,
        all: &mut Vec<Series>,
    ) {
        for (place, limit) in self.0.iter().enumerate() {
            let Some(limit) = limit.get() else { continue };
            let labels = vec![Arc::clone(policy), Arc::clone(&limit.name)];
            let mut push = |metric, number| {
                all.push(Series { metric, labels: labels.clone(), value: Value::Number(number) });
            };
            push(&catalogue::ACQUIRED, charged(place));
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
    fn new(name: &Arc<str>, unit: &Arc<str>, unit_place: usize) -> Self {
        Self {
            name: Arc::clone(name),
            unit: Arc::clone(unit),
            unit_place,
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
