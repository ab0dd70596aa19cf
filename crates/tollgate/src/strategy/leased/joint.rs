//! Asks with several charges: those of leased policies are spent from blocks, and the store decides the others as one ask.
//!
//! What was spent is held in [`Spent`] until the store has decided. It goes back to its blocks if the ask is refused, fails
//! or is cancelled; what the store may have charged by then without a reply stays charged, which is the strict side. A
//! block may end while the store decides. Its tokens must not be spent after that, so the permit of the store is released
//! then, and the store decides the whole ask.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tollgate_core::{
    Ask, ChargeStandings, Costs, Decision, Denial, JoinedOutcome, JointDenial, Operation, Outcome,
    Permit, RefusedLimit,
};

use super::block::{Block, Moment};
use super::subject_state::Local;
use super::worker::{Shared, spawn};
use super::{Leased, is_worth_a_block};
use crate::error::{Error, ErrorKind};
use crate::gate::{Gate, GateExt, decide};

impl<G: Gate> Leased<G> {
    /// Decides `ask` without the store, if blocks have room for all of its charges.
    pub(super) fn try_jointly(&self, ask: &Ask<'_>) -> Option<Decision> {
        let is_leased = ask.charges().all(|charge| charge.policy().is_leased());
        if !is_leased || ask.id_text().is_some() {
            return None;
        }
        let spent = self.spend(ask)?;
        Some(Decision::Admitted(spent.into_permit(ask, None)))
    }

    pub(super) async fn decide_jointly(&self, ask: &Ask<'_>) -> Result<Decision, Error> {
        ask.check()?;
        let gate = &self.0.gate;
        let rest: Vec<usize> = indexes(ask, false).collect();
        // Only the store recognises a repeated id.
        if ask.id_text().is_some() || rest.len() == ask.charges().len() {
            return decide(gate, ask).await;
        }
        let Some(mut spent) = self.spend(ask) else {
            self.lease_ahead(ask);
            return decide(gate, ask).await;
        };
        let Some(asked) = ask.subset(&rest) else {
            return Ok(Decision::Admitted(spent.into_permit(ask, None)));
        };
        spent.hold();
        let permit = match decide(gate, &asked).await? {
            Decision::Admitted(permit) => permit,
            Decision::Denied(denial) => {
                return Ok(Decision::Denied(spent.denial(ask, &rest, denial)));
            }
        };
        if spent.refresh(self.0.now()) {
            return Ok(Decision::Admitted(spent.into_permit(ask, Some(&permit))));
        }
        drop(spent);
        self.0.release(permit).await;
        decide(gate, ask).await
    }

    /// Spends every charge of a leased policy from a block, or none of them.
    fn spend(&self, ask: &Ask<'_>) -> Option<Spent<G>> {
        let now = self.0.now();
        // Probing first leaves no trace of an ask that lacks a block.
        let has_room = |part: Ask<'_>| {
            let (policy, subject) = (part.policy(), part.subject());
            self.0.subjects.with(policy, subject, |state| state.has_room(&part, now)) == Some(true)
        };
        if !indexes(ask, true).all(|index| ask.part(index).is_some_and(has_room)) {
            return None;
        }
        let mut spent = Spent { shared: Arc::clone(&self.0), parts: Vec::new(), is_held: false };
        for index in indexes(ask, true) {
            let part = ask.part(index)?;
            let permit = self.local(&part, now, |state, local| match local {
                Local::Spent { index, charge, .. } => {
                    Some(state.permit(index, charge.stamp, part.amounts(), now))
                }
                Local::Refused | Local::Ask => None,
            });
            spent.parts.push((index, permit?));
        }
        Some(spent)
    }

    /// Leases blocks for the charges of `ask` that found none, if such asks come often.
    fn lease_ahead(&self, ask: &Ask<'_>) {
        let now = self.0.now();
        for index in indexes(ask, true) {
            let Some(part) = ask.part(index).filter(is_worth_a_block) else { continue };
            let (policy, subject) = (part.policy(), part.subject());
            let begins =
                self.0.subjects.with_new(policy, subject, now, |state| state.missed(&part, now));
            if begins == Some(true) {
                self.0.begin_lease(policy, subject, true);
            }
        }
    }

    /// Settles, releases or renews a permit of which some charges were spent from blocks: each charge where it was taken.
    pub(super) async fn run_on_joint(
        &self,
        operation: Operation<'_>,
        permit: &Permit,
    ) -> Result<Outcome, Error> {
        let parts = operation.parts()?;
        let from_store: Vec<Permit> =
            permit.parts().filter(|part| !part.is_local()).map(Cow::into_owned).collect();
        let from_store = (!from_store.is_empty()).then(|| Permit::joined(from_store));
        let gate = &self.0.gate;
        let at_store = match (operation, &from_store) {
            (_, None) => None,
            (Operation::Settle(_, actual), Some(rest)) => {
                let actual = applicable(actual, rest);
                Some(gate.run(Operation::Settle(rest, &actual)).await)
            }
            (Operation::Renew(_), Some(rest)) => Some(gate.run(Operation::Renew(rest)).await),
            (_, Some(rest)) => Some(gate.run(Operation::Release(rest)).await),
        };
        if let Operation::Renew(_) = operation {
            return renewed(permit, at_store.transpose()?.as_ref());
        }
        let mut joined = JoinedOutcome::default();
        at_store.into_iter().for_each(|outcome| joined.add(outcome));
        for part in &parts {
            match part.operation() {
                local @ (Operation::Settle(permit, _) | Operation::Release(permit))
                    if permit.is_local() =>
                {
                    joined.add(self.run(local).await);
                }
                _ => {}
            }
        }
        joined.finish()
    }
}

