//! Lines to standard error or output, written by a background thread.
//!
//! A stalled reader, a full disk or a closed pipe costs lines, which are counted and reported once writing works again. It
//! never delays or fails the caller.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, thread};

/// The most bytes that wait for the writing thread; a line beyond that is dropped.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// How long [`LineWriter::finish`] waits.
const FINISH_MAX: Duration = Duration::from_secs(1);

/// A bounded queue of lines in front of a writing thread. Clones share the queue.
#[derive(Clone, Debug)]
pub struct LineWriter(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Vec<u8>>,
    /// Bytes in the queue and being written.
    bytes: usize,
    /// Lines that were not written, since the last report.
    dropped: u64,
}

impl LineWriter {
    /// Starts the thread that writes to `to`. `report` formats the line about dropped lines.
    ///
    /// The file descriptor is duplicated, so that a write that blocks does not hold the lock of [`io::stderr`].
    pub fn start(to: &impl AsFd, report: fn(u64) -> String) -> io::Result<Self> {
        let out = fs::File::from(to.as_fd().try_clone_to_owned()?);
        let lines = Self(Arc::default());
        let shared = Arc::clone(&lines.0);
        thread::Builder::new()
            .name("tollgate-lines".to_owned())
            .spawn(move || shared.write_to(out, report))?;
        Ok(lines)
    }

    /// Queues `line`, or drops it if the queue is full.
    pub fn push(&self, line: &[u8]) {
        let mut state = self.0.lock();
        if QUEUE_BYTES_MAX < state.bytes + line.len() {
            state.dropped += 1;
            return;
        }
        state.bytes += line.len();
        state.queue.push_back(line.to_vec());
        self.0.changed.notify_all();
    }

    /// Waits until everything is written, for at most `FINISH_MAX`.
    pub fn finish(&self) {
        let state = self.0.lock();
        drop(self.0.changed.wait_timeout_while(state, FINISH_MAX, |state| 0 < state.bytes));
    }
}

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_to(&self, mut out: impl Write, report: fn(u64) -> String) {
        loop {
            let mut state = self.lock();
            let line = loop {
                match state.queue.pop_front() {
                    Some(line) => break line,
                    None => {
                        state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            let dropped = std::mem::take(&mut state.dropped);
            drop(state);
            let mut lost = 0;
            if 0 < dropped && out.write_all(report(dropped).as_bytes()).is_err() {
                lost = dropped;
            }
            if out.write_all(&line).is_err() {
                lost += 1;
            }
            let mut state = self.lock();
            state.bytes -= line.len();
            state.dropped += lost;
            self.changed.notify_all();
        }
    }
}
