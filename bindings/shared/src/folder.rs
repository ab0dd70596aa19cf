//! An embedded store that several processes use in turns.
//!
//! One process at a time has a data folder open. A gate gives it up when another process waits for it, or when it was not used
//! for a while, and opens it again for its next operation. Operations that run are finished first.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::{OwnedRwLockWriteGuard, RwLock};
use tollgate::clock::SystemClock;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::{Clock, Error, ErrorKind, Gate, Span, Timestamp};
use tollgate_config::open::{self, Opened};
use tollgate_config::{Config, StoreConfig};
use tollgate_embedded::Embedded;
use tollgate_protocol::permit_token::KEY_BYTES;

/// How often the holder of a folder looks for other processes.
const LOOK_EVERY: Span = Span::from_millis(20);

/// How long a folder that is not used stays open.
const IDLE_MAX: Span = Span::from_secs(1);

/// How long a process that gave a folder up to others leaves it to them.
const TURN_PAUSE: Span = Span::from_millis(5);

/// A folder that is open while it is used.
#[derive(Debug)]
pub(crate) struct Folder {
    config: Arc<Config>,
    clock: Arc<dyn Clock>,
    key: [u8; KEY_BYTES],
    state: Arc<RwLock<State>>,
    /// The monotonic time of the last operation, in microseconds.
    used_at: AtomicU64,
    /// For the task that gives the folder up.
    this: Weak<Self>,
}

#[derive(Debug)]
enum State {
    Away,
    Open(Opened),
    Closed,
}

impl Folder {
    pub(crate) async fn open(
        config: Arc<Config>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Arc<Self>, Error> {
        let opened = open_folder(&config, clock).await?;
        let key = opened.key();
        let folder = Arc::new_cyclic(|this| Self {
            config,
            clock: Arc::clone(clock),
            key,
            state: Arc::new(RwLock::new(State::Open(opened))),
            used_at: AtomicU64::new(0),
            this: Weak::clone(this),
        });
        folder.mark_used();
        folder.give_up_later();
        Ok(folder)
    }

    pub(crate) const fn key(&self) -> [u8; KEY_BYTES] {
        self.key
    }

    /// Gives the folder up for good.
    pub(crate) async fn close(&self) -> Result<(), crate::Error> {
        let mut state = self.state.write().await;
        match std::mem::replace(&mut *state, State::Closed) {
            State::Open(opened) => Ok(opened.shutdown(Timestamp::MAX).await?),
            _ => Ok(()),
        }
    }

    /// Gives the folder up, and keeps it so until the guard is dropped.
    pub(crate) async fn suspend(&self) -> Suspended {
        let mut state = Arc::clone(&self.state).write_owned().await;
        give_up(&mut state).await;
        Suspended { _state: state }
    }

    fn mark_used(&self) {
        self.used_at.store(SystemClock.monotonic().as_micros(), Ordering::Relaxed);
    }

    /// Gives the folder up once another process waits for it, or nobody uses it.
    fn give_up_later(&self) {
        let this = Weak::clone(&self.this);
        let look = async move {
            loop {
                SystemClock.sleep_until(SystemClock.now() + LOOK_EVERY).await;
                let Some(folder) = this.upgrade() else { return };
                let StoreConfig::Embedded { path, .. } = &folder.config.store else { return };
                let is_awaited = Embedded::is_awaited(path);
                let unused = SystemClock
                    .monotonic()
                    .as_micros()
                    .saturating_sub(folder.used_at.load(Ordering::Relaxed));
                if !is_awaited && unused < IDLE_MAX.as_micros() {
                    continue;
                }
                let mut state = folder.state.write().await;
                give_up(&mut state).await;
                if is_awaited {
                    SystemClock.sleep_until(SystemClock.now() + TURN_PAUSE).await;
                }
                return;
            }
        };
        drop(tokio::spawn(look));
    }

    async fn run_open(&self, operation: Operation<'_>) -> Result<Outcome, Error> {
        let mut state = self.state.read().await;
        while !matches!(*state, State::Open(_)) {
            drop(state);
            let mut writing = self.state.write().await;
            match *writing {
                State::Closed => return Err(closed()),
                State::Open(_) => {}
                State::Away => {
                    *writing = State::Open(open_folder(&self.config, &self.clock).await?);
                    self.mark_used();
                    self.give_up_later();
                }
            }
            state = writing.downgrade();
        }
        let State::Open(opened) = &*state else { return Err(closed()) };
        let outcome = opened.gate().run(operation).await;
        self.mark_used();
        outcome
    }
}

/// A folder that this process does not open.
#[derive(Debug)]
pub(crate) struct Suspended {
    _state: OwnedRwLockWriteGuard<State>,
}

async fn give_up(state: &mut State) {
    if !matches!(state, State::Open(_)) {
        return;
    }
    if let State::Open(opened) = std::mem::replace(state, State::Away) {
        // An error of the disk was answered to the operation that met it, and the next opening reports it again.
        drop(opened.shutdown(Timestamp::MAX).await);
    }
}

/// Opening blocks while another process has the folder.
async fn open_folder(config: &Arc<Config>, clock: &Arc<dyn Clock>) -> Result<Opened, Error> {
    let (config, clock) = (Arc::clone(config), Arc::clone(clock));
    let runtime = tokio::runtime::Handle::current();
    let opening = tokio::task::spawn_blocking(move || {
        runtime.block_on(open::for_command(&config.store, &config.fallback, clock))
    });
    opening.await.unwrap_or_else(|error| {
        Err(Error::new(ErrorKind::Unavailable, format!("opening the folder failed: {error}")))
    })
}

#[cold]
fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the gate is closed; open another one")
}

impl Gate for Folder {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(self.run_open(operation))
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}
