//! The store: an open data folder.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::internal::timeout_at;
use tollgate::{Clock, Error, ErrorKind, Gate, Timestamp};

use crate::cache::{Cache, ENTRIES_CACHED_MAX};
use crate::commit_counter::CommitCounter;
use crate::database::{self, Writes};
use crate::folder;
use crate::keys::Keys;
use crate::maintenance::{IDLE_MAX, Sweep};
use crate::options::{Holder, Options};
use crate::shared::{Shared, Stats};
use crate::sync::lock;
use crate::time::{AHEAD_MAX, Time};
use crate::writer::{self, Files};

/// A durable gate on one machine's disk.
///
/// One process at a time has the folder open; see [`Embedded::open`]. The caller's thread decides in memory, and a writer
/// thread commits changes, many decisions per sync. Needs no async runtime.
///
/// An ask whose future is dropped may have been admitted; repeat it with the same id.
pub struct Embedded {
    pub(crate) shared: Arc<Shared>,
    pub(crate) permit_key: RwLock<[u8; 32]>,
    /// See [`EntryStore::disputed_time`](tollgate::entries::EntryStore::disputed_time).
    pub(crate) disputed_time: Option<Timestamp>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Embedded {
    /// Opens the data folder at `path`, and creates it if it is missing. Blocks while other commands have it open, at most
    /// for [`Options::lock_wait`].
    ///
    /// # Errors
    /// - [`Contended`](tollgate::ErrorKind::Contended) if a broker has the folder open (at once, naming its URL), or if
    ///   other commands have it for longer than `lock_wait`.
    /// - [`Corrupt`](tollgate::ErrorKind::Corrupt) if a file is damaged or missing, or if commits are missing.
    /// - [`Invalid`](tollgate::ErrorKind::Invalid) if the database is another program's or of a newer format.
    /// - [`Unavailable`](tollgate::ErrorKind::Unavailable) if the folder cannot be created, read or written, or if its
    ///   entries are more than [`AHEAD_MAX`](crate::AHEAD_MAX) ahead of the clock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::{Ask, GateExt, Limit, Policy, RollingWindow, Span, Timestamp};
    /// use tollgate_embedded::{Embedded, Options};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("tollgate-data");
    /// let day = RollingWindow::new(5, Span::from_hours(24));
    /// let policy = Policy::new("video-requests", [Limit::new("daily", "requests", day)])?;
    /// let ask = Ask::new(&policy, "u1");
    ///
    /// let gate = Embedded::open(&path, Options::new())?;
    /// assert!(gate.acquire(&ask).await?.is_admitted());
    /// gate.shutdown(Timestamp::MAX).await?;
    ///
    /// let gate = Embedded::open(&path, Options::new())?;
    /// assert_eq!(gate.standing(&policy, "u1").await?[0].used, 1);
    /// # Ok(()) }
    /// ```
    pub fn open(path: &Path, options: Options) -> Result<Self, Error> {
        Self::open_with(path, options, ENTRIES_CACHED_MAX)
    }

    /// As [`open`](Self::open), with room for `entries_max` entries in memory.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(path: &Path, options: Options, entries_max: usize) -> Result<Self, Error> {
        Self::open_with_time(path, options, entries_max, false)
    }

    /// For a repair, entries may be ahead of the clock.
    pub(crate) fn open_with_time(
        path: &Path,
        options: Options,
        entries_max: usize,
        is_repair: bool,
    ) -> Result<Self, Error> {
        let Options {
            durability,
            holder,
            lock_wait,
            keys_max,
            share_per_policy,
            clock,
            check_clock,
            observer,
        } = options;
        let lock = folder::lock(path, &holder, lock_wait.into())?;
        let (connection, permit_key) = database::ensure(path)?;
        let counter = CommitCounter::open(path, &connection)?;
        if matches!(holder, Holder::Server { .. }) {
            database::quick_check(&connection, path)?;
        }
        let mut disputed_time = None;
        let time = if is_repair {
            let fault = |error| database::fault("read", &database::path(path), error);
            let saved = database::saved_clock(&connection).map_err(fault)?;
            let earliest = saved.map(|saved| saved.earliest(&*clock));
            disputed_time = earliest.filter(|earliest| clock.now() + AHEAD_MAX < *earliest);
            Time::new(clock, true, None)
        } else {
            time_of(path, &connection, clock, check_clock)?
        };
        let path = database::path(path);
        let stored = database::key_counts(&connection)
            .map_err(|error| database::fault("read", &path, error))?;
        let keys = Keys::new(stored.counts.clone(), keys_max, share_per_policy);
        let shared = Shared::new(path, time, observer, durability, Cache::new(entries_max), keys);
        let shared = Arc::new(shared);
        let files = Files { connection, counter, stored, lock };
        let writer = writer::spawn(Arc::clone(&shared), files, &holder)?;
        let (permit_key, writer) = (RwLock::new(permit_key), Mutex::new(Some(writer)));
        Ok(Self { shared, permit_key, disputed_time, writer })
    }

