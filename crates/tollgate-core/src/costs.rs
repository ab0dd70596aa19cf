//! What an ask costs, by unit.
//!
//! [`Costs`] speak in names, as people and wires do. [`Amounts`] are the same by the place of the unit in a policy, a
//! fixed array, so that deciding allocates nothing.

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

    /// These costs with `unit` set to `amount`.
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

    /// The amount of `unit`, if it is named.
    #[must_use]
    pub fn get(&self, unit: &str) -> Option<u64> {
        self.0.iter().find(|(name, _)| &**name == unit).map(|(_, amount)| *amount)
    }

    /// Every named unit with its amount, in the order they were named.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(unit, amount)| (&**unit, *amount))
    }

    /// Whether no unit is named.
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

/// An amount for each unit of a policy, by the unit's place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Amounts([u64; UNITS_MAX]);

impl Amounts {
    /// The amount of the unit at `place`.
    #[inline]
    #[must_use]
    pub fn at(&self, place: usize) -> u64 {
        self.0.get(place).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, place: usize, amount: u64) {
        if let Some(slot) = self.0.get_mut(place) {
            *slot = amount;
        }
    }

    /// An amount for each place, as `amount` says.
    #[must_use]
    pub fn from_fn(amount: impl FnMut(usize) -> u64) -> Self {
        Self(std::array::from_fn(amount))
    }

    /// Whether there is at least as much of every unit here as in `other`.
    #[inline]
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        // Without a way out: eight comparisons at once are cheaper than one branch each.
        self.0.iter().zip(&other.0).fold(true, |all, (here, there)| all & (there <= here))
    }

    /// The sum, unit by unit, saturating.
    #[inline]
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|place| self.0[place].saturating_add(other.0[place])))
    }

    /// The difference, unit by unit; nothing where `other` has more.
    #[inline]
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|place| self.0[place].saturating_sub(other.0[place])))
    }

    /// Whether every amount is nothing.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}
