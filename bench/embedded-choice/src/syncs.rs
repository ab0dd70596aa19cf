//! Counts the fsync and fdatasync calls of this process, whichever library
//! makes them.
//!
//! The executable's own definitions win over the C library's at link time, so
//! no database needs to cooperate. "Is one commit one sync?" is then a figure
//! and not a claim.

use libc::{SYS_fdatasync, SYS_fsync, c_int, syscall};
use std::sync::atomic::{AtomicU64, Ordering};

static SYNCS: AtomicU64 = AtomicU64::new(0);

pub fn count() -> u64 {
    SYNCS.load(Ordering::Relaxed)
}

// SAFETY: same signature and same meaning as the functions they stand in for;
// `syscall` sets errno as they do.
#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    SYNCS.fetch_add(1, Ordering::Relaxed);
    unsafe { syscall(SYS_fsync, fd) as c_int }
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    SYNCS.fetch_add(1, Ordering::Relaxed);
    unsafe { syscall(SYS_fdatasync, fd) as c_int }
}