impl<G: Gate> Shared<G> {
    /// Releases `permit`, which no caller received, in a task of its own, and waits for it.
    async fn release(self: &Arc<Self>, permit: Permit) {
        let Ok(runtime) = Handle::try_current() else { return };
        let (done, released) = oneshot::channel::<()>();
        let shared = Arc::clone(self);
        spawn(&self.returns, &runtime, async move {
            let is_released = shared.gate.release(&permit).await.is_ok();
            drop(done);
            is_released
        });
        drop(released.await);
    }
}

/// Returns the indexes of the charges whose policy is leased, or of the others.
fn indexes(ask: &Ask<'_>, is_leased: bool) -> impl Iterator<Item = usize> {
    let charges = ask.charges().enumerate();
    charges
        .filter(move |(_, charge)| charge.policy().is_leased() == is_leased)
        .map(|(index, _)| index)
}

/// Returns the costs of `actual` that apply to a charge of `permit`.
fn applicable(actual: &Costs, permit: &Permit) -> Costs {
    let applies = |unit: &str| {
        let mut sharing = permit.parts().filter(|part| !part.has_own_costs());
        sharing.any(|part| part.policy().units().any(|known| *known == *unit))
    };
    actual.iter().filter(|(unit, _)| applies(unit)).collect()
}

/// Returns `permit` with the charges that the store renewed. A charge out of a block holds no slot and is returned as it is.
fn renewed(permit: &Permit, at_store: Option<&Outcome>) -> Result<Outcome, Error> {
    let mut from_store: VecDeque<Permit> = match at_store {
        Some(Outcome::Permitted(renewed)) => renewed.parts().map(Cow::into_owned).collect(),
        Some(other) => return Err(crate::gate::unexpected(other)),
        None => VecDeque::new(),
    };
    let lost = || Error::new(ErrorKind::Corrupt, "the store renewed fewer charges than it gave");
    let part = |part: Cow<'_, Permit>| match part.is_local() {
        true => Ok(part.into_owned()),
        false => from_store.pop_front().ok_or_else(lost),
    };
    let parts: Vec<Permit> = permit.parts().map(part).collect::<Result<_, Error>>()?;
    Ok(Outcome::Permitted(Permit::joined(parts)))
}

/// Charges that were spent from blocks, by their index in the ask, of which the caller does not know yet. Dropping them
/// returns them to their blocks.
struct Spent<G: Gate> {
    shared: Arc<Shared<G>>,
    parts: Vec<(usize, Permit)>,
    /// Whether the blocks wait for the parts when they end.
    is_held: bool,
}

