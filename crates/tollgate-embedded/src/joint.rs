//! Asks with several charges: the shards of all of them are locked, every entry is judged, room for new keys is certain before
//! anything is written, and one batch writes all of it.

use tollgate::core::{Charge, Entry, Joint, JointDecision};
use tollgate::gate::Operation;
use tollgate::internal::LockedShards;
use tollgate::{Ask, Error, ErrorKind, Policy, Timestamp};

use crate::cache::{Item, Shard};
use crate::group_commit::Changed;
use crate::row::Key;
use crate::shared::{Decided, Shared, known};

/// A charge and its key.
struct ChargeKey<'a> {
    policy: &'a Policy,
    subject: &'a str,
    hash: u64,
    key: Key,
}

/// An entry that is not cached.
struct Uncached {
    /// The stored entry, or a fresh one.
    entry: Entry,
    is_stored: bool,
}

impl Shared {
    /// Decides `operation`, an acquire or charge of `ask`, at `now`.
    pub(crate) fn decide_joint(
        &self,
        operation: &Operation<'_>,
        ask: &Ask<'_>,
        now: Timestamp,
    ) -> Result<Decided, Error> {
        let key = |charge| self.charge_key(charge);
        let keys: Vec<ChargeKey<'_>> = ask.charges().map(key).collect();
        let mut missing = Vec::new();
        // Making room may evict an entry of the ask, which then needs room itself.
        for _ in &keys {
            missing.clear();
            match self.decide_joint_once(operation, &keys, now, &mut missing) {
                Err(full) if full.kind() == ErrorKind::Full => {
                    if !self.make_room(&missing, now)? {
                        return Err(full);
                    }
                }
                decided => return decided,
            }
        }
        self.decide_joint_once(operation, &keys, now, &mut missing)
    }

    fn charge_key<'a>(&self, charge: &'a Charge<'_>) -> ChargeKey<'a> {
        let (policy, subject) = (charge.policy(), charge.subject());
        let (hash, key) = (self.hash(policy.name(), subject), Key::new(policy.name(), subject));
        ChargeKey { policy, subject, hash, key }
    }

    /// Decides on the entries of `keys`. `missing` gets the policies of the keys that need room.
    fn decide_joint_once<'a>(
        &self,
        operation: &Operation<'_>,
        keys: &[ChargeKey<'a>],
        now: Timestamp,
        missing: &mut Vec<&'a Policy>,
    ) -> Result<Decided, Error> {
        let hashes: Vec<u64> = keys.iter().map(|key| key.hash).collect();
        let mut shards = self.cache.lock_all(&hashes);
        let mut uncached = self.load_all(&mut shards, keys, now)?;
        let recent = operation
            .id()
            .and_then(|id| item(&mut shards, &keys[0])?.ids.find(id).map(Option::<&_>::cloned));
        let record = match recent {
            Some(recent) => recent,
            None => self.stored_id(keys[0].hash, &keys[0].key, operation)?,
        };
        let others = record.as_ref().map_or([].as_slice(), |record| &record.others);
        let mut decision = JointDecision::new(operation, known(record.as_ref()), others, now)?;
        for (key, uncached) in keys.iter().zip(&mut uncached) {
            decision.judge(entry(&mut shards, key, uncached))?;
        }
        let is_admitted = decision.conclude()?;
        let is_charged: Vec<bool> =
            (0..keys.len()).map(|index| decision.is_charged(index)).collect();
        // The first key also has the id.
        let is_written = |index: usize| {
            is_charged[index] || index == 0 && is_admitted && operation.id().is_some()
        };
        let mut batch = 0;
        if is_admitted {
            let new = |index: usize| uncached[index].as_ref().is_some_and(|entry| !entry.is_stored);
            let new = (0..keys.len()).filter(|index| is_charged[*index] && new(*index));
            missing.extend(new.map(|index| keys[index].policy));
            self.keys.take(missing)?;
            let written = (0..keys.len()).filter(|index| is_written(*index));
            let changed: Vec<(u64, Changed)> = written
                .map(|index| {
                    let ChargeKey { hash, key, .. } = &keys[index];
                    let batch = item(&mut shards, &keys[index]).map_or(0, |item| item.changed_in);
                    (batch, Changed { hash: *hash, key: key.clone() })
                })
                .collect();
            if !changed.is_empty() {
                batch = self.group_commit.push_together(now, &changed).inspect_err(|_| {
                    missing.iter().for_each(|policy| self.keys.give_back(policy.name()));
                })?;
            }
        } else {
            // A denial and a repeat rely on what was charged before.
            let changed_in = keys.iter().filter_map(|key| Some(item(&mut shards, key)?.changed_in));
            batch = changed_in.max().unwrap_or(0);
        }
        for (index, (key, uncached)) in keys.iter().zip(&mut uncached).enumerate() {
            if is_written(index)
                && let Some(item) = item(&mut shards, key)
            {
                item.enter(batch);
            }
            decision.complete(entry(&mut shards, key, uncached));
        }
        let Joint { outcome, id, others } = decision.finish();
        for (index, (key, uncached)) in keys.iter().zip(uncached).enumerate() {
            let Some(Uncached { entry, is_stored }) = uncached else { continue };
            let entry = (is_charged[index] || is_stored).then_some(entry);
            let shard = shards.shard(key.hash);
            if let Some(item) = shard.find_key(key.hash, &key.key) {
                // It was cleaned up; its key is new.
                item.entry = entry;
            } else if entry.is_some() || is_written(index) {
                let item = self.insert(shard, key.hash, key.key.clone(), entry, is_stored);
                if is_written(index) {
                    item.enter(batch);
                }
            }
        }
        if let Some(item) = item(&mut shards, &keys[0]) {
            item.ids.change_joint(operation, id, others, self.group_commit.durable());
        }
        Ok(Decided { outcome, batch })
    }

