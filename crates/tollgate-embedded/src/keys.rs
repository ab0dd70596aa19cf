//! The number of keys of the store and of each policy, and their bounds.
//!
//! Callers count a key when they create its entry, under the lock of its shard. The writer saves the counts of the rows in
//! the transaction that writes them, so they are exact after a crash and opening the store does not scan it.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate::{Error, ErrorKind, Policy, Span, Timestamp};

use crate::database::Writes;
use crate::sync::lock;

/// Default of [`Options::keys_max`](crate::Options::keys_max): one or two gigabytes on disk for entries of a few limits.
pub const KEYS_MAX_DEFAULT: u64 = 10_000_000;

/// With [`Options::share_per_policy`](crate::Options::share_per_policy), one policy has at most one in so many keys.
const POLICY_SHARE: u64 = 2;

/// Pause after a search that found nothing to evict, so that a flood of new keys does not make every ask search.
const SEARCH_PAUSE: Span = Span::from_millis(100);

/// The number of keys by policy name.
pub(crate) type KeyCounts = HashMap<Box<str>, u64>;

/// The keys that entries exist for, cached or stored.
#[derive(Debug)]
pub(crate) struct Keys {
    keys_max: u64,
    policy_keys_max: u64,
    counts: Mutex<Counts>,
    searches: Mutex<HashMap<Box<str>, Search>>,
    /// Whether a key found no room since maintenance last asked.
    was_full: AtomicBool,
}

#[derive(Debug)]
struct Counts {
    total: u64,
    policies: KeyCounts,
}

impl Counts {
    fn add(&mut self, policy: &str) {
        self.total += 1;
        add(&mut self.policies, policy, 1);
    }
}

/// Where the search for entries to evict goes on, and when.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// The last key of the previous search.
    pub(crate) after: Vec<u8>,
    not_before: Timestamp,
}

impl Search {
    /// Whether the last search found nothing a moment ago.
    pub(crate) fn is_paused(&self, now: Timestamp) -> bool {
        // A pause that ends later than it is long was set before the clock stepped back.
        now < self.not_before && self.not_before <= now + SEARCH_PAUSE
    }

    pub(crate) fn pause(&mut self, now: Timestamp) {
        self.not_before = now + SEARCH_PAUSE;
    }
}

/// The bound that a new key would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    Store(u64),
    Policy(u64),
}

impl Keys {
    pub(crate) fn new(policies: KeyCounts, keys_max: u64, is_shared: bool) -> Self {
        let policy_keys_max = if is_shared { (keys_max / POLICY_SHARE).max(1) } else { u64::MAX };
        let counts = Counts { total: policies.values().sum(), policies };
        Self {
            keys_max,
            policy_keys_max,
            counts: Mutex::new(counts),
            searches: Mutex::default(),
            was_full: AtomicBool::new(false),
        }
    }

    /// Counts one more key of each of `policies`, or of none.
    ///
    /// # Errors
    /// [`Full`](ErrorKind::Full) if the store or a policy has as many keys as it may have.
    pub(crate) fn take(&self, policies: &[&Policy]) -> Result<(), Error> {
        let mut counts = lock(&self.counts);
        if let Some((bound, policy)) = self.exceeded_by(&counts, policies) {
            drop(counts);
            self.was_full.store(true, Ordering::Relaxed);
            return Err(full(bound, policy.name()));
        }
        policies.iter().for_each(|policy| counts.add(policy.name()));
        Ok(())
    }

    /// Counts one more key of the policy called `policy`, for an operator: only the bound of the store applies.
    pub(crate) fn take_unshared(&self, policy: &str) -> Result<(), Error> {
        let mut counts = lock(&self.counts);
        if self.keys_max <= counts.total {
            return Err(full(Bound::Store(self.keys_max), policy));
        }
        counts.add(policy);
        Ok(())
    }

    /// Counts one key of the policy called `policy` less.
    pub(crate) fn give_back(&self, policy: &str) {
        let mut counts = lock(&self.counts);
        counts.total = counts.total.saturating_sub(1);
        add(&mut counts.policies, policy, -1);
    }