impl<G: Gate> Spent<G> {
    /// Lets the blocks wait for the parts, because the store is asked about the other charges.
    fn hold(&mut self) {
        for (_, permit) in &self.parts {
            self.shared.subjects.with_block(permit, Block::hold);
        }
        self.is_held = true;
    }

    /// Dates the permits as of `now`, and ends the wait of the blocks. Returns false, without changes, if a block has ended.
    fn refresh(&mut self, now: Moment) -> bool {
        let subjects = &self.shared.subjects;
        let refreshed = |(index, permit): &(usize, Permit)| {
            let stamp = permit.grant().stamp;
            let grant = |block: &mut Block| block.is_live(now).then(|| block.grant(stamp, now));
            let grant = subjects.with_block(permit, grant).flatten()?;
            Some((*index, permit.clone().with_grant(grant)))
        };
        let Some(parts) = self.parts.iter().map(refreshed).collect() else { return false };
        self.parts = parts;
        for (_, permit) in &self.parts {
            subjects.with_block(permit, Block::unhold);
        }
        self.is_held = false;
        true
    }

    /// Returns the permit of `ask`, whose other charges have the permit `at_store`.
    fn into_permit(mut self, ask: &Ask<'_>, at_store: Option<&Permit>) -> Permit {
        let mut local: VecDeque<(usize, Permit)> = std::mem::take(&mut self.parts).into();
        let mut from_store = at_store.into_iter().flat_map(Permit::parts);
        let mut permits = Vec::new();
        for index in 0..ask.charges().len() {
            let permit = match local.front() {
                Some((place, _)) if *place == index => local.pop_front().map(|(_, permit)| permit),
                _ => from_store.next().map(Cow::into_owned),
            };
            let own = |permit: Permit| match ask.has_own_costs(index) {
                true => permit.with_own_costs(),
                false => permit,
            };
            permits.extend(permit.map(own));
        }
        Permit::joined(permits)
    }

    /// Returns the denial of `ask` by the store, which decided the charges at `rest`.
    fn denial(&self, ask: &Ask<'_>, rest: &[usize], mut denial: Denial) -> Denial {
        let index_of = |place: usize| rest.get(place).copied().unwrap_or(place);
        let (refused, at_store) = match denial.joint.take() {
            Some(joint) => {
                let refused = joint.refused.into_iter();
                let refused = refused
                    .map(|limit| RefusedLimit { charge: index_of(limit.charge), ..limit })
                    .collect();
                (refused, joint.charges.into_iter().map(|charge| charge.limits).collect())
            }
            None => (only_refusal(ask, index_of(0), &denial), vec![denial.limits.clone()]),
        };
        let at_store: Vec<Vec<_>> = at_store;
        let limits_at = |index: usize| {
            let spent = self.parts.iter().find(|(place, _)| *place == index);
            let at_store = || at_store.get(rest.iter().position(|place| *place == index)?);
            spent.map(|(_, permit)| &permit.limits).or_else(at_store).cloned().unwrap_or_default()
        };
        let charges = ask.charges().enumerate().map(|(index, charge)| ChargeStandings {
            policy: charge.policy().name().into(),
            subject: charge.subject().into(),
            limits: limits_at(index),
        });
        let charges = charges.collect();
        Denial { joint: Some(Box::new(JointDenial { refused, charges })), ..denial }
    }
}

/// The limit that binds, of a charge that the store decided alone.
fn only_refusal(ask: &Ask<'_>, index: usize, denial: &Denial) -> Vec<RefusedLimit> {
    let refused = ask.charges().nth(index).map(|charge| RefusedLimit {
        charge: index,
        policy: Arc::clone(&denial.policy),
        subject: charge.subject().into(),
        limit: Arc::clone(&denial.limit),
        unit: Arc::clone(&denial.unit),
        wait: denial.bound(),
    });
    refused.into_iter().collect()
}

impl<G: Gate> Drop for Spent<G> {
    fn drop(&mut self) {
        if self.parts.is_empty() {
            return;
        }
        let now = self.shared.now();
        for (_, permit) in self.parts.drain(..) {
            if let Some(block) = self.shared.subjects.unspend(&permit, self.is_held, now) {
                self.shared.begin_return(block);
            }
        }
    }
}
