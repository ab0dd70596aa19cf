//! Reopens a store after a failed write, such as on a full disk.
//!
//! A store stops at the first failed write, because its memory is then ahead of the disk. Reopening reads the state on disk:
//! nothing that was answered is lost, and nothing that failed counts.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Error, ErrorKind, Gate, Span, Timestamp};

use crate::embedded::Embedded;
use crate::options::Options;
use crate::sync::lock;

/// Interval between two attempts to reopen a folder.
pub const REOPEN_EVERY: Span = Span::from_secs(1);

/// An [`Embedded`] that reopens its folder after a failed write, for a process that must outlive a full disk.
///
/// Until then every operation fails with [`Unavailable`](ErrorKind::Unavailable) and the cause. A damaged folder stays
/// closed.
#[derive(Debug)]
pub struct Reopening(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    options: Options,
    permit_key: [u8; 32],
    state: Mutex<State>,
    closed: Condvar,
}

#[derive(Debug)]
struct State {
    store: Arc<Embedded>,
    is_reopening: bool,
    is_closed: bool,
}

impl Reopening {
    /// Opens the data folder at `path`.
    ///
    /// # Errors
    /// As [`Embedded::open`].
    pub fn open(path: impl Into<PathBuf>, options: Options) -> Result<Self, Error> {
        let path = path.into();
        let store = Arc::new(Embedded::open(&path, options.clone())?);
        let permit_key = store.permit_key();
        let state = Mutex::new(State { store, is_reopening: false, is_closed: false });
        Ok(Self(Arc::new(Inner { path, options, permit_key, state, closed: Condvar::new() })))
    }

    /// As [`Embedded::permit_key`].
    #[must_use]
    pub fn permit_key(&self) -> [u8; 32] {
        self.0.permit_key
    }

    /// As [`Embedded::shutdown`]; the folder is not reopened.
    ///
    /// # Errors
    /// As [`Embedded::shutdown`].
    pub async fn shutdown(&self, deadline: Timestamp) -> Result<(), Error> {
        let store = {
            let mut state = lock(&self.0.state);
            state.is_closed = true;
            Arc::clone(&state.store)
        };
        self.0.closed.notify_all();
        store.shutdown(deadline).await
    }
}

impl Inner {
    /// Starts to reopen the folder if `store` has stopped, unless another call does so already.
    fn look_after(self: &Arc<Self>, store: &Arc<Embedded>) {
        let Some(why) = store.failure() else { return };
        let mut state = lock(&self.state);
        let is_current = Arc::ptr_eq(&state.store, store);
        if !is_current || state.is_closed || state.is_reopening {
            return;
        }
        state.is_reopening = true;
        drop(state);
        tracing::error!(error = %why, "the store stopped; it is reopened as soon as its disk is writable");
        let (inner, stopped) = (Arc::clone(self), Arc::clone(store));
        let spawned = thread::Builder::new()
            .name("tollgate-reopen".to_owned())
            .spawn(move || inner.reopen(&stopped));
        if spawned.is_err() {
            lock(&self.state).is_reopening = false;
        }
    }

    fn reopen(&self, stopped: &Embedded) {
        // The writer thread holds the lock until it ends.
        stopped.join();
        while !self.pause() {
            match Embedded::open(&self.path, self.options.clone()).and_then(Embedded::written) {
                Ok(store) => {
                    let mut state = lock(&self.state);
                    (state.store, state.is_reopening) = (Arc::new(store), false);
                    drop(state);
                    tracing::warn!("the store is open again, without any loss");
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    // Only the operator can help, so it stays marked as being reopened.
                    tracing::error!(%error, "the store cannot be reopened");
                    return;
                }
                Err(error) => tracing::debug!(%error, "the store cannot be opened yet"),
            }
        }
    }

    /// Waits for the next attempt. Returns whether the store was closed meanwhile.
    fn pause(&self) -> bool {
        let state = lock(&self.state);
        let waited =
            self.closed.wait_timeout_while(state, REOPEN_EVERY.into(), |state| !state.is_closed);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }
}

impl Gate for Reopening {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            let store = Arc::clone(&lock(&self.0.state).store);
            let answer = store.run(operation).await;
            if answer.is_err() {
                self.0.look_after(&store);
            }
            answer
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

impl Drop for Reopening {
    fn drop(&mut self) {
        lock(&self.0.state).is_closed = true;
        self.0.closed.notify_all();
    }
}
