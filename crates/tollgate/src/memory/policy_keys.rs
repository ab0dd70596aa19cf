//! How many keys each policy has in all shards together.

use std::collections::HashMap;

use tollgate_core::Policy;

use crate::error::{Error, ErrorKind};
use crate::sync::{Mutex, lock};

#[derive(Debug, Default)]
pub(super) struct PolicyKeys(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// The bound of a policy that has none of its own.
    most: Option<usize>,
    /// By the hash of the policy's name.
    keys: HashMap<u64, usize>,
}

impl PolicyKeys {
    pub(super) fn bound(&self, most: usize) {
        lock(&self.0).most = Some(most);
    }

    /// Counts one more key of `policy`, unless it has as many as it may have.
    pub(super) fn take(&self, policy: &Policy) -> Result<(), Error> {
        let mut counts = lock(&self.0);
        let own = policy.subjects_max().map(|most| usize::try_from(most).unwrap_or(usize::MAX));
        let most = own.or(counts.most).unwrap_or(usize::MAX);
        let keys = counts.keys.entry(policy.name_hash()).or_default();
        if most <= *keys {
            return Err(Error::new(
                ErrorKind::Full,
                format!(
                    "memory: policy {:?} has {most} subjects that hold something back, and may have no more; \
                     raise its subjects_max, or keys_max",
                    policy.name()
                ),
            ));
        }
        *keys += 1;
        Ok(())
    }

    /// Counts one key of `policy` less.
    pub(super) fn give_back(&self, policy: &Policy) {
        let mut counts = lock(&self.0);
        if let Some(keys) = counts.keys.get_mut(&policy.name_hash()) {
            *keys = keys.saturating_sub(1);
            if *keys == 0 {
                counts.keys.remove(&policy.name_hash());
            }
        }
    }
}
