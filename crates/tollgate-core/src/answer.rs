//! Answers that leave a gate: permits, denials, decisions.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::ask::{Ask, no_such_unit};
use crate::bounds::LOCAL_STAMPS;
use crate::costs::{Amounts, Costs};
use crate::decide::{Grant, Refusal, SlotWait, Wait};
use crate::error::Error;
use crate::policy::Policy;
use crate::settle::Charged;
use crate::standing::Standing;
use crate::time::{Span, Timestamp};

/// The answer to an ask. A denial is an answer; an error means "could not decide".
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Go ahead; later settle or release the permit.
    Admitted(Permit),
    /// Not now.
    Denied(Denial),
}

impl Decision {
    /// Returns the permit, if admitted.
    #[must_use]
    pub fn into_permit(self) -> Option<Permit> {
        match self {
            Self::Admitted(permit) => Some(permit),
            Self::Denied(_) => None,
        }
    }

    /// Returns the denial, if denied.
    #[must_use]
    pub fn into_denial(self) -> Option<Denial> {
        match self {
            Self::Admitted(_) => None,
            Self::Denied(denial) => Some(denial),
        }
    }

    /// Returns whether the ask was admitted.
    #[must_use]
    pub const fn is_admitted(&self) -> bool {
        matches!(self, Self::Admitted(_))
    }
}

/// Proof of admission: later settled with the actual cost, or released.
#[derive(Clone, Debug, PartialEq)]
pub struct Permit {
    policy: Policy,
    subject: Arc<str>,
    amounts: Amounts,
    grant: Grant,
    same_numbers: bool,
    carried: Option<Box<Carried>>,
    /// The standing right after the decision.
    pub limits: Vec<Standing>,
    /// The denial that a policy in shadow mode did not enforce. Such a permit charged nothing.
    pub shadow_denied: Option<Box<Denial>>,
    /// Whether the decision was made without the store.
    pub degraded: bool,
}

/// What few permits carry, so that the others stay small.
#[derive(Clone, Debug, PartialEq, Default)]
struct Carried {
    id: Option<Arc<str>>,
    seal: Option<Arc<str>>,
    /// The permits of the charges after the first.
    more: Vec<Permit>,
    has_own_costs: bool,
    /// The tenant that its ask named, and its weight.
    tenant: Option<(Arc<str>, u64)>,
}

impl Permit {
    /// Creates the permit of a charge.
    #[must_use]
    pub fn new(policy: &Policy, subject: &str, amounts: Amounts, grant: Grant) -> Self {
        Self {
            policy: policy.clone(),
            subject: subject.into(),
            amounts,
            grant,
            same_numbers: true,
            carried: None,
            limits: Vec::new(),
            shadow_denied: None,
            degraded: false,
        }
    }

    /// Creates the permit of `ask`, which was charged under `grant`. To an unlimited subject the limits do not apply, so its
    /// permit does not show them.
    #[must_use]
    pub fn for_ask(ask: &Ask<'_>, grant: Grant, limits: Vec<Standing>) -> Self {
        let limits = if ask.policy().is_unlimited() { Vec::new() } else { limits };
        let permit = Self::new(ask.policy(), ask.subject(), *ask.amounts(), grant);
        let permit = Self { limits, ..permit };
        if ask.id_text().is_none() { permit } else { permit.with_id(ask.id_text()) }
    }

    /// Creates the permit that a policy in shadow mode gives instead of `denial`: nothing was charged. That of an unlimited
    /// subject does not carry the denial.
    #[must_use]
    pub fn in_shadow(ask: &Ask<'_>, denial: Denial) -> Self {
        let grant = Grant { at: denial.decided_at, stamp: 0, use_by: None, expires_at: None };
        let permit = Self::new(ask.policy(), ask.subject(), Amounts::default(), grant);
        if ask.policy().is_unlimited() {
            return permit;
        }
        Self { limits: denial.limits.clone(), shadow_denied: Some(Box::new(denial)), ..permit }
    }

    /// Marks the permit as admitted under other numbers than its policy has now. How much time has given back already is
    /// unknown then, so it gives nothing back; its slots and its cost beyond the estimate are settled.
    #[must_use]
    pub const fn under_other_numbers(mut self) -> Self {
        self.same_numbers = false;
        self
    }

    /// Replaces the policy by `policy`, which has the same units.
    pub(crate) fn under(self, policy: &Policy) -> Self {
        Self { policy: policy.clone(), ..self }
    }

