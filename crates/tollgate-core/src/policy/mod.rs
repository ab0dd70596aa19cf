//! A policy: a named, non-empty list of limits that are decided together.
//!
//! Everything that can be checked or computed once is done when a policy is built: names, numbers, units, the effective
//! capacity after headroom, margin and `block_ttl`. A policy is ready to decide with, and cheap to clone.

mod builder;
mod derived;
mod leasing;
mod limit;
mod outage;
mod overrides;
mod plans;
mod share;
mod subjects;

pub use builder::PolicyBuilder;
pub(crate) use builder::fnv_1a;
pub use derived::{Borders, Derived};
pub use limit::{Headroom, Limit};
pub use outage::OnStoreFailure;
pub use overrides::Override;
pub use plans::PlanSubjects;
pub use subjects::{SubjectClash, check_subjects, is_pattern, matches_pattern};

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::bounds::SUBJECT_BYTES_MAX;
use crate::costs::{Amounts, Costs};
use crate::error::Error;
use crate::rule::Gauge;
use crate::time::Span;
use plans::Plans;
use subjects::SubjectMap;

/// The unit that costs 1 when an ask does not name it.
pub const REQUESTS: &str = "requests";

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

#[derive(Clone)]
struct Inner {
    name: Arc<str>,
    name_hash: u64,
    limits: Vec<Metered>,
    units: Vec<Arc<str>>,
    default_amounts: Amounts,
    use_within: Option<Span>,
    shadow: bool,
    unlimited: bool,
    on_store_failure: OnStoreFailure,
    block_ttl: Span,
    subjects_max: Option<u64>,
    weight: u64,
    /// Shared, because a policy with other plans has the same.
    overrides: Arc<SubjectMap<Policy>>,
    plans: Option<Plans>,
    capacity_per_ask: bool,
    shape: Vec<u8>,
    shape_hash: u64,
    /// See [`Policy::with_exact_logs`]; nothing if there is no difference.
    with_exact_logs: OnceLock<Option<Policy>>,
}

/// A limit with its gauge and the index of its unit.
#[derive(Clone)]
pub(crate) struct Metered {
    pub(crate) limit: Limit,
    pub(crate) name: Arc<str>,
    pub(crate) unit: Arc<str>,
    pub(crate) unit_index: usize,
    pub(crate) gauge: Gauge,
}

