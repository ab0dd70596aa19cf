//! Jobs in a data folder, or in memory: SQLite, as under the embedded store.
//!
//! A journal file of our own would need what a database has already: many small changes that are whole or not there, a
//! search for what is due, a cache by hash, and readers beside the writer (`tollgate translate jobs`). The locks are
//! the operating system's and go with the process, so a killed one leaves none behind.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::oneshot;
use tollgate::{BoxFuture, Span, Timestamp};

use super::lock::{self, Lock};
use super::sqlite::{self, Done, Fault};
use super::{ChunkRecord, Claim, Counts, Hold, Job, JobState, JobStore, NewJob, Next, Step};
use crate::error::Error;

const FILE: &str = "jobs.sqlite";

/// Held while the file is made or looked at.
const OPENING: &str = "jobs.lock";

/// Other processes may hold the file for this long before a write fails.
const BUSY_WAIT: Duration = Duration::from_secs(30);

type Act = Box<dyn FnOnce(&mut Connection) + Send>;

/// Jobs in SQLite.
#[derive(Debug)]
pub struct EmbeddedJobs {
    desk: Desk,
    folder: Option<PathBuf>,
}

/// Who talks to the database.
#[derive(Debug)]
enum Desk {
    /// A thread of its own, since a commit waits for the disk.
    Thread(mpsc::Sender<Act>),
    /// The caller, since nothing is waited for in memory.
    Here(Box<Mutex<Connection>>),
}

impl EmbeddedJobs {
    /// Opens the jobs of the data folder at `folder`, which is made if there is none.
    ///
    /// # Errors
    /// If it cannot be made or written, or the file is another program's or a newer version's.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        make(folder)?;
        let path = folder.join(FILE);
        private(&path).map_err(|error| unusable(&path, &error.to_string()))?;
        let mut connection =
            Connection::open(&path).map_err(|error| unusable(&path, &error.to_string()))?;
        // SQLite does not wait for others when it begins a journal, whatever its timeout, so those who open at once take turns.
        let turn = private(&folder.join(OPENING)).and_then(|file| file.lock().map(|()| file));
        let _turn = turn.map_err(|error| unusable(&path, &error.to_string()))?;
        prepare(&connection).map_err(|fault| said(fault, &path))?;
        let (acts, next) = mpsc::channel::<Act>();
        let work = move || {
            // It ends with the last sender.
            for act in next {
                act(&mut connection);
            }
        };
        let spawned = thread::Builder::new().name("tollgate-jobs".to_owned()).spawn(work);
        spawned.map_err(|error| unusable(&path, &error.to_string()))?;
        Ok(Self { desk: Desk::Thread(acts), folder: Some(folder.to_owned()) })
    }

    /// Jobs that end with this value, for a process that needs no journal, and for tests on a clock of their own.
    ///
    /// # Errors
    /// If SQLite cannot be used at all.
    pub fn in_memory() -> Result<Self, Error> {
        let memory = Path::new("memory");
        let connection =
            Connection::open_in_memory().map_err(|error| unusable(memory, &error.to_string()))?;
        prepare(&connection).map_err(|fault| said(fault, memory))?;
        Ok(Self { desk: Desk::Here(Box::new(Mutex::new(connection))), folder: None })
    }

    async fn run<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Connection) -> Done<T> + Send + 'static,
    ) -> Result<T, Error> {
        let path = self.folder.as_deref().unwrap_or(Path::new("memory"));
        let answer = match &self.desk {
            Desk::Here(connection) => {
                act(&mut connection.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Desk::Thread(acts) => {
                let ended = || Error::store("the thread of the jobs has ended");
                let (done, answer) = oneshot::channel();
                let act = Box::new(move |connection: &mut Connection| {
                    // Whoever asked may have gone.
                    let _ = done.send(act(connection));
                });
                acts.send(act).map_err(|_| ended())?;
                answer.await.map_err(|_| ended())?
            }
        };
        answer.map_err(|fault| said(fault, path))
    }
}

fn make(folder: &Path) -> Result<(), Error> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder).map_err(|error| unusable(folder, &error.to_string()))
}

