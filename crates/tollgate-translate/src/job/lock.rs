//! The lock of the process that works on a job of a folder. It is the operating system's and goes with the process.

use std::fs::{File, TryLockError};
use std::path::Path;

use super::Hold;
use super::embedded::{private, unusable};
use crate::error::Error;

/// How many processes that look at a lock one that takes it bears in a row.
const LOOKERS_MAX: usize = 1_000;

/// A lock; there is no file for jobs in memory.
#[derive(Debug)]
pub(super) struct Lock(
    #[expect(dead_code, reason = "held until it is dropped")] pub(super) Option<File>,
);

impl Hold for Lock {}

/// Whether a process has the lock of a job.
pub(super) fn is_held(folder: &Path, id: &str) -> bool {
    let file = File::open(folder.join(format!("job-{id}.lock")));
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// One process works on a job at a time; the lock goes with it.
pub(super) fn take(folder: &Path, id: &str) -> Result<File, Error> {
    let path = folder.join(format!("job-{id}.lock"));
    let file = private(&path).map_err(|error| unusable(&path, &error.to_string()))?;
    // Somebody who only looks has it for a moment.
    let mut tried = file.try_lock();
    for _ in 0..LOOKERS_MAX {
        match &tried {
            Err(TryLockError::WouldBlock) if file.try_lock_shared().is_ok() => {
                drop(file.unlock());
                std::thread::yield_now();
                tried = file.try_lock();
            }
            _ => break,
        }
    }
    match tried {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::store(format!(
            "another process works on the job {id:?} in {}; wait for it, or stop it first",
            folder.display()
        ))),
        Err(TryLockError::Error(error)) => Err(unusable(&path, &error.to_string())),
    }
}
