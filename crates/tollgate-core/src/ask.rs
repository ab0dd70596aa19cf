//! What a caller wants: one to eight charges of a policy and a subject, the cost per unit, and an id that makes a repeat
//! recognisable.

use std::borrow::Cow;

use crate::bounds::{
    BEHIND_MAX, CHARGES_MAX, ID_BYTES_MAX, ID_HORIZON, NUMBER_MAX, SUBJECT_BYTES_MAX,
};
use crate::costs::{Amounts, Costs};
use crate::entry::Arrears;
use crate::error::Error;
use crate::policy::{Policy, check_subject, fnv_1a};
use crate::time::Span;

/// A request for admission: may this go through now?
///
/// An ask borrows what it can, so that making one allocates nothing; [`Ask::into_owned`] makes one that can move to
/// another task.
///
/// ```
/// use tollgate_core::{Ask, Limit, Policy, TokenBucket};
///
/// let policy = Policy::new("llm", [
///     Limit::new("rpm", "requests", TokenBucket::per_minute(60)),
///     Limit::new("tpm", "tokens", TokenBucket::per_minute(100_000)),
/// ])?;
/// let ask = Ask::new(&policy, "project-7").cost("tokens", 3_750);
/// assert_eq!(ask.costs().get("requests"), Some(1));
/// # Ok::<(), tollgate_core::Error>(())
/// ```
///
/// An ask may concern several subjects. They are decided together: all are charged, or none.
///
/// ```
/// # use tollgate_core::{Ask, Limit, Policy, TokenBucket};
/// let user = Policy::new("user", [Limit::new("rpm", "requests", TokenBucket::per_minute(10))])?;
/// let team = Policy::new("team", [Limit::new("tpm", "tokens", TokenBucket::per_minute(100_000))])?;
/// let ask = Ask::new(&user, "u1").and(&team, "t7").cost("tokens", 400);
/// assert_eq!(ask.charges().len(), 2);
/// # Ok::<(), tollgate_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// Inline, so that an ask of one charge allocates nothing.
    charge: Charge<'a>,
    refundable: bool,
    rare: Option<Box<Rare<'a>>>,
}

/// A part of an ask: the amounts charged to one subject under one policy.
#[derive(Clone, Debug)]
pub struct Charge<'a> {
    policy: Cow<'a, Policy>,
    subject: Cow<'a, str>,
    amounts: Amounts,
}

impl<'a> Charge<'a> {
    #[inline]
    fn new(policy: &'a Policy, subject: Cow<'a, str>) -> Self {
        let policy = policy.for_subject(&subject);
        Self { amounts: *policy.default_amounts(), policy: Cow::Borrowed(policy), subject }
    }

    fn set(&mut self, unit: &str, amount: u64) -> Result<(), Error> {
        let place = self.policy.unit_index(unit)?;
        if NUMBER_MAX < amount {
            return Err(too_large(unit, amount));
        }
        self.amounts.set(place, amount);
        Ok(())
    }

    fn amount_of(&self, unit: &str) -> Option<u64> {
        self.policy.unit_index(unit).ok().map(|place| self.amounts.at(place))
    }

    fn is_same_entry(&self, other: &Self) -> bool {
        self.policy.name() == other.policy.name() && self.subject == other.subject
    }

    /// Returns the policy, with the subject's override applied.
    #[inline]
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the subject.
    #[inline]
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Returns the cost of each unit, by the unit's index in the policy.
    #[inline]
    #[must_use]
    pub const fn amounts(&self) -> &Amounts {
        &self.amounts
    }

    fn borrowed(&self) -> Charge<'_> {
        Charge {
            policy: Cow::Borrowed(&self.policy),
            subject: Cow::Borrowed(&self.subject),
            amounts: self.amounts,
        }
    }

    fn into_owned(self) -> Charge<'static> {
        Charge {
            policy: Cow::Owned(self.policy.into_owned()),
            subject: Cow::Owned(self.subject.into_owned()),
            amounts: self.amounts,
        }
    }
}

/// The rare fields of an ask, boxed so that other asks stay small.
#[derive(Clone, Debug, Default)]
struct Rare<'a> {
    id: Option<Cow<'a, str>>,
    id_ttl: Span,
    behind: Vec<Amounts>,
    arrears: Option<Arrears>,
    fault: Option<Error>,
    /// The charges after the first.
    more: Vec<Charge<'a>>,
    /// Whether the charge at an index has costs of its own, by bit.
    own_costs: u16,
    /// The digest of the alternatives that the ask is one of.
    alternatives: u64,
    /// Costs of units that no charge has so far.
    unplaced: Vec<(Box<str>, u64)>,
    /// The tenant, if it is not the subject of the first charge, and its weight.
    tenant: Option<(Cow<'a, str>, u64)>,
}