/// Opens a file that only its owner may read: it has whole documents in it.
pub(super) fn private(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn prepare(connection: &Connection) -> Done<()> {
    connection.busy_timeout(BUSY_WAIT)?;
    let number = |sql| connection.query_row(sql, [], |row| row.get::<_, u32>(0));
    let application = number("PRAGMA application_id")?;
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    if application != sqlite::APPLICATION_ID && (application, tables) != (0, 0) {
        return Err(Error::invalid("it is a database of another program; move it away").into());
    }
    let version = number("PRAGMA user_version")?;
    if sqlite::VERSION < version {
        return Err(Error::invalid(format!(
            "it is of version {version}, and this program knows {}; use a newer program",
            sqlite::VERSION
        ))
        .into());
    }
    // A journal that a power cut could shorten would have chunks paid twice.
    connection.execute_batch(&format!(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA application_id = {}; PRAGMA user_version = {}; {}",
        sqlite::APPLICATION_ID,
        sqlite::VERSION,
        sqlite::TABLES
    ))?;
    Ok(())
}

pub(super) fn unusable(path: &Path, why: &str) -> Error {
    Error::store(format!("the jobs in {} cannot be used: {why}", path.display()))
}

fn said(fault: Fault, path: &Path) -> Error {
    match fault {
        Fault::Sql(error) => unusable(path, &error.to_string()),
        Fault::Ours(error) => error,
    }
}

impl JobStore for EmbeddedJobs {
    fn create<'a>(&'a self, job: &'a NewJob, now: Timestamp) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            job.check()?;
            let job = job.clone();
            self.run(move |connection| sqlite::create(connection, &job, now)).await
        })
    }

    fn job<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Job>, Error>> {
        let id = id.to_owned();
        Box::pin(self.run(move |connection| sqlite::job(connection, &id)))
    }

    fn jobs(&self) -> BoxFuture<'_, Result<Vec<Job>, Error>> {
        Box::pin(self.run(|connection| sqlite::jobs(connection)))
    }

    fn document<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Error>> {
        let id = id.to_owned();
        Box::pin(self.run(move |connection| sqlite::document(connection, &id)))
    }

    fn set_state<'a>(
        &'a self,
        id: &'a str,
        state: &'a JobState,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        let (id, state) = (id.to_owned(), state.clone());
        Box::pin(self.run(move |connection| sqlite::set_state(connection, &id, &state, now)))
    }

    fn set_settings<'a>(
        &'a self,
        id: &'a str,
        settings: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        let (id, settings) = (id.to_owned(), settings.to_owned());
        Box::pin(self.run(move |connection| sqlite::set_settings(connection, &id, &settings)))
    }

    fn enter<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Box<dyn Hold>, Error>> {
        Box::pin(async move {
            let file = match &self.folder {
                Some(folder) => Some(lock::take(folder, id)?),
                None => None,
            };
            let id = id.to_owned();
            self.run(move |connection| sqlite::take_back(connection, &id)).await?;
            Ok(Box::new(Lock(file)) as Box<dyn Hold>)
        })
    }

    fn is_worked_on<'a>(
        &'a self,
        id: &'a str,
        _now: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        let held = self.folder.as_deref().is_some_and(|folder| lock::is_held(folder, id));
        Box::pin(std::future::ready(Ok(held)))
    }

    fn lease(&self) -> Option<Span> {
        None
    }

    fn claim<'a>(
        &'a self,
        id: &'a str,
        _worker: &'a str,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Next, Error>> {
        let id = id.to_owned();
        Box::pin(self.run(move |connection| sqlite::claim(connection, &id, now)))
    }

    fn renew<'a>(&'a self, _claim: &'a Claim, _now: Timestamp) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn record<'a>(
        &'a self,
        claim: &'a Claim,
        step: &'a Step,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        let (claim, step) = (claim.clone(), step.clone());
        Box::pin(self.run(move |connection| sqlite::record(connection, &claim, &step)))
    }

    fn counts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Counts, Error>> {
        let id = id.to_owned();
        Box::pin(self.run(move |connection| sqlite::counts(connection, &id)))
    }

    fn chunks<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<ChunkRecord>, Error>> {
        let id = id.to_owned();
        Box::pin(self.run(move |connection| sqlite::chunks(connection, &id)))
    }

    fn retry_failed<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<u64, Error>> {
        let id = id.to_owned();
        Box::pin(self.run(move |connection| sqlite::retry_failed(connection, &id)))
    }

    fn recall<'a>(
        &'a self,
        hash: &'a [u8; 32],
    ) -> BoxFuture<'a, Result<Option<Vec<String>>, Error>> {
        let hash = *hash;
        Box::pin(self.run(move |connection| sqlite::recall(connection, &hash)))
    }

    fn remember<'a>(
        &'a self,
        hash: &'a [u8; 32],
        texts: &'a [String],
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), Error>> {
        let (hash, texts) = (*hash, texts.to_vec());
        Box::pin(self.run(move |connection| sqlite::remember(connection, &hash, &texts, now)))
    }
}
