//! The store: a data folder that is open.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tollgate::{BoxFuture, Clock, Error, ErrorKind, Operation, Outcome, Store, Timestamp};

use crate::cache::ENTRIES_CACHED_MAX;
use crate::database::{self, Writes};
use crate::folder;
use crate::keeper::Walk;
use crate::options::{Holder, Options};
use crate::shared::{Shared, Stats};
use crate::sync::lock;
use crate::tally::Tally;
use crate::time::{AHEAD_MAX, Time};
use crate::writer;

/// Entries on one machine's disk. Behind [`Atomic`](tollgate::Atomic) it is a gate.
///
/// One process at a time has the folder open; see [`Embedded::open`]. Decisions are taken in memory in the caller's
/// thread, and one thread commits what has changed, many decisions per sync. Needs no runtime of its own.
///
/// A caller that drops the future of an answer may have been admitted all the same: give the ask an id and ask again.
pub struct Embedded {
    pub(crate) shared: Arc<Shared>,
    pub(crate) permit_key: RwLock<[u8; 32]>,
    /// See [`EntryStore::disputed_time`](tollgate::entries::EntryStore::disputed_time).
    pub(crate) disputed_time: Option<Timestamp>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Embedded {
    /// Opens the data folder at `path`, which is made if there is none. Blocks while other commands have it open, at
    /// most as long as [`Options::lock_wait`].
    ///
    /// # Errors
    /// - [`Contended`](tollgate::ErrorKind::Contended) if a broker has the folder open (at once, naming its URL), or if
    ///   other commands have it for longer than `lock_wait`.
    /// - [`Corrupt`](tollgate::ErrorKind::Corrupt) if a file is damaged or missing, or if commits are missing. Nothing is
    ///   made anew.
    /// - [`Invalid`](tollgate::ErrorKind::Invalid) if the database is another program's or of a newer format.
    /// - [`Unavailable`](tollgate::ErrorKind::Unavailable) if the folder cannot be made, read or written, or if its
    ///   entries are more than [`AHEAD_MAX`](crate::AHEAD_MAX) ahead of the clock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::{Ask, Atomic, Gate, Limit, Policy, RollingWindow, Span};
    /// use tollgate_embedded::{Embedded, Options};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("tollgate-data");
    /// let day = RollingWindow::new(5, Span::from_hours(24));
    /// let policy = Policy::new("video-requests", [Limit::new("daily", "requests", day)])?;
    /// let ask = Ask::new(&policy, "u1");
    ///
    /// let gate = Atomic::new(Embedded::open(&path, Options::new())?);
    /// assert!(gate.acquire(&ask).await?.is_admitted());
    /// gate.store().close().await?;
    ///
    /// let gate = Atomic::new(Embedded::open(&path, Options::new())?);
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

    /// As [`open_with`](Self::open_with); for a repair, entries may be ahead of the clock.
    pub(crate) fn open_with_time(
        path: &Path,
        options: Options,
        entries_max: usize,
        is_repair: bool,
    ) -> Result<Self, Error> {
        let Options { durability, holder, lock_wait, clock, check_clock, observer } = options;
        let turn = folder::enter(path, &holder, lock_wait)?;
        let (connection, permit_key) = database::ensure(path)?;
        let tally = Tally::open(path, &connection)?;
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
        let shared = Shared::new(path, time, observer, durability, entries_max);
        let shared = Arc::new(shared);
        let writer = writer::spawn(Arc::clone(&shared), connection, tally, turn, &holder)?;
        let (permit_key, writer) = (RwLock::new(permit_key), Mutex::new(Some(writer)));
        Ok(Self { shared, permit_key, disputed_time, writer })
    }

    /// Whether there is a store at `path`, even a damaged one. Nothing is made.
    ///
    /// # Errors
    /// [`Unavailable`](tollgate::ErrorKind::Unavailable) if the folder cannot be looked into.
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

    /// The URL of the running broker that holds the data folder at `path`; nothing if no broker does.
    #[must_use]
    pub fn served_at(path: &Path) -> Option<String> {
        folder::served_at(path).filter(|url| !url.is_empty())
    }

    /// The key that authenticates permits of this folder when they cross a wire; made at random with the folder.
    #[must_use]
    pub fn permit_key(&self) -> [u8; 32] {
        *self.permit_key.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the store has done since it was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Removes every entry that equals an absent one and was not changed for [`IDLE_MAX`](crate::IDLE_MAX), and says
    /// how many there were. The store does this by itself, a little at a time; call it to give room back sooner.
    ///
    /// # Errors
    /// [`Unavailable`](tollgate::ErrorKind::Unavailable) if the store is closed or cannot write.
    pub async fn clean_up(&self) -> Result<u64, Error> {
        let mut walk = Walk::default();
        loop {
            self.shared.pipeline.check_open()?;
            walk.step(&self.shared, self.shared.time.now())?;
            if 0 < walk.batch {
                self.shared.pipeline.hurry();
                self.shared.pipeline.durable_through(walk.batch).await?;
            }
            if walk.is_over() {
                return Ok(walk.removed);
            }
        }
    }

    /// Writes what is not written yet and lets the folder go. Operations afterwards answer
    /// [`Unavailable`](tollgate::ErrorKind::Unavailable). Closing twice is closing once.
    ///
    /// # Errors
    /// Why something could not be written, now or before.
    pub async fn close(&self) -> Result<(), Error> {
        self.shared.pipeline.close();
        self.shared.pipeline.finished().await
    }
}

impl Embedded {
    /// Why the store has stopped, if something could not be written or read.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.shared.pipeline.failure()
    }

    /// The same store, if its file takes writes.
    pub(crate) fn written(self) -> Result<Self, Error> {
        let path = &self.shared.path;
        let connection = database::connect(path)?;
        let rewritten = database::cursor(&connection)
            .and_then(|cursor| database::set_cursor(&connection, &cursor));
        rewritten.map_err(|error| database::fault("write", path, error))?;
        Ok(self)
    }

    /// Waits until the writer of a store that stopped has let the folder go.
    pub(crate) fn join(&self) {
        let writer = lock(&self.writer).take();
        if let Some(writer) = writer {
            let _ = writer.join();
        }
    }
}

/// The time of the store in `folder`.
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
    // A folder of an older version has kept no reading.
    let seems_ahead = saved.is_none_or(|saved| wall + AHEAD_MAX < saved.good.wall);
    let latest = if seems_ahead { database::latest(connection).map_err(fault)? } else { wall };
    if wall + AHEAD_MAX < latest {
        return Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "{} has entries of {latest}, {} ahead of this machine's clock, which shows {wall}. Check the clock first \
                 (`date -u`, NTP): if it is behind, set it, and nothing is lost. Only if it is right, a clock that was ahead \
                 wrote these entries; `tollgate repair` lists and mends them",
                path.display(),
                latest.since(wall).for_people(),
            ),
        ));
    }
    let time = Time::new(clock, true, saved);
    // Commands that change nothing else must not forget since when the clock is ahead.
    if let (_, true) = time.check()
        && let Some(saved) = time.saved()
    {
        let fault = |error| database::fault("write", &path, error);
        let mut writes = Writes::new(connection).map_err(fault)?;
        writes.clock(saved).map_err(fault)?;
    }
    Ok(time)
}

impl Store for Embedded {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        Box::pin(async move {
            let now = self.shared.time.now();
            let answer = self.shared.decide(&operation, now)?;
            if 0 < answer.batch {
                self.shared.pipeline.durable_enough(answer.batch, now).await?;
            }
            Ok(answer.outcome)
        })
    }
}

impl Drop for Embedded {
    /// Writes what is not written yet, and waits for it: at most a few commits. [`Embedded::close`] does the same
    /// without blocking, and reports errors.
    fn drop(&mut self) {
        self.shared.pipeline.close();
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
