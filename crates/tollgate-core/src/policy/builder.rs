//! Building a policy: everything that can be checked or computed once, checked and computed.

use std::sync::{Arc, OnceLock};

use super::{
    Derived, Inner, Limit, Metered, OnStoreFailure, Override, Policy, REQUESTS, SubjectMap, limit,
};
use crate::bounds::{FINE_CAPACITY_MAX, LIMITS_MAX, OVERRIDES_MAX, SPAN_MAX, UNITS_MAX};
use crate::codec;
use crate::costs::Amounts;
use crate::error::Error;
use crate::rule::{Gauge, Rule};
use crate::time::Span;

/// A policy in the making.
#[derive(Clone, Debug)]
pub struct PolicyBuilder {
    name: String,
    limits: Vec<Limit>,
    shadow: bool,
    on_store_failure: OnStoreFailure,
    block_ttl: Span,
    capacity_per_ask: bool,
    subjects_max: Option<u64>,
    weight: u64,
    unlimited: bool,
    /// Whether a limit may be 0, which refuses everything.
    may_block: bool,
    overrides: Vec<(String, Override)>,
}

impl PolicyBuilder {
    pub(super) const fn new(name: String) -> Self {
        Self {
            name,
            limits: Vec::new(),
            shadow: false,
            on_store_failure: OnStoreFailure::Closed,
            block_ttl: Span::ZERO,
            capacity_per_ask: false,
            subjects_max: None,
            weight: 1,
            unlimited: false,
            may_block: false,
            overrides: Vec::new(),
        }
    }

    /// Returns the settings and limits of `policy`, without its overrides and plans.
    pub(super) fn from_policy(policy: &Policy) -> Self {
        Self {
            name: policy.name().to_owned(),
            limits: policy.limits().cloned().collect(),
            shadow: policy.0.shadow,
            on_store_failure: policy.0.on_store_failure,
            block_ttl: policy.0.block_ttl,
            capacity_per_ask: policy.0.capacity_per_ask,
            subjects_max: policy.0.subjects_max,
            weight: policy.0.weight,
            unlimited: policy.0.unlimited,
            may_block: true,
            overrides: Vec::new(),
        }
    }

    /// Allows limits of 0, which refuse everything. They are for overrides and plans; in a policy they are taken for a
    /// mistake.
    #[must_use]
    pub const fn may_block(mut self) -> Self {
        self.may_block = true;
        self
    }

    /// Sets whether nothing is refused. An unlimited policy is in shadow mode.
    pub(super) const fn unlimited(mut self, unlimited: bool) -> Self {
        (self.unlimited, self.shadow) = (unlimited, self.shadow || unlimited);
        self
    }

    /// Adds `limit`.
    #[must_use]
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Adds `limits`.
    #[must_use]
    pub fn limits(mut self, limits: impl IntoIterator<Item = Limit>) -> Self {
        self.limits.extend(limits);
        self
    }

    /// Decides and counts, but never denies.
    #[must_use]
    pub const fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// Sets what to do if the store cannot answer.
    #[must_use]
    pub const fn on_store_failure(mut self, action: OnStoreFailure) -> Self {
        self.on_store_failure = action;
        self
    }

    /// How long a block of tokens taken in advance may be spent. Every gate on the policy keeps to the stricter
    /// numbers that follow from it.
    #[must_use]
    pub fn block_ttl(mut self, ttl: impl Into<Span>) -> Self {
        self.block_ttl = ttl.into();
        self
    }

    /// Leaves the capacities of continuous buckets out of the [shape](Policy::shape_bytes), since what is used does not
    /// depend on them. Policies that differ in nothing else share an entry: each ask is decided with its own
    /// capacities, in one operation of the store.
    #[must_use]
    pub const fn capacity_per_ask(mut self) -> Self {
        self.capacity_per_ask = true;
        self
    }

