//! A policy: a named, non-empty list of limits that are decided together.
//!
//! Everything that can be checked or computed once is done when a policy is built: names, numbers, units, the effective
//! capacity after headroom, margin and `block_ttl`. What is built can be decided with, and is cheap to clone.

mod derived;
mod limit;

pub use derived::{Borders, Derived};
pub use limit::{Headroom, Limit};

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::bounds::{LIMITS_MAX, OVERRIDES_MAX, SPAN_MAX, SUBJECT_BYTES_MAX, UNITS_MAX};
use crate::codec;
use crate::costs::{Amounts, Costs};
use crate::error::Error;
use crate::rule::Gauge;
use crate::time::{Span, Timestamp};

/// The unit that costs 1 when an ask does not name it.
pub const REQUESTS: &str = "requests";

/// What to do with an ask when the store cannot answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum OnStoreFailure {
    /// Decide by the instance's own share of the limits.
    Fallback,
    /// Admit.
    Open,
    /// Answer with an error.
    #[default]
    Closed,
}

impl FromStr for OnStoreFailure {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "fallback" => Ok(Self::Fallback),
            "open" => Ok(Self::Open),
            "closed" => Ok(Self::Closed),
            _ => Err(Error::invalid(format!("{text:?} is not one of fallback, open or closed"))),
        }
    }
}

impl fmt::Display for OnStoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fallback => "fallback",
            Self::Open => "open",
            Self::Closed => "closed",
        })
    }
}

/// A named list of limits that are decided together. Cloning shares it.
///
/// ```
/// use tollgate_core::{CalendarWindow, Limit, Period, Policy, RollingWindow, Span};
///
/// let minute = Span::from_mins(1);
/// let gemini = Policy::new(
///     "gemini-free",
///     [
///         Limit::new("rpm", "requests", RollingWindow::new(5, minute)),
///         Limit::new("tpm", "tokens", RollingWindow::new(250_000, minute)),
///         Limit::new("rpd", "requests", CalendarWindow::new(25, Period::Day).in_zone("America/Los_Angeles")),
///     ],
/// )?;
/// assert_eq!(gemini.units().collect::<Vec<_>>(), ["requests", "tokens"]);
/// # Ok::<(), tollgate_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Policy(Arc<Inner>);

struct Inner {
    name: Arc<str>,
    name_hash: u64,
    limits: Vec<Metered>,
    units: Vec<Arc<str>>,
    default_amounts: Amounts,
    use_within: Option<Span>,
    shadow: bool,
    on_store_failure: OnStoreFailure,
    block_ttl: Span,
    overrides: HashMap<Box<str>, Policy>,
    shape: Vec<u8>,
}

/// A limit with its gauge and the place of its unit.
pub(crate) struct Metered {
    pub(crate) limit: Limit,
    pub(crate) name: Arc<str>,
    pub(crate) unit: Arc<str>,
    pub(crate) place: usize,
    pub(crate) gauge: Gauge,
}

impl Policy {
    /// A policy of `limits` with no other settings.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a name or a number is out of its bounds, or if there is no
    /// limit at all.
    pub fn new(
        name: impl Into<String>,
        limits: impl IntoIterator<Item = Limit>,
    ) -> Result<Self, Error> {
        Self::builder(name).limits(limits).build()
    }

    /// Starts a policy with further settings.
    #[must_use]
    pub fn builder(name: impl Into<String>) -> PolicyBuilder {
        PolicyBuilder {
            name: name.into(),
            limits: Vec::new(),
            shadow: false,
            on_store_failure: OnStoreFailure::default(),
            block_ttl: Span::ZERO,
            overrides: Vec::new(),
        }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether `other` has the same name, and so the same entries; quick where both are clones of one policy.
    #[inline]
    #[must_use]
    pub fn is_named_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.name == other.0.name
    }

