//! `tollgate export` and `tollgate import`: move entries and overrides from one store to another.

mod document;
mod export;
mod import;

pub(crate) use export::export;
pub(crate) use import::import;

use std::io::{self, IsTerminal as _, Write as _};

/// The number of entries between two lines of progress.
const PROGRESS_INTERVAL: u64 = 10_000;

/// Prints progress on a terminal. Best effort.
fn progress(done: u64, what: &str) {
    if done.is_multiple_of(PROGRESS_INTERVAL) && io::stderr().is_terminal() {
        let _ = writeln!(io::stderr(), "{done} entries {what}");
    }
}
