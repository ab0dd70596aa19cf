//! The lock of a state file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::invalid;
use tollgate_terminal::Failure;

/// The most that is read from a lock file.
const HOLDER_BYTES_MAX: u64 = 200;

/// An exclusive lock on a file beside the state file, which is replaced by each write and so cannot be locked itself. The
/// operating system releases it when the process ends.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "held until it is dropped")] File);

impl Lock {
    /// Locks `state`. The error names the process that holds the lock.
    pub(super) fn take(state: &Path) -> Result<Self, Failure> {
        let path = beside(state, ".lock");
        let unusable = |error: std::io::Error| {
            invalid(format!(
                "{} cannot be locked: {error}; name another file with --state",
                path.display()
            ))
        };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(held(state, &file)),
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
        file.set_len(0)
            .and_then(|()| file.write_all(std::process::id().to_string().as_bytes()))
            .map_err(unusable)?;
        Ok(Self(file))
    }
}

fn held(state: &Path, file: &File) -> Failure {
    let mut text = String::new();
    // The holder may not have written it yet.
    let _ = file.take(HOLDER_BYTES_MAX).read_to_string(&mut text);
    let process = match text.trim() {
        "" => "another process".to_owned(),
        id => format!("process {id}"),
    };
    let state = state.display();
    invalid(format!(
        "{process} is working on the recovery in {state}; wait for it, or stop it and then go on with --resume. \
         For other servers name another file with --state"
    ))
}

/// The path of `file` with `suffix` at its end.
pub(super) fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut beside = file.as_os_str().to_owned();
    beside.push(suffix);
    PathBuf::from(beside)
}