    /// Replaces the grant, as after renewing.
    #[must_use]
    pub fn with_grant(mut self, grant: Grant) -> Self {
        self.grant = grant;
        self
    }

    /// Sets the id of its ask, which releasing it forgets; without one, releasing leaves the id remembered.
    #[must_use]
    pub fn with_id(mut self, id: Option<impl Into<Arc<str>>>) -> Self {
        if id.is_none() && self.id().is_none() {
            return self;
        }
        let carried = self.carried.take().map(|carried| *carried).unwrap_or_default();
        self.carrying(Carried { id: id.map(Into::into), ..carried })
    }

    /// Returns the id of its ask, if it had one.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.carried.as_ref()?.id.as_deref()
    }

    /// Sets the seal that authenticates it at the gate it came from, if that is across a wire.
    #[must_use]
    pub fn with_seal(mut self, seal: impl Into<Arc<str>>) -> Self {
        let carried = self.carried.take().map(|carried| *carried).unwrap_or_default();
        self.carrying(Carried { seal: Some(seal.into()), ..carried })
    }

    /// Sets the tenant that its ask [named](Ask::for_tenant), and its weight.
    #[must_use]
    pub fn with_tenant(mut self, tenant: &str, weight: u64) -> Self {
        let carried = self.carried.take().map(|carried| *carried).unwrap_or_default();
        self.carrying(Carried { tenant: Some((tenant.into(), weight.max(1))), ..carried })
    }

    /// Returns the tenant that its ask named, and its weight.
    #[must_use]
    pub fn named_tenant(&self) -> Option<(&str, u64)> {
        let (tenant, weight) = self.carried.as_ref()?.tenant.as_ref()?;
        Some((tenant, *weight))
    }

    /// Returns the tenant of its ask, and its weight: those that were named, or the subject of the first charge and the
    /// weight of its policy.
    #[must_use]
    pub fn tenant(&self) -> (&str, u64) {
        self.named_tenant().unwrap_or_else(|| (self.subject(), self.policy.weight()))
    }

    /// Marks the permit of a charge with costs of its own: the actual costs of the ask do not apply to it.
    #[must_use]
    pub fn with_own_costs(mut self) -> Self {
        let carried = self.carried.take().map(|carried| *carried).unwrap_or_default();
        self.carrying(Carried { has_own_costs: true, ..carried })
    }

    /// Returns whether its charge has costs of its own.
    #[must_use]
    pub fn has_own_costs(&self) -> bool {
        self.carried.as_ref().is_some_and(|carried| carried.has_own_costs)
    }

    /// Joins the permits of the charges of one ask, in its order. The first keeps its id and seal.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn joined(permits: Vec<Self>) -> Self {
        let mut permits = permits.into_iter();
        let mut first = permits.next().expect("an ask has a charge");
        let carried = first.carried.take().map(|carried| *carried).unwrap_or_default();
        first.carrying(Carried { more: permits.collect(), ..carried })
    }

    /// Returns the permit of each charge, in the order of the ask, without copies. The first is this permit, which carries the
    /// others: of it, policy, subject, amounts and grant are those of the first charge alone. [`parts`](Self::parts) can be
    /// settled one by one.
    ///
    /// ```
    /// # use tollgate_core::{Amounts, Grant, Limit, Permit, Policy, Timestamp, TokenBucket};
    /// # let policy = Policy::new("user", [Limit::new("rpm", "requests", TokenBucket::per_minute(10))])?;
    /// # let grant = Grant { at: Timestamp::EPOCH, stamp: 1, use_by: None, expires_at: None };
    /// # let permit = |subject: &str| Permit::new(&policy, subject, Amounts::default(), grant);
    /// let joined = Permit::joined(vec![permit("u1"), permit("t7")]);
    /// assert!(joined.charges().map(Permit::subject).eq(["u1", "t7"]));
    /// assert!(joined.parts().all(|part| !part.has_several_charges()));
    /// # Ok::<(), tollgate_core::Error>(())
    /// ```
    pub fn charges(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.more())
    }

    /// Returns the permits of the single charges, in the order of the ask. The first has the id, and is copied if there are
    /// others: to read them, use [`charges`](Self::charges).
    pub fn parts(&self) -> impl Iterator<Item = Cow<'_, Self>> {
        let first = match self.more() {
            [] => Cow::Borrowed(self),
            _ => Cow::Owned(self.first_part()),
        };
        std::iter::once(first).chain(self.more().iter().map(Cow::Borrowed))
    }

    /// Returns whether the ask had more than one charge.
    #[must_use]
    pub fn has_several_charges(&self) -> bool {
        !self.more().is_empty()
    }

    /// The permits of the charges after the first.
    #[must_use]
    pub fn more(&self) -> &[Self] {
        self.carried.as_ref().map_or(&[], |carried| &carried.more)
    }

    /// Reports a unit of `actual` that no charge has.
    pub(crate) fn check_units(&self, actual: &Costs) -> Result<(), Error> {
        let policies = || self.charges().map(Self::policy);
        match actual
            .iter()
            .find(|(unit, _)| policies().all(|policy| policy.unit_index(unit).is_err()))
        {
            Some((unit, _)) => Err(no_such_unit(unit)),
            None => Ok(()),
        }
    }

    fn first_part(&self) -> Self {
        // Field by field, because a clone of `self` copies the other charges too.
        let first = Self {
            policy: self.policy.clone(),
            subject: Arc::clone(&self.subject),
            amounts: self.amounts,
            grant: self.grant,
            same_numbers: self.same_numbers,
            carried: None,
            limits: self.limits.clone(),
            shadow_denied: self.shadow_denied.clone(),
            degraded: self.degraded,
        };
        let carried = self.carried.as_deref().map_or_else(Carried::default, |carried| Carried {
            id: carried.id.clone(),
            seal: carried.seal.clone(),
            more: Vec::new(),
            has_own_costs: carried.has_own_costs,
            tenant: carried.tenant.clone(),
        });
        first.carrying(carried)
    }

    fn carrying(mut self, carried: Carried) -> Self {
        self.carried = (carried != Carried::default()).then(|| Box::new(carried));
        self
    }

    /// Returns the seal that authenticates it at the gate it came from; `None` for a gate in this process.
    #[must_use]
    pub fn seal(&self) -> Option<&str> {
        self.carried.as_ref()?.seal.as_deref()
    }

    /// Returns the policy it was admitted under.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the subject.
    #[must_use]
    pub fn subject(&self) -> &str {
        &self.subject
    }

    /// Returns the charged amounts.
    #[must_use]
    pub fn costs(&self) -> Costs {
        self.policy.costs(&self.amounts)
    }

    /// Returns when it was charged and under which number.
    #[must_use]
    pub const fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Returns the time by which the admitted call should reach the provider, if a limit has a margin.
    #[must_use]
    pub fn use_by(&self) -> Option<Timestamp> {
        self.earliest(|grant| grant.use_by)
    }

    /// Returns when its slots expire, if it holds any.
    #[must_use]
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.earliest(|grant| grant.expires_at)
    }

    /// The earliest `time` of all charges.
    fn earliest(&self, time: impl Fn(&Grant) -> Option<Timestamp>) -> Option<Timestamp> {
        let more = self.more().iter().map(|permit| time(&permit.grant));
        std::iter::once(time(&self.grant)).chain(more).flatten().min()
    }

    /// Returns whether a store charged anything for it; a permit of the shadow mode may have charged nothing, and for a
    /// [local](Self::is_local) one the store charged the block that it came from.
    #[must_use]
    pub const fn is_charged(&self) -> bool {
        self.shadow_denied.is_none() && self.grant.stamp != 0 && !self.is_local()
    }

    /// Returns whether a strategy gave it without the store, from tokens leased in advance or to be posted later. Only the
    /// gate that gave it can settle it; to any store it is a permit that charged nothing.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        LOCAL_STAMPS <= self.grant.stamp
    }

    /// Returns the charge, for a store that settles it.
    #[must_use]
    pub const fn charged(&self) -> Charged<'_> {
        let Self { policy, amounts, grant, same_numbers, .. } = self;
        Charged { policy, amounts, grant, same_numbers: *same_numbers }
    }
}

