//! How a data folder is opened.

use std::sync::Arc;

use tollgate::{Clock, Observer, Span, SystemClock};

/// How long [`Embedded::open`](crate::Embedded::open) waits for its turn unless told otherwise.
pub const LOCK_WAIT_DEFAULT: Span = Span::from_secs(30);

/// What an answer promises about a crash of the process or the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// The answer waits until its change is on the disk, so a crash forgets nothing that was answered.
    #[default]
    Strict,
    /// The answer does not wait. A crash forgets at most what was admitted within
    /// [`RELAXED_LOSS_MAX`](crate::RELAXED_LOSS_MAX); if the disk is slower than that, answers wait for it.
    Relaxed,
}

/// Who holds the folder, which is what another process is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub enum Holder {
    /// A command, or any program that others may wait for.
    #[default]
    Command,
    /// A broker that runs until it is stopped, so others are sent to it and do not wait.
    Server {
        /// Where it answers.
        url: String,
    },
}

/// How a data folder is opened: strict, as a command, waiting up to 30 s for its turn, on the machine's clock, unless
/// told otherwise.
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
    /// What an answer promises about a crash.
    pub durability: Durability,
    /// Who holds the folder.
    pub holder: Holder,
    /// How long to wait while other commands hold the folder.
    pub lock_wait: Span,
    /// The store's time.
    pub clock: Arc<dyn Clock>,
    /// Whether steps of the clock are noticed; see [`check_clock`](Self::check_clock).
    pub check_clock: bool,
    /// Hears of entries from the future that were rewritten ([`Event::Mended`](tollgate::Event::Mended)).
    pub observer: Option<Arc<dyn Observer>>,
}

impl Options {
    /// Strict, a command, 30 s, the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self {
            durability: Durability::Strict,
            holder: Holder::Command,
            lock_wait: LOCK_WAIT_DEFAULT,
            clock: Arc::new(SystemClock),
            check_clock: true,
            observer: None,
        }
    }

    /// The same with another durability.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// The same with another holder.
    #[must_use]
    pub fn holder(mut self, holder: Holder) -> Self {
        self.holder = holder;
        self
    }

    /// The same, waiting up to `lock_wait` while other commands hold the folder.
    #[must_use]
    pub fn lock_wait(mut self, lock_wait: Span) -> Self {
        self.lock_wait = lock_wait;
        self
    }

    /// The same, but with `false` every reading of the clock is taken as it is, for tests that set it to any time. By
    /// default a clock that was set counts only after a minute, and stored times that are more than
    /// [`AHEAD_MAX`](crate::AHEAD_MAX) ahead of it keep the folder from being opened.
    #[must_use]
    pub fn check_clock(mut self, check_clock: bool) -> Self {
        self.check_clock = check_clock;
        self
    }

    /// The same with an observer.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// The same on another clock.
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