    /// A hash of the name, the same everywhere and always, computed once. It is not keyed: mix it into a keyed one.
    #[inline]
    #[must_use]
    pub fn name_hash(&self) -> u64 {
        self.0.name_hash
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.0.name)
    }

    /// The limits, in order.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = &Limit> {
        self.0.limits.iter().map(|metered| &metered.limit)
    }

    /// The most of each limit that can be issued at once, after headroom, margin and `block_ttl`; same order as
    /// [`limits`](Self::limits).
    pub fn effective(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.0.limits.iter().map(|metered| metered.gauge.most())
    }

    /// Every unit that a limit counts, in the order they first appear.
    pub fn units(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.units.iter().map(|unit| &**unit)
    }

    /// Whether a would-be denial admits all the same.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.0.shadow
    }

    /// What to do when the store cannot answer.
    #[must_use]
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.0.on_store_failure
    }

    /// How long a block of tokens taken in advance may be spent; zero if the policy is not leased.
    #[must_use]
    pub fn block_ttl(&self) -> Span {
        self.0.block_ttl
    }

    /// Until when tokens taken at `at` in advance may be spent: `block_ttl` later, or where a rule starts afresh,
    /// whichever comes first. Nothing if the policy cannot be leased, because it has no `block_ttl` or has slots.
    #[must_use]
    pub fn block_ends_at(&self, at: Timestamp) -> Option<Timestamp> {
        if self.0.block_ttl.is_zero() || self.0.limits.iter().any(|limit| limit.gauge.is_slots()) {
            return None;
        }
        let boundaries = self.0.limits.iter().filter_map(|limit| limit.gauge.next_boundary(at));
        boundaries.chain([at + self.0.block_ttl]).min()
    }

    /// The policy that applies to `subject`: its override, or this one.
    #[inline]
    #[must_use]
    pub fn for_subject(&self, subject: &str) -> &Self {
        if self.0.overrides.is_empty() {
            self
        } else {
            self.0.overrides.get(subject).unwrap_or(self)
        }
    }

    /// The subjects that have an override, with the policy that applies to them.
    pub fn overrides(&self) -> impl ExactSizeIterator<Item = (&str, &Self)> {
        self.0.overrides.iter().map(|(subject, policy)| (&**subject, policy))
    }

    /// This policy with the override of `subject` set to `limits`, or removed if there are none.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the limits do not have the names and units of this policy's,
    /// or if their numbers are out of bounds.
    pub fn with_override(&self, subject: &str, limits: Option<Vec<Limit>>) -> Result<Self, Error> {
        let mut overrides: Vec<(String, Vec<Limit>)> = self
            .overrides()
            .filter(|(other, _)| *other != subject)
            .map(|(other, policy)| (other.to_owned(), policy.limits().cloned().collect()))
            .collect();
        overrides.extend(limits.map(|limits| (subject.to_owned(), limits)));
        PolicyBuilder {
            name: self.name().to_owned(),
            limits: self.limits().cloned().collect(),
            shadow: self.0.shadow,
            on_store_failure: self.0.on_store_failure,
            block_ttl: self.0.block_ttl,
            overrides,
        }
        .build()
    }

    /// Named costs by the places of this policy's units. A unit that is not named costs 0, except `requests`, which
    /// costs 1.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a unit that no limit counts.
    pub fn amounts(&self, costs: &Costs) -> Result<Amounts, Error> {
        let mut amounts = *self.default_amounts();
        for (unit, amount) in costs.iter() {
            amounts.set(self.place(unit)?, amount);
        }
        Ok(amounts)
    }

    /// The costs with names that `amounts` stand for.
    #[must_use]
    pub fn costs(&self, amounts: &Amounts) -> Costs {
        self.0
            .units
            .iter()
            .enumerate()
            .map(|(place, unit)| (Arc::clone(unit), amounts.at(place)))
            .collect()
    }

    /// One request, where requests are counted, and nothing else.
    #[inline]
    pub(crate) fn default_amounts(&self) -> &Amounts {
        &self.0.default_amounts
    }

    pub(crate) fn place(&self, unit: &str) -> Result<usize, Error> {
        self.0.units.iter().position(|known| &**known == unit).ok_or_else(|| {
            Error::invalid(format!(
                "policy {:?} has no limit on {unit:?}; it counts {}",
                self.name(),
                self.0.units.join(", ")
            ))
        })
    }

    #[inline]
    pub(crate) fn metered(&self) -> &[Metered] {
        &self.0.limits
    }

    #[inline]
    pub(crate) fn use_within(&self) -> Option<Span> {
        self.0.use_within
    }

    pub(crate) fn shape(&self) -> &[u8] {
        &self.0.shape
    }

    /// Whether states made under `other` mean the same here.
    #[inline]
    pub(crate) fn has_shape_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.shape == other.0.shape
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.0.name)
            .field("limits", &self.limits().collect::<Vec<_>>())
            .field("shadow", &self.0.shadow)
            .field("on_store_failure", &self.0.on_store_failure)
            .field("block_ttl", &self.0.block_ttl)
            .field("overrides", &self.0.overrides.len())
            .finish()
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.0.name == other.0.name
                && self.0.shape == other.0.shape
                && self.0.shadow == other.0.shadow
                && self.0.on_store_failure == other.0.on_store_failure
                && self.0.overrides == other.0.overrides)
    }
}