/// Why not, and until when.
#[derive(Clone, Debug, PartialEq)]
pub struct Denial {
    /// The name of the policy.
    pub policy: Arc<str>,
    /// The name of the binding limit.
    pub limit: Arc<str>,
    /// The unit of the binding limit.
    pub unit: Arc<str>,
    /// How much of that unit was asked for.
    pub asked: u64,
    /// The most that could ever be asked for at once.
    pub most: u64,
    /// Until when, or for ever. An estimate if [`expires_at`](Self::expires_at) is set.
    pub wait: Wait,
    /// Set if slots of a concurrency limit bind: when enough of them have expired, if no holder releases one before.
    pub expires_at: Option<Timestamp>,
    /// The data that the wait for slots is estimated from; `None` if another process estimated it.
    pub slots: Option<Box<SlotWait>>,
    /// How many asks wait ahead of this one. The wait includes theirs.
    pub waiting_ahead: usize,
    /// When it was decided, on the clock that decided.
    pub decided_at: Timestamp,
    /// The standing of the subject on each limit.
    pub limits: Vec<Standing>,
    /// Whether the decision was made without the store.
    pub degraded: bool,
    /// Every limit that refuses, if the ask had several charges.
    pub joint: Option<Box<JointDenial>>,
}

/// What refuses an ask with several charges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JointDenial {
    /// Every limit that refuses, in the order of the ask and of its policies. The longest wait binds.
    pub refused: Vec<RefusedLimit>,
    /// The standing of the subject of each charge.
    pub charges: Vec<ChargeStandings>,
}

