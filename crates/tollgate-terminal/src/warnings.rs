//! Warnings of a command on standard error, above its progress.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::filter::LevelFilter;

use crate::ProgressDisplay;

/// Prints warnings that are logged from now on.
pub fn start(progress: &Arc<Mutex<ProgressDisplay>>) {
    let progress = Arc::clone(progress);
    let log = tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).with_ansi(false);
    let log = log.without_time().with_target(false).compact();
    // It fails only where a subscriber is installed already, which prints them then.
    drop(log.with_writer(move || Warnings(Arc::clone(&progress))).try_init());
}

/// A writer that gets one line with each write.
struct Warnings(Arc<Mutex<ProgressDisplay>>);

impl Write for Warnings {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).warn(text.trim());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