impl<'a> Ask<'a> {
    /// Creates an ask of one request (where the policy counts requests) for `subject`, whose override applies if it has one.
    #[inline]
    #[must_use]
    pub fn new(policy: &'a Policy, subject: impl Into<Cow<'a, str>>) -> Self {
        let subject = subject.into();
        let rare = check_subject(&subject).err().map(Rare::with_fault);
        Self { charge: Charge::new(policy, subject), refundable: true, rare }
    }

    /// Creates an ask with a charge for each policy and subject of `charges`, in their order; `None` if there are none.
    pub fn for_subjects<S: Into<Cow<'a, str>>>(
        charges: impl IntoIterator<Item = (&'a Policy, S)>,
    ) -> Option<Self> {
        let mut charges = charges.into_iter();
        let (policy, subject) = charges.next()?;
        let first = Self::new(policy, subject);
        Some(charges.fold(first, |ask, (policy, subject)| ask.and(policy, subject)))
    }

    /// Creates an ask whose first charge has costs of its own: the costs of the ask apply only to charges that are added. An
    /// unknown unit or too large an amount is reported when the ask is decided.
    #[must_use]
    pub fn new_costing(
        policy: &'a Policy,
        subject: impl Into<Cow<'a, str>>,
        costs: &Costs,
    ) -> Self {
        let mut ask = Self::new(policy, subject);
        for (unit, amount) in costs.iter() {
            if let Err(fault) = ask.charge.set(unit, amount) {
                ask.rare().fault.get_or_insert(fault);
            }
        }
        ask.rare().own_costs |= 1;
        ask
    }

    /// Adds a charge of `policy` for `subject`, decided together with the others. The costs of the ask apply to it, as far
    /// as its policy has their units. Too many charges, and a policy and subject that the ask has already, are reported
    /// when the ask is decided.
    #[must_use]
    pub fn and(mut self, policy: &'a Policy, subject: impl Into<Cow<'a, str>>) -> Self {
        let mut charge = Charge::new(policy, subject.into());
        let mut unplaced = std::mem::take(&mut self.rare().unplaced);
        for (index, unit) in charge.policy.units().enumerate() {
            let shared = self.sharing().find_map(|other| other.amount_of(unit));
            let named = unplaced.iter().find(|(name, _)| **name == *unit);
            if let Some(amount) = shared.or(named.map(|(_, amount)| *amount)) {
                charge.amounts.set(index, amount);
            }
        }
        unplaced.retain(|(unit, _)| charge.policy.unit_index(unit).is_err());
        self.rare().unplaced = unplaced;
        self.push(charge)
    }

    /// Adds a charge of `policy` for `subject` with costs of its own: the costs of the ask do not apply to it. An unknown unit or
    /// too large an amount is reported when the ask is decided.
    #[must_use]
    pub fn and_costing(
        mut self,
        policy: &'a Policy,
        subject: impl Into<Cow<'a, str>>,
        costs: &Costs,
    ) -> Self {
        let mut charge = Charge::new(policy, subject.into());
        let faults = costs.iter().filter_map(|(unit, amount)| charge.set(unit, amount).err());
        if let Some(fault) = faults.collect::<Vec<_>>().into_iter().next() {
            self.rare().fault.get_or_insert(fault);
        }
        let index = self.charges().len();
        self.rare().own_costs |= 1_u16.checked_shl(u32::try_from(index).unwrap_or(16)).unwrap_or(0);
        self.push(charge)
    }

    fn push(mut self, charge: Charge<'a>) -> Self {
        let fault = if CHARGES_MAX <= self.charges().len() {
            Some(Error::invalid(format!("an ask has at most {CHARGES_MAX} charges")))
        } else if self.charges().any(|other| other.is_same_entry(&charge)) {
            let (policy, subject) = (charge.policy().name(), charge.subject());
            Some(Error::invalid(format!(
                "an ask names policy {policy:?} and subject {subject:?} twice; add up their costs in one charge"
            )))
        } else {
            check_subject(&charge.subject).err()
        };
        let rare = self.rare();
        match fault {
            Some(fault) => drop(rare.fault.get_or_insert(fault)),
            None => rare.more.push(charge),
        }
        self
    }