/// A limit that refuses one charge of an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedLimit {
    /// The index of the charge in the ask.
    pub charge: usize,
    /// The name of its policy.
    pub policy: Arc<str>,
    /// Its subject.
    pub subject: Arc<str>,
    /// The name of the limit.
    pub limit: Arc<str>,
    /// The unit of the limit.
    pub unit: Arc<str>,
    /// Until when it refuses. For slots this is the bound: when enough of them have expired.
    pub wait: Wait,
}

impl RefusedLimit {
    /// A limit of the policy of `part`, the charge at `charge`, that refuses it.
    #[must_use]
    pub fn new(charge: usize, part: &Ask<'_>, refusal: Refusal) -> Self {
        let metered = part.policy().metered();
        let limit = metered.get(refusal.limit).unwrap_or(&metered[0]);
        Self {
            charge,
            policy: part.policy().shared_name(),
            subject: part.subject().into(),
            limit: Arc::clone(&limit.name),
            unit: Arc::clone(&limit.unit),
            wait: refusal.wait,
        }
    }
}

/// The standing of the subject of one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargeStandings {
    /// The name of the policy.
    pub policy: Arc<str>,
    /// The subject.
    pub subject: Arc<str>,
    /// The standing on each limit.
    pub limits: Vec<Standing>,
}

impl Denial {
    /// Creates the denial of `ask` by `refusal` at `now`.
    #[must_use]
    pub fn for_ask(ask: &Ask<'_>, refusal: Refusal, now: Timestamp, limits: Vec<Standing>) -> Self {
        let metered = ask.policy().metered();
        let binding = metered.get(refusal.limit).unwrap_or(&metered[0]);
        Self {
            policy: ask.policy().shared_name(),
            limit: Arc::clone(&binding.name),
            unit: Arc::clone(&binding.unit),
            asked: ask.amounts().at(binding.unit_index),
            most: binding.gauge.most(),
            wait: refusal.wait,
            expires_at: None,
            slots: None,
            waiting_ahead: 0,
            decided_at: now,
            limits,
            degraded: false,
            joint: None,
        }
    }

    /// Returns the same denial, which other charges of its ask keep up until `time`: no release of slots shortens that.
    #[must_use]
    pub(crate) fn not_before_others(mut self, time: Timestamp) -> Self {
        if let Some(slots) = &mut self.slots {
            slots.not_before = slots.not_before.max(time);
            self.estimate(|_| None);
        }
        self
    }

    /// Returns the index of the charge that binds, if the ask had several.
    #[must_use]
    pub fn binding_charge(&self) -> Option<usize> {
        let joint = self.joint.as_deref()?;
        let named = || {
            let refused = joint.refused.iter();
            refused.filter(|refused| refused.policy == self.policy && refused.limit == self.limit)
        };
        // Two subjects may wait for the same limit of one policy.
        let is_same = |refused: &&RefusedLimit| {
            joint.charges.get(refused.charge).is_some_and(|charge| charge.limits == self.limits)
        };
        let exact = named().find(|refused| refused.wait == self.bound() && is_same(refused));
        exact.or_else(|| named().find(is_same)).or_else(|| named().next()).map(|found| found.charge)
    }

