//! What was last seen of each item.
//!
//! A hint is only a guess at the next write: the condition of that write is what decides, so a hint may be old, lost or
//! wrong without harm.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;

use crate::item::Item;
use crate::refund::Sight;

/// The most items that are remembered; beyond it the older half is forgotten.
pub const HINTS_MAX: usize = 10_000;

/// The most finished writes of one item whose attributes wait to be removed.
const FINISHED_MAX: usize = 16;

type Map<T> = HashMap<String, T, foldhash::fast::RandomState>;

#[derive(Clone, Debug, Default)]
struct Hint {
    item: Option<Arc<Item>>,
    finished: Vec<String>,
    sights: Vec<Sight>,
}

/// Hints of the younger and of the older half.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    halves: Mutex<[Map<Hint>; 2]>,
}

impl Hints {
    fn halves(&self) -> MutexGuard<'_, [Map<Hint>; 2]> {
        self.halves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was last seen of `key`.
    pub(crate) fn seen(&self, key: &str) -> Option<Arc<Item>> {
        let halves = self.halves();
        halves.iter().find_map(|half| half.get(key)).and_then(|hint| hint.item.clone())
    }

    /// `item` was seen under `key`, unless something newer was.
    pub(crate) fn see(&self, key: &str, item: &Arc<Item>) {
        self.change(key, |hint| {
            let newer = hint.item.as_ref().is_some_and(|known| item.version() < known.version());
            if !newer {
                hint.item = Some(Arc::clone(item));
                item.sight().add_to(&mut hint.sights);
            }
        });
    }

    /// What was seen of the buckets of `key`, in order of stamps.
    pub(crate) fn sights(&self, key: &str) -> Vec<Sight> {
        let halves = self.halves();
        let hint = halves.iter().find_map(|half| half.get(key));
        hint.map(|hint| hint.sights.clone()).unwrap_or_default()
    }

    /// There is no item under `key`.
    pub(crate) fn miss(&self, key: &str) {
        self.change(key, |hint| {
            hint.item = None;
            hint.sights.clear();
        });
    }

    /// The write marked `token` was answered, so that its mark can go.
    pub(crate) fn finish(&self, key: &str, token: String) {
        self.change(key, |hint| {
            if hint.finished.len() < FINISHED_MAX {
                hint.finished.push(token);
            }
        });
    }

    /// The marks that can go with the next write.
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
