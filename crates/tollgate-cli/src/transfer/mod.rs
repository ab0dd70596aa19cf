//! `tollgate export` and `tollgate import`: entries and overrides, moved from one store to another.

mod document;
mod export;
mod import;

pub(crate) use export::export;
pub(crate) use import::import;

use std::io::{self, IsTerminal as _, Write as _};

/// How many entries there are between two lines of progress.
const PROGRESS_EVERY: u64 = 10_000;

/// Tells somebody at a terminal how far it is. A line that cannot be written is no reason to stop.
fn progress(done: u64, what: &str) {
    if done.is_multiple_of(PROGRESS_EVERY) && io::stderr().is_terminal() {
        let _ = writeln!(io::stderr(), "{done} entries {what}");
    }
}
