//! Options of a data folder.

use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::SystemClock;
use tollgate::observe::Observer;
use tollgate::{Clock, Span};

use crate::keys::KEYS_MAX_DEFAULT;

/// Default of [`Options::lock_wait`].
pub const LOCK_WAIT_DEFAULT: Span = Span::from_secs(30);

/// What a crash of the process or the machine may lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// A decision waits until its change is on disk, so a crash loses nothing that was answered.
    #[default]
    Strict,
    /// A decision does not wait. A crash loses at most the admissions of [`RELAXED_LOSS_MAX`](crate::RELAXED_LOSS_MAX); if the
    /// disk is slower than that, decisions wait for it.
    Relaxed,
}

/// The kind of process that holds the folder, shown to other processes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Holder {
    /// A short-lived command; others wait for it.
    #[default]
    Command,
    /// A broker; others are redirected to its URL.
    Server {
        /// Its URL.
        url: String,
    },
}

/// Options of a data folder. The defaults are strict durability, a command, 30 s of waiting for the lock, and the system
/// clock.
///
/// ```
/// use tollgate_embedded::{Durability, Holder, Options};
///
/// let options = Options::new()
///     .durability(Durability::Relaxed)
///     .holder(Holder::Server { url: "http://127.0.0.1:8080".to_owned() });
/// # assert_eq!(options.durability, Durability::Relaxed);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// What a crash may lose.
    pub durability: Durability,
    /// The kind of process that holds the folder.
    pub holder: Holder,
    /// How long to wait for the lock while other commands hold it.
    pub lock_wait: Duration,
    /// The most keys; see [`keys_max`](Self::keys_max).
    pub keys_max: u64,
    /// Whether one policy may have only half of the keys; see [`share_per_policy`](Self::share_per_policy).
    pub share_per_policy: bool,
    /// The deciding clock.
    pub clock: Arc<dyn Clock>,
    /// Whether clock steps are detected; see [`check_clock`](Self::check_clock).
    pub check_clock: bool,
    /// Receives [`Event::Repaired`](tollgate::observe::Event::Repaired) for rewritten entries from the future.
    pub observer: Option<Arc<dyn Observer>>,
}

impl Options {
    /// Returns the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self {
            durability: Durability::Strict,
            holder: Holder::Command,
            lock_wait: LOCK_WAIT_DEFAULT.into(),
            keys_max: KEYS_MAX_DEFAULT,
            share_per_policy: false,
            clock: Arc::new(SystemClock),
            check_clock: true,
            observer: None,
        }
    }

    /// Sets the durability.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the kind of holder.
    #[must_use]
    pub fn holder(mut self, holder: Holder) -> Self {
        self.holder = holder;
        self
    }

    /// Sets how long to wait for the lock while other commands hold it.
    #[must_use]
    pub fn lock_wait(mut self, lock_wait: impl Into<Duration>) -> Self {
        self.lock_wait = lock_wait.into();
        self
    }

    /// Sets the most keys, [`KEYS_MAX_DEFAULT`] by default. At the bound, entries that equal an absent one are evicted; if
    /// there are none, a new key fails with [`Full`](tollgate::ErrorKind::Full). A policy with a
    /// [`subjects_max`](tollgate::Policy::subjects_max) has that bound, too.
    #[must_use]
    pub fn keys_max(mut self, keys_max: u64) -> Self {
        self.keys_max = keys_max;
        self
    }

    /// Bounds every policy without a [`subjects_max`](tollgate::Policy::subjects_max) to half of the keys, so that callers of
    /// one policy cannot take the room of the others.
    #[must_use]
    pub fn share_per_policy(mut self) -> Self {
        self.share_per_policy = true;
        self
    }

    /// With `false`, trusts every reading of the clock, for tests. By default a clock step is accepted only after a minute, and
    /// stored times more than [`AHEAD_MAX`](crate::AHEAD_MAX) ahead of the clock make opening fail.
    #[must_use]
    pub fn check_clock(mut self, check_clock: bool) -> Self {
        self.check_clock = check_clock;
        self
    }

    /// Sets the observer.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Sets the deciding clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}