impl Policy {
    /// Creates a policy of `limits` with no other settings.
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
        PolicyBuilder::new(name.into())
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns whether `other` has the same name, and so the same entries; quick where both are clones of one policy.
    #[inline]
    #[must_use]
    pub fn is_named_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.name == other.0.name
    }

    /// Returns a stable hash of the name, computed once. It is not keyed: mix it into a keyed one.
    #[inline]
    #[must_use]
    pub fn name_hash(&self) -> u64 {
        self.0.name_hash
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.0.name)
    }

    /// Returns the limits, in order.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = &Limit> {
        self.0.limits.iter().map(|metered| &metered.limit)
    }

    /// Returns the most of each limit that can be issued at once, after headroom, margin and `block_ttl`; same order as
    /// [`limits`](Self::limits).
    pub fn effective(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.0.limits.iter().map(|metered| metered.gauge.most())
    }

    /// Returns every unit that a limit counts, in the order they first appear.
    pub fn units(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.units.iter().map(|unit| &**unit)
    }

    /// Returns the most subjects that a store in this process keeps entries for.
    #[must_use]
    pub fn subjects_max(&self) -> Option<u64> {
        self.0.subjects_max
    }

    /// Returns how often its subjects are served while they wait for a limit that they share with others; at least one.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.0.weight
    }

    /// Returns whether the policy is in shadow mode: a denial admits all the same.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.0.shadow
    }

    /// Returns whether the policy refuses nothing, because its subject is unlimited. Usage counts up to the limits. Such a
    /// policy [is in shadow mode](Self::is_shadow), and its permits do not say what would have been denied.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.0.unlimited
    }

    /// Returns what to do if the store cannot answer.
    #[must_use]
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.0.on_store_failure
    }

    /// Returns how long a block of tokens taken in advance may be spent; zero if the policy is not leased.
    #[must_use]
    pub fn block_ttl(&self) -> Span {
        self.0.block_ttl
    }

    /// Converts named costs to amounts. A unit that is not named costs 0, except `requests`, which costs 1.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a unit that no limit counts.
    pub fn amounts(&self, costs: &Costs) -> Result<Amounts, Error> {
        let mut amounts = *self.default_amounts();
        for (unit, amount) in costs.iter() {
            amounts.set(self.unit_index(unit)?, amount);
        }
        Ok(amounts)
    }

    /// Converts amounts to named costs.
    #[must_use]
    pub fn costs(&self, amounts: &Amounts) -> Costs {
        self.0
            .units
            .iter()
            .enumerate()
            .map(|(index, unit)| (Arc::clone(unit), amounts.at(index)))
            .collect()
    }

    /// Returns the costs of an ask that names none: one request, if requests are counted.
    #[inline]
    pub(crate) fn default_amounts(&self) -> &Amounts {
        &self.0.default_amounts
    }

    pub(crate) fn unit_index(&self, unit: &str) -> Result<usize, Error> {
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

    /// Returns this policy as programs from before the grid keep it: each rolling window without a configured
    /// [`resolution`](crate::RollingWindow::resolution) has an exact log. Without such a window it is the policy itself.
    ///
    /// ```
    /// use tollgate_core::{Limit, Policy, RollingWindow, Span};
    ///
    /// let rule = RollingWindow::new(20_000, Span::from_mins(1));
    /// let policy = Policy::new("api", [Limit::new("rpm", "requests", rule)])?;
    /// assert!(!policy.with_exact_logs().has_shape_of(&policy));
    /// # Ok::<(), tollgate_core::Error>(())
    /// ```
    #[must_use]
    pub fn with_exact_logs(&self) -> &Self {
        self.0
            .with_exact_logs
            .get_or_init(|| builder::with_exact_logs(self))
            .as_ref()
            .unwrap_or(self)
    }

    /// Whether every limit here gives back what was charged under `other` as it would have there.
    pub(crate) fn gives_back_like(&self, other: &Self) -> bool {
        self.metered().len() == other.metered().len()
            && self.metered().iter().zip(other.metered()).all(|(limit, old)| {
                limit.name == old.name && limit.gauge.gives_back_like(&old.gauge)
            })
    }

    /// Whether `other` is a clone of this policy.
    #[inline]
    pub(crate) fn is_clone_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether states made under `other` mean the same here; quick where both are clones of one policy.
    #[inline]
    #[must_use]
    pub fn has_shape_of(&self, other: &Self) -> bool {
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
                && self
                    .metered()
                    .iter()
                    .map(|limit| &limit.gauge)
                    .eq(other.metered().iter().map(|limit| &limit.gauge))
                && self.0.shadow == other.0.shadow
                && self.0.unlimited == other.0.unlimited
                && self.0.subjects_max == other.0.subjects_max
                && self.0.weight == other.0.weight
                && self.0.on_store_failure == other.0.on_store_failure
                && self.0.overrides == other.0.overrides
                && self.0.plans == other.0.plans)
    }
}

/// Checks that a subject is neither empty nor too long.
///
/// # Errors
/// If it is.
#[inline]
pub fn check_subject(subject: &str) -> Result<(), Error> {
    if (1..=SUBJECT_BYTES_MAX).contains(&subject.len()) {
        Ok(())
    } else {
        Err(invalid_subject(subject))
    }
}

#[cold]
fn invalid_subject(subject: &str) -> Error {
    let bytes = subject.len();
    Error::invalid(format!("a subject must be 1 to {SUBJECT_BYTES_MAX} bytes long, not {bytes}"))
}