    /// The most subjects that a store in this process keeps entries for under the policy. Entries that hold nothing back do
    /// not count for long: they are forgotten to make room.
    #[must_use]
    pub const fn subjects_max(mut self, most: Option<u64>) -> Self {
        self.subjects_max = most;
        self
    }

    /// How often the subjects of the policy are served, compared with those of other policies, while they wait for a limit
    /// that they share. One unless set; zero counts as one.
    #[must_use]
    pub const fn weight(mut self, weight: u64) -> Self {
        self.weight = if weight == 0 { 1 } else { weight };
        self
    }

    /// Gives `subject` limits of its own, with the names and units of the policy's and other numbers, and perhaps a weight. A
    /// `*` in it matches any text; the most specific override of a subject counts.
    #[must_use]
    pub fn override_for(mut self, subject: impl Into<String>, other: impl Into<Override>) -> Self {
        self.overrides.push((subject.into(), other.into()));
        self
    }

    /// Checks everything and makes the policy.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid), naming the policy, the limit, what is wrong and what would be
    /// right.
    pub fn build(self) -> Result<Policy, Error> {
        limit::check_name("policy name", &self.name)?;
        let name = self.name.clone();
        self.build_checked()
            .map_err(|error| Error::new(error.kind(), format!("policy {name:?}: {error}")))
    }

    fn build_checked(self) -> Result<Policy, Error> {
        if self.limits.is_empty() || self.limits.len() > LIMITS_MAX {
            return Err(Error::invalid(format!(
                "has {} limits; it needs 1 to {LIMITS_MAX}",
                self.limits.len()
            )));
        }
        if SPAN_MAX < self.block_ttl {
            return Err(Error::invalid(format!("block_ttl must be at most {SPAN_MAX}")));
        }
        if let Some(limit) = self.limits.iter().find(|limit| limit.is_blocked())
            && !self.may_block
        {
            return Err(limit.zero_error());
        }
        let units = units_of(&self.limits)?;
        let mut limits = Vec::with_capacity(self.limits.len());
        for limit in self.limits.iter().cloned() {
            let gauge = limit.gauge(self.block_ttl)?;
            let unit_index = units.iter().position(|unit| **unit == *limit.unit).unwrap_or(0);
            let (name, unit) = (limit.name.as_str().into(), Arc::clone(&units[unit_index]));
            limits.push(Metered { limit, name, unit, unit_index, gauge });
        }
        let overrides = self.build_overrides()?;
        let margins = self.limits.iter().map(|limit| limit.margin).filter(|span| !span.is_zero());
        let mut default_amounts = Amounts::default();
        if let Some(index) = units.iter().position(|unit| &**unit == REQUESTS) {
            default_amounts.set(index, 1);
        }
        let shape = if self.capacity_per_ask {
            codec::encode_shape(&with_largest_capacities(&limits), self.block_ttl)
        } else {
            codec::encode_shape(&self.limits, self.block_ttl)
        };
        Ok(Policy(Arc::new(Inner {
            default_amounts,
            use_within: margins.min(),
            shape_hash: fnv_1a(&shape),
            shape,
            name_hash: fnv_1a(self.name.as_bytes()),
            name: self.name.into(),
            limits,
            units,
            shadow: self.shadow,
            unlimited: self.unlimited,
            on_store_failure: self.on_store_failure,
            block_ttl: self.block_ttl,
            subjects_max: self.subjects_max,
            weight: self.weight,
            overrides: Arc::new(overrides),
            plans: None,
            capacity_per_ask: self.capacity_per_ask,
            with_exact_logs: OnceLock::new(),
        })))
    }

    fn build_overrides(&self) -> Result<SubjectMap<Policy>, Error> {
        if self.overrides.is_empty() {
            return Ok(SubjectMap::default());
        }
        let plain = Self { overrides: Vec::new(), ..self.clone() };
        let built = self.overrides.iter().map(|(subject, own)| {
            Ok((subject.as_str().into(), plain.build_override(subject, own)?))
        });
        map_overrides(built.collect::<Result<_, Error>>()?)
    }

