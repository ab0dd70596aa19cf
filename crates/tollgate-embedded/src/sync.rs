//! How this crate takes a lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes the lock, also after a panic elsewhere: every critical section leaves its data whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