    /// Returns whether there is a store at `path`, even a damaged one.
    ///
    /// # Errors
    /// [`Unavailable`](tollgate::ErrorKind::Unavailable) if the folder cannot be read.
    ///
    /// ```
    /// use tollgate_embedded::{Embedded, Options};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("tollgate-data");
    /// assert!(!Embedded::exists(&path)?);
    /// drop(Embedded::open(&path, Options::new())?);
    /// assert!(Embedded::exists(&path)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn exists(path: &Path) -> Result<bool, Error> {
        database::is_there(path)
    }

    /// Returns the URL of the running broker that holds the data folder at `path`.
    #[must_use]
    pub fn served_at(path: &Path) -> Option<String> {
        folder::served_at(path).filter(|url| !url.is_empty())
    }

    /// Returns whether another process waits for the data folder at `path`, so that a long-lived holder can take turns.
    #[must_use]
    pub fn is_awaited(path: &Path) -> bool {
        folder::is_awaited(path)
    }

    /// Returns the random key that authenticates permits of this folder on the wire.
    #[must_use]
    pub fn permit_key(&self) -> [u8; 32] {
        *self.permit_key.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns counters since the store was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Removes every entry that equals an absent one and did not change for [`IDLE_MAX`](crate::IDLE_MAX), and returns how
    /// many there were. The store does this in the background; call it to free space sooner.
    ///
    /// # Errors
    /// [`Unavailable`](tollgate::ErrorKind::Unavailable) if the store is closed or cannot write.
    pub async fn clean_up(&self) -> Result<u64, Error> {
        let mut sweep = Sweep::default();
        loop {
            self.shared.group_commit.check_open()?;
            sweep.step(&self.shared, self.shared.time.now(), IDLE_MAX)?;
            if 0 < sweep.batch {
                self.shared.group_commit.hurry();
                self.shared.group_commit.durable_through(sweep.batch).await?;
            }
            if sweep.is_over() {
                return Ok(sweep.removed);
            }
        }
    }

    /// Flushes pending changes and unlocks the folder. Later operations fail with
    /// [`Unavailable`](tollgate::ErrorKind::Unavailable). Idempotent.
    ///
    /// # Errors
    /// - The write error, of this flush or an earlier one.
    /// - [`TimedOut`](tollgate::ErrorKind::TimedOut) if the changes are not on disk by `deadline`. The writer goes on.
    pub async fn shutdown(&self, deadline: Timestamp) -> Result<(), Error> {
        let shared = &self.shared;
        shared.group_commit.close();
        let finished = shared.group_commit.finished();
        timeout_at(shared.time.clock(), deadline, finished).await.unwrap_or_else(|| {
            let text = format!("{} was not written in time; it still is", shared.path.display());
            Err(Error::new(ErrorKind::TimedOut, text))
        })
    }
}

impl Embedded {
    /// Returns why the store has stopped after a failed read or write.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.shared.group_commit.failure()
    }

    /// Returns the store if its file is writable and its disk has room for the log of further commits.
    pub(crate) fn written(self) -> Result<Self, Error> {
        let path = &self.shared.path;
        folder::ensure_room(path.parent().unwrap_or(path))?;
        let connection = database::open(path)?;
        let rewritten = database::cursor(&connection)
            .and_then(|cursor| database::set_cursor(&connection, &cursor));
        rewritten.map_err(|error| database::fault("write", path, error))?;
        Ok(self)
    }

    /// Waits for the writer of a stopped store to unlock the folder.
    pub(crate) fn join(&self) {
        let writer = lock(&self.writer).take();
        if let Some(writer) = writer {
            let _ = writer.join();
        }
    }
}

/// Opens the clock of the store in `folder`.
fn time_of(
    folder: &Path,
    connection: &Connection,
    clock: Arc<dyn Clock>,
    is_checked: bool,
) -> Result<Time, Error> {
    let path = database::path(folder);
    let fault = |error| database::fault("read", &path, error);
    let wall = clock.now();
    let saved = database::saved_clock(connection).map_err(fault)?;
    if !is_checked {
        return Ok(Time::new(clock, false, saved));
    }
    // A folder of an older version has no reading.
    let seems_ahead = saved.is_none_or(|saved| wall + AHEAD_MAX < saved.good.wall);
    let latest = if seems_ahead { database::latest(connection).map_err(fault)? } else { wall };
    if wall + AHEAD_MAX < latest {
        return Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "{} has entries of {latest}, {} ahead of this machine's clock, which shows {wall}. Check the clock first \
                 (`date -u`, NTP): if it is behind, set it, and nothing is lost. Only if it is right, a clock that was ahead \
                 wrote these entries; `tollgate repair` lists and repairs them",
                path.display(),
                latest.since(wall).humanize(),
            ),
        ));
    }
    let time = Time::new(clock, true, saved);
    // A command that changes nothing else must still save since when the clock is ahead.
    if let (_, true) = time.check()
        && let Some(saved) = time.saved()
    {
        let fault = |error| database::fault("write", &path, error);
        let mut writes = Writes::new(connection).map_err(fault)?;
        writes.clock(saved).map_err(fault)?;
    }
    Ok(time)
}

impl Gate for Embedded {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            let now = self.shared.time.now();
            let answer = self.shared.decide(&operation, now)?;
            if 0 < answer.batch {
                self.shared.group_commit.durable_enough(answer.batch, now).await?;
            }
            Ok(answer.outcome)
        })
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

impl Drop for Embedded {
    /// Flushes pending changes and blocks for at most a few commits. [`Embedded::shutdown`] does not block, and reports errors.
    fn drop(&mut self) {
        self.shared.group_commit.close();
        self.join();
    }
}

impl fmt::Debug for Embedded {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded")
            .field("path", &self.shared.path)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
