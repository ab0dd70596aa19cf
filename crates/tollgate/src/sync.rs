//! The locks and atomics of this crate, which a model checker can take over.
//!
//! Built with `--cfg tollgate_shuttle` every lock is one that shuttle schedules, so the memory store and the waiting
//! line are checked as they are, not as a copy.

#[cfg(not(tollgate_shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic::AtomicUsize};

#[cfg(tollgate_shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic::AtomicUsize};

use std::sync::PoisonError;

/// How often a lock is tried before the thread goes to sleep. Critical sections here take some tens of nanoseconds,
/// far less than a sleep.
const TRIES_MAX: u32 = 100;

/// The longest pause between two tries, in spin hints: each try takes the lock's cache line away from its holder.
const PAUSE_MAX: u32 = 32;

/// Takes the lock, also after a panic elsewhere: every critical section leaves its data whole.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.try_lock() {
        Ok(guard) => guard,
        Err(_) => lock_contended(mutex),
    }
}

#[cold]
fn lock_contended<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    if !cfg!(tollgate_shuttle) {
        let mut pause = 4;
        for _ in 0..TRIES_MAX {
            for _ in 0..pause {
                std::hint::spin_loop();
            }
            pause = PAUSE_MAX.min(pause * 2);
            if let Ok(guard) = mutex.try_lock() {
                return guard;
            }
        }
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