    /// Returns the bound that another key of each of `policies` would exceed, and the policy of the key without room.
    pub(crate) fn exceeded<'p>(&self, policies: &[&'p Policy]) -> Option<(Bound, &'p Policy)> {
        self.exceeded_by(&lock(&self.counts), policies)
    }

    fn exceeded_by<'p>(
        &self,
        counts: &Counts,
        policies: &[&'p Policy],
    ) -> Option<(Bound, &'p Policy)> {
        policies.iter().zip(0..).find_map(|(policy, before)| {
            let most = policy.subjects_max().unwrap_or(self.policy_keys_max);
            let keys = counts.policies.get(policy.name()).copied().unwrap_or(0);
            let earlier = policies.iter().zip(0..before);
            let earlier = earlier.map(|(other, _)| u64::from(other.name() == policy.name()));
            if most <= keys + earlier.sum::<u64>() {
                return Some((Bound::Policy(most), *policy));
            }
            (self.keys_max <= counts.total + before)
                .then_some((Bound::Store(self.keys_max), *policy))
        })
    }

    /// Returns the number of keys.
    pub(crate) fn total(&self) -> u64 {
        lock(&self.counts).total
    }

    /// Whether three quarters of the keys are taken, or a key found no room since the last call.
    pub(crate) fn is_pressed(&self) -> bool {
        self.was_full.swap(false, Ordering::Relaxed)
            || self.keys_max - self.keys_max / 4 <= self.total()
    }

    /// Runs one search at a time among the keys of `scope`: a policy name, or the empty string for all.
    pub(crate) fn search<T>(&self, scope: &str, run: impl FnOnce(&mut Search) -> T) -> T {
        let mut searches = lock(&self.searches);
        run(searches.entry(scope.into()).or_default())
    }
}

/// Adds `difference` to the keys of `policy`.
pub(crate) fn add(counts: &mut KeyCounts, policy: &str, difference: i64) {
    if let Some(keys) = counts.get_mut(policy) {
        *keys = keys.saturating_add_signed(difference);
        if *keys == 0 {
            counts.remove(policy);
        }
    } else if let Ok(keys @ 1..) = u64::try_from(difference) {
        counts.insert(policy.into(), keys);
    }
}

fn full(bound: Bound, policy: &str) -> Error {
    let text = match bound {
        Bound::Store(most) => format!(
            "embedded: no room for another key, the store has {most} that hold something back; raise keys_max of the store"
        ),
        Bound::Policy(most) => format!(
            "embedded: policy {policy:?} has {most} subjects that hold something back, and may have no more; \
             raise its subjects_max, or keys_max"
        ),
    };
    Error::new(ErrorKind::Full, text)
}

/// The number of rows by policy, for the writer.
#[derive(Debug)]
pub(crate) struct StoredKeys {
    pub(crate) counts: KeyCounts,
    /// Policies whose saved count is out of date; `None` if all are.
    changed: Option<HashSet<Box<str>>>,
}

impl StoredKeys {
    pub(crate) fn new(counts: KeyCounts, is_saved: bool) -> Self {
        Self { counts, changed: is_saved.then(HashSet::new) }
    }

    /// Counts a row that is created (1) or removed (-1).
    pub(crate) fn add(&mut self, policy: &str, difference: i64) {
        add(&mut self.counts, policy, difference);
        if let Some(changed) = &mut self.changed
            && !changed.contains(policy)
        {
            changed.insert(policy.into());
        }
    }

    /// Saves what changed since the last call.
    pub(crate) fn save(&mut self, writes: &mut Writes<'_>) -> rusqlite::Result<()> {
        match &mut self.changed {
            Some(changed) => {
                for policy in changed.drain() {
                    writes.keys(&policy, self.counts.get(&policy).copied().unwrap_or(0))?;
                }
            }
            None => {
                writes.forget_keys()?;
                for (policy, keys) in &self.counts {
                    writes.keys(policy, *keys)?;
                }
                self.changed = Some(HashSet::new());
            }
        }
        Ok(())
    }
}