    /// Returns the denial of the charge at `index` alone; `None` if no limit of its policy refuses. An ask with one charge
    /// has only this denial.
    #[must_use]
    pub fn for_charge(&self, index: usize) -> Option<Self> {
        let Some(joint) = self.joint.as_deref() else { return Some(self.clone()) };
        if self.binding_charge() == Some(index) {
            return Some(Self { joint: None, ..self.clone() });
        }
        let own = joint.refused.iter().filter(|refused| refused.charge == index);
        let end = |wait| match wait {
            Wait::Until(until) => until,
            Wait::Never => Timestamp::MAX,
        };
        // The longest wait; of equal ones, the first.
        let refused =
            own.reduce(|most, next| if end(most.wait) < end(next.wait) { next } else { most })?;
        Some(Self {
            policy: Arc::clone(&refused.policy),
            limit: Arc::clone(&refused.limit),
            unit: Arc::clone(&refused.unit),
            wait: refused.wait,
            expires_at: None,
            slots: None,
            limits: joint.charges.get(index).map_or_else(Vec::new, |charge| charge.limits.clone()),
            joint: None,
            ..self.clone()
        })
    }

    /// The same denial with its wait, which is the bound so far, estimated by what is known of `slots`.
    #[must_use]
    pub fn with_slots(mut self, slots: SlotWait) -> Self {
        self.expires_at = self.reset_at();
        self.slots = Some(Box::new(slots));
        self.estimate(|_| None);
        self
    }

    /// Estimates the wait for slots anew from the mean time that the slots of a limit are held. The result is never
    /// before the wait of the other limits, and never after the slots expire. An exact wait, and one that another
    /// process estimated, stays as it is.
    pub fn estimate(&mut self, held_for: impl Fn(&str) -> Option<Span>) {
        if let (Some(slots), Some(expires_at)) = (&self.slots, self.expires_at) {
            let expected = self.decided_at + slots.estimate(held_for);
            self.wait = Wait::Until(expected.max(slots.not_before).min(expires_at));
        }
    }

    /// Returns whether the wait is an estimate, because it depends on when others release their slots.
    #[must_use]
    pub const fn is_estimated(&self) -> bool {
        self.expires_at.is_some()
    }

    /// Returns the longest possible wait, if nothing is given back: the expiry of slots, not the estimate.
    #[must_use]
    pub const fn bound(&self) -> Wait {
        match self.expires_at {
            Some(expires_at) => Wait::Until(expires_at),
            None => self.wait,
        }
    }

    /// Returns the time before which no release of slots admits the ask: the wait of the other limits.
    #[must_use]
    pub fn not_before(&self) -> Timestamp {
        self.slots.as_ref().map_or(self.decided_at, |slots| slots.not_before)
    }

    /// Returns how long to wait from the moment of the decision; `None` if it can never fit.
    /// [`Duration::from`](std::time::Duration) converts it.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Span> {
        match self.wait {
            Wait::Until(until) => Some(until.since(self.decided_at)),
            Wait::Never => None,
        }
    }

    /// Returns the instant from which the ask would be admitted, or is expected to be; `None` if it can never fit.
    #[must_use]
    pub const fn reset_at(&self) -> Option<Timestamp> {
        match self.wait {
            Wait::Until(until) => Some(until),
            Wait::Never => None,
        }
    }

    /// Formats the wait, as in "4s" or "about 2s (estimated; at the latest 4m 58s)"; `None` if it can never fit.
    #[must_use]
    pub fn humanize_wait(&self) -> Option<String> {
        let latest = self.expires_at.map(|at| at.since(self.decided_at));
        self.retry_after().map(|wait| humanize_wait(wait, latest))
    }
}

/// The limit that binds and the wait, in one sentence.
impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, policy, asked, most, .. } = self;
        write!(f, "denied by limit {limit:?} of policy {policy:?}")?;
        let Some(wait) = self.humanize_wait() else {
            return write!(f, ": asked {asked}, at most {most} ever fit");
        };
        if 0 < self.waiting_ahead {
            write!(f, "; {}", humanize_ahead(self.waiting_ahead))?;
        }
        write!(f, "; try again in {wait}")
    }
}

/// Formats a wait for people. With `latest` it is an estimate, and `latest` is its bound.
#[must_use]
pub fn humanize_wait(wait: Span, latest: Option<Span>) -> String {
    match latest {
        Some(latest) => {
            format!("about {} (estimated; at the latest {})", wait.humanize(), latest.humanize())
        }
        None => wait.humanize(),
    }
}

/// Formats how many asks wait ahead, as in "12 asks wait ahead".
#[must_use]
pub fn humanize_ahead(asks: usize) -> String {
    match asks {
        1 => "1 ask waits ahead".to_owned(),
        asks => format!("{asks} asks wait ahead"),
    }
}
