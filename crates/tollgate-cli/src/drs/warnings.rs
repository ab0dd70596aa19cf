//! Warnings of a command on standard error: what does not fail it, and yet must be known.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::filter::LevelFilter;

use crate::view::View;

/// Prints warnings from now on, above what `view` draws.
pub(super) fn start(view: &Arc<Mutex<View>>) {
    let view = Arc::clone(view);
    let log = tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).with_ansi(false);
    let log = log.without_time().with_target(false).compact();
    // It fails only where a subscriber is installed already, which prints them then.
    drop(log.with_writer(move || Warnings(Arc::clone(&view))).try_init());
}

/// Takes a line with each write.
struct Warnings(Arc<Mutex<View>>);

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