    /// Builds the policy of `subject`, which overrides this one by `own`.
    pub(super) fn build_override(&self, subject: &str, own: &Override) -> Result<Policy, Error> {
        let of = format!("override for {subject:?}");
        self.build_variant(&of, own)
    }

    /// Builds the policy that `own`, which errors call `of`, makes of this one.
    pub(super) fn build_variant(&self, of: &str, own: &Override) -> Result<Policy, Error> {
        let names = |limits: &[Limit]| -> Vec<(String, String)> {
            limits.iter().map(|limit| (limit.name.clone(), limit.unit.clone())).collect()
        };
        if names(&own.limits) != names(&self.limits) {
            return Err(Error::invalid(format!(
                "the {of} must have the policy's own limits ({}), in order, with the same units",
                self.limits.iter().map(Limit::name).collect::<Vec<_>>().join(", ")
            )));
        }
        Self { limits: own.limits.clone(), overrides: Vec::new(), ..self.clone() }
            .weight(own.weight.unwrap_or(self.weight))
            .unlimited(own.unlimited)
            .may_block()
            .build_checked()
            .map_err(|error| Error::new(error.kind(), format!("{of}: {error}")))
    }
}

/// Returns `overrides` by subject and pattern.
pub(super) fn map_overrides(
    overrides: Vec<(Box<str>, Policy)>,
) -> Result<SubjectMap<Policy>, Error> {
    if OVERRIDES_MAX < overrides.len() {
        return Err(Error::invalid(format!("has more than {OVERRIDES_MAX} overrides")));
    }
    SubjectMap::new(overrides)
        .map_err(|error| Error::new(error.kind(), format!("overrides: {error}")))
}

/// `limits` with the largest capacity that each continuous bucket may have at its rate.
fn with_largest_capacities(limits: &[Metered]) -> Vec<Limit> {
    let largest = |metered: &Metered| {
        let mut limit = metered.limit.clone();
        if let (Rule::TokenBucket(bucket), Gauge::Continuous(gauge)) =
            (&mut limit.rule, &metered.gauge)
            && let Derived::Continuous { token, .. } = gauge.derived()
        {
            bucket.capacity = FINE_CAPACITY_MAX / token;
        }
        limit
    };
    limits.iter().map(largest).collect()
}

/// `policy` with an exact log in place of each grid that its limits do not configure; nothing if there is none.
pub(super) fn with_exact_logs(policy: &Policy) -> Option<Policy> {
    let has_grid = |limit: &Limit| match &limit.rule {
        Rule::RollingWindow(rule) => rule.resolution.is_none() && limit.slots().is_some(),
        _ => false,
    };
    if !policy.limits().any(has_grid) {
        return None;
    }
    let exact =
        |limit: &Limit| Limit { exact_log: limit.exact_log || has_grid(limit), ..limit.clone() };
    let limits = policy.limits().map(exact).collect();
    let built = PolicyBuilder { limits, ..PolicyBuilder::from_policy(policy) };
    built.build().ok()
}

pub(crate) const fn fnv_1a(bytes: &[u8]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut index = 0;
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(0x0100_0000_01b3);
        index += 1;
    }
    hash
}

fn units_of(limits: &[Limit]) -> Result<Vec<Arc<str>>, Error> {
    let mut units: Vec<Arc<str>> = Vec::new();
    for (index, limit) in limits.iter().enumerate() {
        if limits[..index].iter().any(|other| other.name == limit.name) {
            return Err(Error::invalid(format!(
                "has two limits called {:?}; give each its own name",
                limit.name
            )));
        }
        if !units.iter().any(|unit| **unit == *limit.unit) {
            units.push(limit.unit.as_str().into());
        }
    }
    if UNITS_MAX < units.len() {
        return Err(Error::invalid(format!("counts {} units; at most {UNITS_MAX}", units.len())));
    }
    Ok(units)
}