/// A policy in the making.
#[derive(Clone, Debug)]
pub struct PolicyBuilder {
    name: String,
    limits: Vec<Limit>,
    shadow: bool,
    on_store_failure: OnStoreFailure,
    block_ttl: Span,
    overrides: Vec<(String, Vec<Limit>)>,
}

impl PolicyBuilder {
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

    /// Decide and count, but never refuse.
    #[must_use]
    pub const fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// What to do when the store cannot answer.
    #[must_use]
    pub const fn on_store_failure(mut self, action: OnStoreFailure) -> Self {
        self.on_store_failure = action;
        self
    }

    /// How long a block of tokens taken in advance may be spent. Every gate on the policy keeps to the stricter
    /// numbers that follow from it.
    #[must_use]
    pub const fn block_ttl(mut self, ttl: Span) -> Self {
        self.block_ttl = ttl;
        self
    }

    /// `limits` instead of the policy's own for `subject`: the same names and units with other numbers.
    #[must_use]
    pub fn override_for(mut self, subject: impl Into<String>, limits: Vec<Limit>) -> Self {
        self.overrides.push((subject.into(), limits));
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
        let units = units_of(&self.limits)?;
        let mut limits = Vec::with_capacity(self.limits.len());
        for limit in self.limits.iter().cloned() {
            let gauge = limit.gauge(self.block_ttl)?;
            let place = units.iter().position(|unit| **unit == *limit.unit).unwrap_or(0);
            let (name, unit) = (limit.name.as_str().into(), Arc::clone(&units[place]));
            limits.push(Metered { limit, name, unit, place, gauge });
        }
        let overrides = self.build_overrides()?;
        let margins = self.limits.iter().map(|limit| limit.margin).filter(|span| !span.is_zero());
        let mut default_amounts = Amounts::default();
        if let Some(place) = units.iter().position(|unit| &**unit == REQUESTS) {
            default_amounts.set(place, 1);
        }
        Ok(Policy(Arc::new(Inner {
            default_amounts,
            use_within: margins.min(),
            shape: codec::encode_shape(&self.limits, self.block_ttl),
            name_hash: fnv_1a(self.name.as_bytes()),
            name: self.name.into(),
            limits,
            units,
            shadow: self.shadow,
            on_store_failure: self.on_store_failure,
            block_ttl: self.block_ttl,
            overrides,
        })))
    }

    fn build_overrides(&self) -> Result<HashMap<Box<str>, Policy>, Error> {
        if OVERRIDES_MAX < self.overrides.len() {
            return Err(Error::invalid(format!("has more than {OVERRIDES_MAX} overrides")));
        }
        let names = |limits: &[Limit]| -> Vec<(String, String)> {
            limits.iter().map(|limit| (limit.name.clone(), limit.unit.clone())).collect()
        };
        let mut overrides = HashMap::with_capacity(self.overrides.len());
        for (subject, limits) in &self.overrides {
            check_subject(subject)?;
            if names(limits) != names(&self.limits) {
                return Err(Error::invalid(format!(
                    "the override for {subject:?} must have the policy's own limits ({}), in order, with the same units",
                    self.limits.iter().map(Limit::name).collect::<Vec<_>>().join(", ")
                )));
            }
            let own = Self { limits: limits.clone(), overrides: Vec::new(), ..self.clone() };
            let policy = own.build_checked().map_err(|error| {
                Error::new(error.kind(), format!("override for {subject:?}: {error}"))
            })?;
            if overrides.insert(subject.as_str().into(), policy).is_some() {
                return Err(Error::invalid(format!("has two overrides for {subject:?}; keep one")));
            }
        }
        Ok(overrides)
    }
}

/// Checks that a subject is neither empty nor too long.
#[inline]
pub(crate) fn check_subject(subject: &str) -> Result<(), Error> {
    if subject.is_empty() || SUBJECT_BYTES_MAX < subject.len() {
        return Err(Error::invalid(format!(
            "a subject must be 1 to {SUBJECT_BYTES_MAX} bytes long, not {}",
            subject.len()
        )));
    }
    Ok(())
}

const fn fnv_1a(bytes: &[u8]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut place = 0;
    while place < bytes.len() {
        hash = (hash ^ bytes[place] as u64).wrapping_mul(0x0100_0000_01b3);
        place += 1;
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
