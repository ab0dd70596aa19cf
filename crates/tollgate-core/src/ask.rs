//! Asks: policy, subject, cost per unit, and an id that makes a repeat idempotent.

use std::borrow::Cow;

use crate::bounds::{BEHIND_MAX, ID_BYTES_MAX, ID_HORIZON, NUMBER_MAX};
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

impl Charge<'_> {
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
}

impl<'a> Ask<'a> {
    /// Creates an ask of one request (where the policy counts requests) for `subject`, whose override applies if it has one.
    #[inline]
    #[must_use]
    pub fn new(policy: &'a Policy, subject: impl Into<Cow<'a, str>>) -> Self {
        let subject = subject.into();
        let policy = policy.for_subject(&subject);
        let rare = check_subject(&subject).err().map(Rare::with_fault);
        let amounts = *policy.default_amounts();
        let charge = Charge { policy: Cow::Borrowed(policy), subject, amounts };
        Self { charge, refundable: true, rare }
    }

    /// Sets the cost of `unit` to `amount`. An unknown unit or too large an amount is reported when the ask is
    /// decided.
    #[inline]
    #[must_use]
    pub fn cost(mut self, unit: &str, amount: u64) -> Self {
        match self.charge.policy.unit_index(unit) {
            Ok(_) if NUMBER_MAX < amount => {
                let text = format!("cost {unit}={amount} must be at most {NUMBER_MAX}");
                self.rare().fault.get_or_insert_with(|| Error::invalid(text));
            }
            Ok(index) => self.charge.amounts.set(index, amount),
            Err(error) => {
                self.rare().fault.get_or_insert(error);
            }
        }
        self
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
    /// would go through after those in front, in their order.
    #[must_use]
    pub fn behind(mut self, others: Vec<Amounts>) -> Self {
        self.rare().behind = others;
        self
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
                let Rare { id, id_ttl, behind, arrears, fault } = *rare;
                let id = id.map(|id| Cow::Owned(id.into_owned()));
                Box::new(Rare { id, id_ttl, behind, arrears, fault })
            }),
        }
    }

    /// Returns the charges, in the order of the ask. There is exactly one charge today.
    #[inline]
    pub fn charges(&self) -> impl ExactSizeIterator<Item = &Charge<'a>> {
        std::iter::once(&self.charge)
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
        for (unit, amount) in self.costs().iter().filter(|(_, amount)| *amount != 0) {
            bytes.extend_from_slice(unit.as_bytes());
            bytes.push(0);
            bytes.extend_from_slice(&amount.to_le_bytes());
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
            Some(rare) => rare.check(),
            None => Ok(()),
        }
    }
}

impl Rare<'_> {
    #[cold]
    fn with_fault(fault: Error) -> Box<Self> {
        Box::new(Self { id_ttl: ID_HORIZON, fault: Some(fault), ..Self::default() })
    }

    #[cold]
    fn check(&self) -> Result<(), Error> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if BEHIND_MAX < self.behind.len() {
            return Err(Error::invalid(format!("an ask has at most {BEHIND_MAX} others in front")));
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
