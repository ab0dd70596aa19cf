//! The lock of this crate, which a model checker can take over.
//!
//! Built with `--cfg tollgate_shuttle` every lock is one that shuttle schedules, so the memory store and the waiting
//! line are checked as they are, not as a copy.

#[cfg(not(tollgate_shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(tollgate_shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};

use std::sync::PoisonError;

/// How often a lock is tried before the thread goes to sleep. Critical sections here take some tens of nanoseconds,
/// far less than a sleep.
const SPINS_MAX: u32 = 200;

/// Takes the lock, also after a panic elsewhere: every critical section leaves its data whole.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    if !cfg!(tollgate_shuttle) {
        for _ in 0..SPINS_MAX {
            if let Ok(guard) = mutex.try_lock() {
                return guard;
            }
            std::hint::spin_loop();
        }
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