    /// Sets the cost of `unit` to `amount`, in every charge whose policy has the unit. A unit that no charge has, or too large
    /// an amount, is reported when the ask is decided.
    #[inline]
    #[must_use]
    pub fn cost(mut self, unit: &str, amount: u64) -> Self {
        if self.rare.as_ref().is_none_or(|rare| rare.more.is_empty() && rare.own_costs == 0)
            && amount <= NUMBER_MAX
            && let Ok(place) = self.charge.policy.unit_index(unit)
        {
            self.charge.amounts.set(place, amount);
            return self;
        }
        self.set_shared(unit, amount);
        self
    }

    #[cold]
    fn set_shared(&mut self, unit: &str, amount: u64) {
        if NUMBER_MAX < amount {
            self.rare().fault.get_or_insert(too_large(unit, amount));
            return;
        }
        let mut is_placed = false;
        for (index, charge) in self.charges_mut() {
            if let (false, Ok(place)) = (index, charge.policy.unit_index(unit)) {
                charge.amounts.set(place, amount);
                is_placed = true;
            }
        }
        let unplaced = &mut self.rare().unplaced;
        unplaced.retain(|(name, _)| **name != *unit);
        if !is_placed {
            unplaced.push((unit.into(), amount));
        }
    }

    /// Sets every cost in `costs`.
    #[must_use]
    pub fn with_costs(self, costs: &Costs) -> Self {
        costs.iter().fold(self, |ask, (unit, amount)| ask.cost(unit, amount))
    }

    /// Sets an id: a repeat within [`ID_HORIZON`] is charged once and gets the same permit, also after that
    /// was settled. Once it was released, or its slots are gone, the id is a new ask.
    #[must_use]
    pub fn id(self, id: impl Into<Cow<'a, str>>) -> Self {
        self.id_for(id, ID_HORIZON)
    }

    /// Sets an id that is remembered for `ttl`.
    #[must_use]
    pub fn id_for(mut self, id: impl Into<Cow<'a, str>>, ttl: impl Into<Span>) -> Self {
        let rare = self.rare();
        rare.id = Some(id.into());
        rare.id_ttl = ttl.into();
        self
    }

    /// Queues the ask behind others. It is admitted only if there is room for all of them now; its wait is the time at which it
    /// would go through after those in front, in their order. Only an ask with one charge has others in front.
    #[must_use]
    pub fn behind(mut self, others: Vec<Amounts>) -> Self {
        self.rare().behind = others;
        self
    }

    /// Makes the ask one of several alternatives that share an id. A repeat is the same ask only if all of them are, of which
    /// `digest` is the digest.
    #[must_use]
    pub fn alternative(mut self, digest: u64) -> Self {
        self.rare().alternatives = digest;
        self
    }

    /// Names the tenant that takes the turn of the ask where asks wait for a shared limit, with its
    /// [weight](crate::PolicyBuilder::weight); zero counts as one. Otherwise it is the subject of the first charge.
    #[must_use]
    pub fn for_tenant(mut self, tenant: impl Into<Cow<'a, str>>, weight: u64) -> Self {
        let tenant = tenant.into();
        if let Err(fault) = check_tenant(&tenant) {
            self.rare().fault.get_or_insert(fault);
        }
        self.rare().tenant = Some((tenant, weight.max(1)));
        self
    }

    /// Returns the tenant that was named, and its weight.
    #[must_use]
    pub fn named_tenant(&self) -> Option<(&str, u64)> {
        let (tenant, weight) = self.rare.as_ref()?.tenant.as_ref()?;
        Some((tenant, *weight))
    }

    /// Returns the tenant, and its weight: those that were named, or the subject of the first charge and the weight of its
    /// policy.
    #[must_use]
    pub fn tenant(&self) -> (&str, u64) {
        self.named_tenant().unwrap_or_else(|| (self.subject(), self.policy().weight()))
    }

    /// Declares that the caller never settles or releases its permit: a token bucket then records nothing for giving back, and
    /// gives nothing back.
    #[inline]
    #[must_use]
    pub const fn without_refund(mut self) -> Self {
        self.refundable = false;
        self
    }

    /// Charges amounts that were spent earlier: each limit is charged its part of `arrears`. The costs identify a repeat of the
    /// id, and are charged by a store that can only charge by unit. A charge of arrears limit by limit is final: settling its
    /// permit changes nothing. An acquire ignores arrears.
    #[must_use]
    pub fn with_arrears(mut self, arrears: Arrears) -> Self {
        self.rare().arrears = Some(arrears);
        self
    }

