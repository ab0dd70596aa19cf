//! The keys in force, and what a connection may do under them.
//!
//! HTTP and gRPC carry the key with each call. A connection of the Redis protocol says it once, so it remembers the hash
//! and looks it up again when the keys were replaced or its own has expired: a key that is taken away ends at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tollgate::Timestamp;

use crate::keys::{Grant, KeyHash, Keys, Refused, Scope, Scopes};

/// The keys in force; without any, everybody may do everything.
#[derive(Debug)]
pub(crate) struct Access {
    keys: RwLock<Option<Arc<Keys>>>,
    /// Counts replacements, so that a connection sees one without taking the lock.
    version: AtomicU64,
}

impl Access {
    pub(crate) const fn open() -> Self {
        Self { keys: RwLock::new(None), version: AtomicU64::new(1) }
    }

    pub(crate) fn replace(&self, keys: Option<Keys>) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys.map(Arc::new);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Whether calls need a key.
    pub(crate) fn is_guarded(&self) -> bool {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(crate) fn find(&self, hash: Option<&KeyHash>, now: Timestamp) -> Result<Grant, Refused> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner).clone();
        match (keys, hash) {
            (None, _) => Ok(Grant { scopes: Scopes::all(), until: Timestamp::MAX }),
            (Some(_), None) => Err(Refused::Missing),
            (Some(keys), Some(hash)) => keys.find(hash, now),
        }
    }
}

/// What a connection said about itself.
#[derive(Debug)]
pub(crate) struct Session {
    hash: Option<KeyHash>,
    found: Result<Grant, Refused>,
    /// The version of the keys that `found` is from.
    version: u64,
}

impl Session {
    /// A connection that has said nothing yet.
    pub(crate) const fn new() -> Self {
        Self { hash: None, found: Err(Refused::Missing), version: 0 }
    }

    /// Takes `key` for the connection if it is right; a wrong one changes nothing.
    pub(crate) fn take(
        &mut self,
        key: &str,
        access: &Access,
        now: Timestamp,
    ) -> Result<(), Refused> {
        let hash = KeyHash::of(key);
        let version = access.version.load(Ordering::Acquire);
        let grant = access.find(Some(&hash), now)?;
        *self = Self { hash: Some(hash), found: Ok(grant), version };
        Ok(())
    }

    /// Whether the connection may do something that needs `scope`, or any key at all.
    pub(crate) fn check(
        &mut self,
        scope: Option<Scope>,
        access: &Access,
        now: impl Fn() -> Timestamp,
    ) -> Result<(), Refused> {
        let version = access.version.load(Ordering::Acquire);
        let is_over = |grant: &Grant| grant.until != Timestamp::MAX && grant.until <= now();
        if self.version != version || self.found.as_ref().is_ok_and(is_over) {
            self.found = access.find(self.hash.as_ref(), now());
            self.version = version;
        }
        let grant = self.found?;
        scope.map_or(Ok(()), |scope| grant.scopes.check(scope))
    }
}
