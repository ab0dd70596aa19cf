//! Costs by unit.
//!
//! [`Costs`] are by unit name, as in configuration and protocols. [`Amounts`] are by the unit's index in a policy, a fixed
//! array, so that deciding allocates nothing.

use std::fmt;
use std::sync::Arc;

use crate::bounds::UNITS_MAX;

/// An amount per unit name; a unit that is not named is not there.
///
/// ```
/// use tollgate_core::Costs;
///
/// let costs = Costs::new().with("requests", 1).with("tokens", 3_750);
/// assert_eq!(costs.get("tokens"), Some(3_750));
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Costs(Vec<(Arc<str>, u64)>);

impl Costs {
    /// No costs.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Sets `unit` to `amount` and returns the costs.
    #[must_use]
    pub fn with(mut self, unit: impl Into<Arc<str>>, amount: u64) -> Self {
        self.set(unit, amount);
        self
    }

    /// Sets `unit` to `amount`.
    pub fn set(&mut self, unit: impl Into<Arc<str>>, amount: u64) {
        let unit = unit.into();
        match self.0.iter_mut().find(|(name, _)| *name == unit) {
            Some((_, old)) => *old = amount,
            None => self.0.push((unit, amount)),
        }
    }

    /// Returns the amount of `unit`, if it is named.
    #[must_use]
    pub fn get(&self, unit: &str) -> Option<u64> {
        self.0.iter().find(|(name, _)| &**name == unit).map(|(_, amount)| *amount)
    }

    /// Returns every named unit with its amount, in the order they were named.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(unit, amount)| (&**unit, *amount))
    }

    /// Returns the costs of the units that `is_kept` selects. The names are shared, not copied.
    #[must_use]
    pub fn filter(&self, mut is_kept: impl FnMut(&str) -> bool) -> Self {
        Self(self.0.iter().filter(|(unit, _)| is_kept(unit)).cloned().collect())
    }

    /// Returns the same units with the amounts that `amount` gives for them, without those for which it is `None`. The names
    /// are shared, not copied.
    ///
    /// ```
    /// use tollgate_core::Costs;
    ///
    /// let estimate = Costs::new().with("requests", 1).with("tokens", 3_750);
    /// let doubled = estimate.filter_map(|unit, amount| (unit == "tokens").then_some(2 * amount));
    /// assert_eq!(doubled, Costs::new().with("tokens", 7_500));
    /// ```
    #[must_use]
    pub fn filter_map(&self, mut amount: impl FnMut(&str, u64) -> Option<u64>) -> Self {
        let kept = self.0.iter();
        Self(kept.filter_map(|(unit, old)| Some((Arc::clone(unit), amount(unit, *old)?))).collect())
    }

    /// Returns whether no unit is named.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<U: Into<Arc<str>>> FromIterator<(U, u64)> for Costs {
    fn from_iter<I: IntoIterator<Item = (U, u64)>>(costs: I) -> Self {
        let mut all = Self::new();
        for (unit, amount) in costs {
            all.set(unit, amount);
        }
        all
    }
}

/// An amount for each unit of a policy, by the unit's index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Amounts([u64; UNITS_MAX]);

impl Amounts {
    /// Returns the amount of the unit at `index`.
    #[inline]
    #[must_use]
    pub fn at(&self, index: usize) -> u64 {
        self.0.get(index).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, index: usize, amount: u64) {
        if let Some(slot) = self.0.get_mut(index) {
            *slot = amount;
        }
    }

    /// Makes an amount for each index by `amount`.
    #[must_use]
    pub fn from_fn(amount: impl FnMut(usize) -> u64) -> Self {
        Self(std::array::from_fn(amount))
    }

    /// Returns whether there is at least as much of every unit here as in `other`.
    #[inline]
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        // Without a way out: eight comparisons at once are cheaper than one branch each.
        self.0.iter().zip(&other.0).fold(true, |all, (here, there)| all & (there <= here))
    }

    /// Returns the sum, unit by unit, saturating.
    #[inline]
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|index| self.0[index].saturating_add(other.0[index])))
    }

    /// Returns the difference, unit by unit; zero where `other` has more.
    #[inline]
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|index| self.0[index].saturating_sub(other.0[index])))
    }

    /// Returns whether every amount is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}