    /// Returns the arrears, if the ask has any.
    #[must_use]
    pub fn arrears(&self) -> Option<&Arrears> {
        self.rare.as_ref().and_then(|rare| rare.arrears.as_ref())
    }

    /// Returns the same ask under `policy`, which has the same units.
    pub(crate) fn under(&self, policy: &'a Policy) -> Self {
        let mut ask = self.clone();
        ask.charge.policy = Cow::Borrowed(policy);
        ask
    }

    fn rare(&mut self) -> &mut Rare<'a> {
        self.rare.get_or_insert_default()
    }

    /// Copies everything that is borrowed.
    #[must_use]
    pub fn into_owned(self) -> Ask<'static> {
        Ask {
            charge: self.charge.into_owned(),
            refundable: self.refundable,
            rare: self.rare.map(|rare| {
                let rare = *rare;
                Box::new(Rare {
                    id: rare.id.map(|id| Cow::Owned(id.into_owned())),
                    id_ttl: rare.id_ttl,
                    behind: rare.behind,
                    arrears: rare.arrears,
                    fault: rare.fault,
                    more: rare.more.into_iter().map(Charge::into_owned).collect(),
                    own_costs: rare.own_costs,
                    alternatives: rare.alternatives,
                    unplaced: rare.unplaced,
                    tenant: rare
                        .tenant
                        .map(|(tenant, weight)| (Cow::Owned(tenant.into_owned()), weight)),
                })
            }),
        }
    }

    /// Returns what is charged where, in the order of the ask.
    #[inline]
    pub fn charges(&self) -> Charges<'_, 'a> {
        let more = self.rare.as_ref().map_or([].as_slice(), |rare| &rare.more);
        Charges { first: Some(&self.charge), more: more.iter() }
    }

    /// Returns whether the ask has more than one charge.
    #[inline]
    #[must_use]
    pub fn has_several_charges(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| !rare.more.is_empty())
    }

    /// Returns whether the charge at `index` has costs of its own.
    #[must_use]
    pub fn has_own_costs(&self, index: usize) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.own_costs >> index & 1 == 1)
    }

    /// Returns the charge at `index` as an ask of its own, without the id. Meant for stores: deciding the parts one after
    /// the other is not what the ask means.
    #[must_use]
    pub fn part(&self, index: usize) -> Option<Ask<'_>> {
        let charge = self.charges().nth(index)?.borrowed();
        Some(Ask { charge, refundable: self.refundable, rare: None })
    }

    /// Returns the charges at `indexes` as an ask of their own, in that order and without the id. Meant for strategies that
    /// decide the other charges themselves. `None` if there is no such charge.
    #[must_use]
    pub fn subset(&self, indexes: &[usize]) -> Option<Ask<'_>> {
        let (first, more) = indexes.split_first()?;
        let mut ask = self.part(*first)?;
        for (place, index) in indexes.iter().enumerate() {
            if self.has_own_costs(*index) {
                ask.rare().own_costs |= 1 << place;
            }
        }
        for index in more {
            let charge = self.charges().nth(*index)?.borrowed();
            ask.rare().more.push(charge);
        }
        Some(ask)
    }

    /// The charges that the costs of the ask apply to.
    fn sharing(&self) -> impl Iterator<Item = &Charge<'a>> {
        self.charges()
            .enumerate()
            .filter(|(index, _)| !self.has_own_costs(*index))
            .map(|(_, charge)| charge)
    }

    /// Every charge, and whether it has costs of its own.
    fn charges_mut(&mut self) -> impl Iterator<Item = (bool, &mut Charge<'a>)> {
        let (own, more) = match self.rare.as_deref_mut() {
            Some(rare) => (rare.own_costs, rare.more.as_mut_slice()),
            None => (0, [].as_mut_slice()),
        };
        let charges = std::iter::once(&mut self.charge).chain(more);
        charges.enumerate().map(move |(index, charge)| (own >> index & 1 == 1, charge))
    }

    /// Returns the policy of the first charge, with the subject's override applied.
    #[inline]
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.charge.policy()
    }

    /// Returns the subject of the first charge.
    #[inline]
    #[must_use]
    pub fn subject(&self) -> &str {
        self.charge.subject()
    }

    /// Returns the costs of the first charge, for each unit of its policy.
    #[must_use]
    pub fn costs(&self) -> Costs {
        self.policy().costs(self.amounts())
    }

    /// Returns the costs of the first charge, by the unit's index in its policy.
    #[inline]
    #[must_use]
    pub const fn amounts(&self) -> &Amounts {
        self.charge.amounts()
    }

    /// Returns the id, if the ask has one.
    #[inline]
    #[must_use]
    pub fn id_text(&self) -> Option<&str> {
        self.rare.as_ref().and_then(|rare| rare.id.as_deref())
    }

    /// Returns how long the id is remembered.
    #[must_use]
    pub fn id_ttl(&self) -> Span {
        self.rare.as_ref().map_or(ID_HORIZON, |rare| rare.id_ttl)
    }

    /// Returns whether the permit may be settled for less or released.
    #[inline]
    #[must_use]
    pub const fn is_refundable(&self) -> bool {
        self.refundable
    }

    /// Returns a stable digest of the costs, at most [`NUMBER_MAX`]. A repeated id with another digest is a conflict.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut bytes = Vec::new();
        for (index, charge) in self.charges().enumerate() {
            // The id belongs to the policy and subject of the first charge, so its digest leaves them out.
            if 0 < index {
                for name in [charge.policy().name(), charge.subject()] {
                    bytes.push(0xff);
                    bytes.extend_from_slice(name.as_bytes());
                }
                bytes.push(0xff);
            }
            let costs = charge.policy.costs(&charge.amounts);
            for (unit, amount) in costs.iter().filter(|(_, amount)| *amount != 0) {
                bytes.extend_from_slice(unit.as_bytes());
                bytes.push(0);
                bytes.extend_from_slice(&amount.to_le_bytes());
            }
        }
        if let Some(rare) = self.rare.as_ref().filter(|rare| rare.alternatives != 0) {
            bytes.extend_from_slice(&rare.alternatives.to_le_bytes());
        }
        fnv_1a(&bytes) & NUMBER_MAX
    }

    /// Returns whether the ask has no id and no asks in front.
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        self.rare.is_none()
    }

    /// Returns the asks in front of this one, in their order.
    #[must_use]
    pub fn in_front(&self) -> &[Amounts] {
        self.rare.as_ref().map_or(&[], |rare| &rare.behind)
    }

    /// Validates the ask.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the expected value.
    #[inline]
    pub fn check(&self) -> Result<(), Error> {
        match &self.rare {
            Some(rare) => rare.check(&self.charge.policy),
            None => Ok(()),
        }
    }
}