    /// Loads the entries of `keys` that are not cached; `None` for one that is. Entries from the future are repaired.
    fn load_all(
        &self,
        shards: &mut LockedShards<'_, Shard>,
        keys: &[ChargeKey<'_>],
        now: Timestamp,
    ) -> Result<Vec<Option<Uncached>>, Error> {
        let mut uncached = Vec::with_capacity(keys.len());
        for key in keys {
            let ChargeKey { policy, subject, hash, .. } = *key;
            let shard = shards.shard(hash);
            let fresh = || Uncached { entry: Entry::fresh(policy, now), is_stored: false };
            if let Some(item) = shard.find(hash, policy.name(), subject) {
                let at = item.entry.as_ref().map(Entry::at);
                if let Some(ahead) = at.and_then(|at| self.time.beyond(at, now)) {
                    self.repair(item, hash, (policy, subject), now, ahead)?;
                }
                uncached.push(at.is_none().then(fresh));
                continue;
            }
            let Some(entry) = self.load(hash, &key.key, Some(policy))? else {
                uncached.push(Some(fresh()));
                continue;
            };
            if let Some(ahead) = self.time.beyond(entry.at(), now) {
                let item = self.insert(shard, hash, key.key.clone(), Some(entry), true);
                self.repair(item, hash, (policy, subject), now, ahead)?;
                // Its item may have taken the room of another one of the ask.
                return self.load_all(shards, keys, now);
            }
            uncached.push(Some(Uncached { entry, is_stored: true }));
        }
        Ok(uncached)
    }
}

/// Returns the cached item of `key`.
fn item<'s>(shards: &'s mut LockedShards<'_, Shard>, key: &ChargeKey<'_>) -> Option<&'s mut Item> {
    shards.shard(key.hash).find_key(key.hash, &key.key)
}

/// Returns the entry of `key`, which is cached or in `uncached`.
fn entry<'s>(
    shards: &'s mut LockedShards<'_, Shard>,
    key: &ChargeKey<'_>,
    uncached: &'s mut Option<Uncached>,
) -> &'s mut Entry {
    match uncached {
        Some(uncached) => &mut uncached.entry,
        None => {
            let cached = item(shards, key).and_then(|item| item.entry.as_mut());
            cached.expect("an entry that was not loaded is cached")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use tollgate::{GateExt, Limit, RollingWindow, Span};

    use super::*;
    use crate::{Durability, Embedded, Options};

    /// A policy that fails a commit with one of its rows once the trigger exists.
    const FAIL: &str =
        "CREATE TRIGGER fail BEFORE INSERT ON entries WHEN instr(NEW.key, 'parent') = 1
                        BEGIN SELECT RAISE(ABORT, 'the power is gone'); END";

    fn daily(name: &str) -> Policy {
        let rule = RollingWindow::new(100, Span::from_hours(24)).resolution(24);
        Policy::new(name, [Limit::new("rpd", "requests", rule)]).unwrap()
    }

    /// The first batch is sealed and not encoded yet when an ask charges an entry of it and another one. Then the first
    /// batch is written and the second is not, as if the process had ended between the two.
    #[tokio::test]
    async fn a_crash_between_two_batches_keeps_no_half_of_an_ask() {
        for durability in [Durability::Strict, Durability::Relaxed] {
            let folder = tempfile::tempdir().unwrap();
            let options = Options::new().durability(durability);
            let gate = Embedded::open(folder.path(), options.clone()).unwrap();
            let (child, parent) = (daily("child"), daily("parent"));
            let busy = rusqlite::Connection::open(&gate.shared.path).unwrap();
            busy.execute_batch("BEGIN IMMEDIATE").unwrap();
            let context = &mut Context::from_waker(Waker::noop());
            let alone = Ask::new(&child, "c").cost("requests", 3).id("alone");
            let _ = pin!(gate.acquire(&alone)).poll(context);
            gate.shared.group_commit.hurry();
            while gate.shared.group_commit.is_gathering(1) {
                std::thread::yield_now();
            }
            let joint = Ask::new(&child, "c").and(&parent, "p").cost("requests", 5).id("joint");
            let _ = pin!(gate.acquire(&joint)).poll(context);
            busy.execute_batch(FAIL).unwrap();
            busy.execute_batch("COMMIT").unwrap();
            gate.shutdown(Timestamp::MAX).await.unwrap_err();
            drop(gate);
            busy.execute_batch("DROP TRIGGER fail").unwrap();
            let gate = Embedded::open(folder.path(), options).unwrap();
            let used = async |policy| gate.standing(policy, "c").await.unwrap()[0].used;
            assert_eq!(used(&child).await, 3, "{durability:?}");
            assert_eq!(gate.standing(&parent, "p").await.unwrap()[0].used, 0, "{durability:?}");
            assert!(gate.acquire(&alone).await.unwrap().is_admitted());
            assert_eq!(used(&child).await, 3, "{durability:?}: the id of the first batch is known");
            assert!(gate.acquire(&joint).await.unwrap().is_admitted());
            assert_eq!(used(&child).await, 8, "{durability:?}: the other id is not");
        }
    }
}
