//! The last known state of each item.
//!
//! A hint only predicts the next write, whose condition decides, so a stale, lost or wrong hint is harmless.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;

use crate::item::Item;
use crate::refund::Observation;

/// The most hints; beyond it the older half is dropped.
pub const HINTS_MAX: usize = 10_000;

/// The most tokens of finished writes of one item that wait for removal.
const FINISHED_MAX: usize = 16;

type Map<T> = HashMap<String, T, foldhash::fast::RandomState>;

#[derive(Clone, Debug, Default)]
struct Hint {
    item: Option<Arc<Item>>,
    finished: Vec<String>,
    observations: Vec<Observation>,
}

/// Hints in two generations.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    halves: Mutex<[Map<Hint>; 2]>,
}

impl Hints {
    fn halves(&self) -> MutexGuard<'_, [Map<Hint>; 2]> {
        self.halves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last known item of `key`.
    pub(crate) fn seen(&self, key: &str) -> Option<Arc<Item>> {
        let halves = self.halves();
        halves.iter().find_map(|half| half.get(key)).and_then(|hint| hint.item.clone())
    }

    /// Records `item` under `key`, unless a newer one is known.
    pub(crate) fn see(&self, key: &str, item: &Arc<Item>) {
        self.change(key, |hint| {
            let newer = hint.item.as_ref().is_some_and(|known| item.version() < known.version());
            if !newer {
                hint.item = Some(Arc::clone(item));
                item.observation().add_to(&mut hint.observations);
            }
        });
    }

    /// Returns the observations of the buckets of `key`, in the order of stamps.
    pub(crate) fn observations(&self, key: &str) -> Vec<Observation> {
        let halves = self.halves();
        let hint = halves.iter().find_map(|half| half.get(key));
        hint.map(|hint| hint.observations.clone()).unwrap_or_default()
    }

    /// Records that there is no item under `key`.
    pub(crate) fn miss(&self, key: &str) {
        self.change(key, |hint| {
            hint.item = None;
            hint.observations.clear();
        });
    }

    /// Records that the write with `token` is finished, so that its token can be removed.
    pub(crate) fn finish(&self, key: &str, token: String) {
        self.change(key, |hint| {
            if hint.finished.len() < FINISHED_MAX {
                hint.finished.push(token);
            }
        });
    }

    /// Takes the tokens to remove with the next write.
    pub(crate) fn take_finished(&self, key: &str) -> Vec<String> {
        let mut halves = self.halves();
        let hint = halves.iter_mut().find_map(|half| half.get_mut(key));
        hint.map(|hint| std::mem::take(&mut hint.finished)).unwrap_or_default()
    }

    fn change(&self, key: &str, change: impl FnOnce(&mut Hint)) {
        let mut halves = self.halves();
        let [young, old] = &mut *halves;
        if !young.contains_key(key) {
            if HINTS_MAX / 2 <= young.len() {
                *old = std::mem::take(young);
            }
            let hint = old.remove(key).unwrap_or_default();
            young.insert(key.to_owned(), hint);
        }
        if let Some(hint) = young.get_mut(key) {
            change(hint);
        }
    }
}
