//! Asks with several charges: the shards of all of them are locked in ascending order, every entry is judged, and room for
//! new keys is certain before anything is written.

use smallvec::SmallVec;
use tollgate_core::{
    Ask, Charge, ChargeRecord, Decision, Entry, Grant, Joint, JointDecision, Operation, Outcome,
    Refusal, Timestamp, Verdict,
};

use crate::error::Error;
use crate::gate::unexpected;
use crate::internal::sharded::LockedShards;

use super::Memory;
use super::shard::Shard;

/// A charge and the hash of its key.
type Key<'k, 'a> = (&'k Charge<'a>, u64);

impl Memory {
    /// Runs `operation`, an acquire or charge of `ask`.
    pub(super) fn run_joint(
        &self,
        operation: &Operation<'_>,
        ask: &Ask<'_>,
        now: Timestamp,
    ) -> Result<Outcome, Error> {
        let hash = |charge: &Charge<'_>| self.shards.hash(charge.policy(), charge.subject());
        let keys: SmallVec<[Key<'_, '_>; 8]> =
            ask.charges().map(|charge| (charge, hash(charge))).collect();
        let hashes: SmallVec<[u64; 8]> = keys.iter().map(|(_, hash)| *hash).collect();
        let mut shards = self.shards.lock_all(&hashes);
        let ids = shards.shard(hashes[0]).ids();
        let known = ids.known(operation, now);
        let mut decision = JointDecision::new(operation, known, ids.others(operation), now)?;
        let mut has_new_keys = false;
        for (charge, hash) in &keys {
            match shards.shard(*hash).entry(*hash, charge.policy(), charge.subject()) {
                Some(entry) => decision.judge(entry)?,
                None => {
                    has_new_keys = true;
                    decision.judge(&Entry::fresh(charge.policy(), now))?;
                }
            }
        }
        if decision.conclude()? && has_new_keys {
            self.reserve(&mut shards, &keys, &decision, now)?;
        }
        for (index, (charge, hash)) in keys.iter().enumerate() {
            let shard = shards.shard(*hash);
            if let Some(entry) = shard.entry(*hash, charge.policy(), charge.subject()) {
                decision.complete(entry);
                continue;
            }
            let mut entry = Entry::fresh(charge.policy(), now);
            decision.complete(&mut entry);
            if decision.is_charged(index) {
                shard.push(*hash, charge.subject(), entry, self.rehash());
            }
        }
        let Joint { outcome, id, others } = decision.finish();
        shards.shard(hashes[0]).ids().carry_out_joint(operation, id, others);
        Ok(outcome)
    }

    /// As [`Memory::try_acquire`]. The limit of a denial is that of the binding charge's policy.
    #[cold]
    pub(super) fn try_acquire_joint(
        &self,
        ask: &Ask<'_>,
        now: Timestamp,
    ) -> Result<Verdict, Error> {
        let ask = ask.clone().without_refund();
        let denial = match self.run_now(&Operation::Acquire(&ask), now)? {
            Outcome::Decided(Decision::Admitted(permit)) => {
                let Grant { at, stamp, .. } = *permit.grant();
                return Ok(Verdict::Admitted(ChargeRecord { at, stamp }));
            }
            Outcome::Decided(Decision::Denied(denial)) => denial,
            other => return Err(unexpected(&other)),
        };
        let binding = ask.charges().find(|charge| charge.policy().name() == &*denial.policy);
        let mut limits = binding.into_iter().flat_map(|charge| charge.policy().limits());
        let limit = limits.position(|limit| limit.name() == &*denial.limit).unwrap_or(0);
        Ok(Verdict::Denied(Refusal { limit, wait: denial.bound() }))
    }

    /// Makes room for the keys of `decision` that are missing, or for none of them.
    fn reserve(
        &self,
        shards: &mut LockedShards<'_, Shard>,
        keys: &[Key<'_, '_>],
        decision: &JointDecision<'_>,
        now: Timestamp,
    ) -> Result<(), Error> {
        let mut missing = self.missing(shards, keys, decision);
        loop {
            for (_, hash) in &missing {
                let in_shard =
                    missing.iter().filter(|(_, other)| self.shards.is_one(*hash, *other));
                shards.shard(*hash).reserve(in_shard.count(), now, self.rehash())?;
            }
            // Making room may forget an entry of the ask that equals an absent one.
            let still_missing = self.missing(shards, keys, decision);
            if still_missing.len() == missing.len() {
                break;
            }
            missing = still_missing;
        }
        for (index, (charge, _)) in missing.iter().enumerate() {
            if let Err(full) = self.policies.take(charge.policy()) {
                missing[..index]
                    .iter()
                    .for_each(|(charge, _)| self.policies.give_back(charge.policy()));
                return Err(full);
            }
        }
        Ok(())
    }

    fn missing<'k, 'a>(
        &self,
        shards: &mut LockedShards<'_, Shard>,
        keys: &[Key<'k, 'a>],
        decision: &JointDecision<'_>,
    ) -> SmallVec<[Key<'k, 'a>; 8]> {
        let charged = keys.iter().enumerate().filter(|(index, _)| decision.is_charged(*index));
        let is_missing = |(charge, hash): &Key<'_, '_>| {
            shards.shard(*hash).entry(*hash, charge.policy(), charge.subject()).is_none()
        };
        charged.map(|(_, key)| *key).filter(is_missing).collect()
    }
}