/// The charges of an ask, in order.
#[derive(Clone, Debug)]
pub struct Charges<'i, 'a> {
    first: Option<&'i Charge<'a>>,
    more: std::slice::Iter<'i, Charge<'a>>,
}

impl<'i, 'a> Iterator for Charges<'i, 'a> {
    type Item = &'i Charge<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.first.take().or_else(|| self.more.next())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::from(self.first.is_some()) + self.more.len();
        (left, Some(left))
    }
}

impl ExactSizeIterator for Charges<'_, '_> {}

#[cold]
pub(crate) fn no_such_unit(unit: &str) -> Error {
    Error::invalid(format!("no policy of the ask has a limit on {unit:?}"))
}

fn check_tenant(tenant: &str) -> Result<(), Error> {
    match tenant.len() {
        1..=SUBJECT_BYTES_MAX => Ok(()),
        bytes => Err(Error::invalid(format!(
            "a tenant must be 1 to {SUBJECT_BYTES_MAX} bytes long, not {bytes}"
        ))),
    }
}

#[cold]
fn too_large(unit: &str, amount: u64) -> Error {
    Error::invalid(format!("cost {unit}={amount} must be at most {NUMBER_MAX}"))
}

impl Rare<'_> {
    #[cold]
    fn with_fault(fault: Error) -> Box<Self> {
        Box::new(Self { id_ttl: ID_HORIZON, fault: Some(fault), ..Self::default() })
    }

    #[cold]
    fn check(&self, policy: &Policy) -> Result<(), Error> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if let Some((unit, _)) = self.unplaced.first() {
            let fault = policy.unit_index(unit).err().filter(|_| self.more.is_empty());
            return Err(fault.unwrap_or_else(|| no_such_unit(unit)));
        }
        if BEHIND_MAX < self.behind.len() {
            return Err(Error::invalid(format!("an ask has at most {BEHIND_MAX} others in front")));
        }
        if !self.behind.is_empty() && !self.more.is_empty() {
            return Err(Error::invalid("an ask with several charges has no others in front"));
        }
        match self.id.as_deref() {
            Some(id) if id.is_empty() || ID_BYTES_MAX < id.len() => Err(Error::invalid(format!(
                "an id must be 1 to {ID_BYTES_MAX} bytes long, not {}",
                id.len()
            ))),
            _ => Ok(()),
        }
    }
}
