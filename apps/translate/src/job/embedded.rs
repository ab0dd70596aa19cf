//! Jobs in a data folder or in memory: SQLite, as in the embedded store.
//!
//! A journal file of our own would need what a database has: many small atomic changes, a search for what is due, a cache by hash,
//! and readers beside the writer (`tollgate translate jobs`). The locks are those of the operating system, so a killed process
//! leaves none behind. Each change is one transaction.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::types::{FromSql, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql, Transaction, TransactionBehavior, params, params_from_iter};
use tokio::sync::oneshot;
use tollgate::{Span, Timestamp};

use super::sql::{self, Row, SqlStore, Update, Value, integer};
use super::{ChunkUpdate, Claim, ClaimOutcome, JobGuard, JobState, NewJob, no_such_job};
use crate::error::{Error, Result};

const FILE: &str = "jobs.sqlite";

/// Locked while the file is created or migrated.
const OPEN_LOCK: &str = "jobs.lock";

/// Other processes may hold the file for this long before a write fails.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// How many concurrent `is_active` probes in a row [`lock`](JobStore::lock) tolerates.
const PROBES_MAX: usize = 1_000;

/// Identifies the file by its header: "tolj" in ASCII.
const APPLICATION_ID: u32 = 0x746f_6c6a;

/// The version of the tables, stored in the header of the file.
const VERSION: u32 = 1;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS jobs (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, state TEXT NOT NULL, resume_at INTEGER, why TEXT,
        settings TEXT NOT NULL, document BLOB NOT NULL, created_at INTEGER NOT NULL, started_at INTEGER, ended_at INTEGER
    );
    CREATE TABLE IF NOT EXISTS chunks (
        job TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, state TEXT NOT NULL DEFAULT 'pending',
        due INTEGER NOT NULL DEFAULT 0, calls INTEGER NOT NULL DEFAULT 0, faults INTEGER NOT NULL DEFAULT 0,
        passing INTEGER NOT NULL DEFAULT 0, input INTEGER NOT NULL DEFAULT 0, output INTEGER NOT NULL DEFAULT 0,
        cost INTEGER NOT NULL DEFAULT 0, expected INTEGER NOT NULL DEFAULT 0, fence INTEGER NOT NULL DEFAULT 0,
        reason TEXT, texts TEXT, PRIMARY KEY (job, first, last)
    );
    CREATE INDEX IF NOT EXISTS by_state ON chunks (job, state, first);
    CREATE TABLE IF NOT EXISTS cache (hash BLOB PRIMARY KEY, texts TEXT NOT NULL, at INTEGER NOT NULL);";

type Command = Box<dyn FnOnce(&mut Connection) + Send>;

/// Jobs in SQLite.
#[derive(Debug)]
pub struct EmbeddedJobs {
    database: Database,
    folder: Option<PathBuf>,
}

#[derive(Debug)]
enum Database {
    /// On a thread of its own, since a commit waits for the disk.
    Folder(mpsc::Sender<Command>),
    /// On the caller's thread, since nothing blocks.
    Memory(Box<Mutex<Connection>>),
}

/// The lock file of a job; none for jobs in memory.
#[derive(Debug)]
struct Lock(#[expect(dead_code, reason = "locked until it is dropped")] Option<File>);

impl JobGuard for Lock {}

impl EmbeddedJobs {
    /// Opens the jobs of the data folder at `folder`, which is created if it is missing.
    ///
    /// # Errors
    /// If the folder is not writable, or the file belongs to another program or a newer version.
    pub fn open(folder: &Path) -> Result<Self> {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(folder).map_err(unusable(folder))?;
        let path = folder.join(FILE);
        open_private(&path).map_err(unusable(&path))?;
        let mut connection = Connection::open(&path).map_err(unusable(&path))?;
        // SQLite does not apply its timeout while it creates a journal, so concurrent openers take a lock.
        let lock =
            open_private(&folder.join(OPEN_LOCK)).and_then(|file| file.lock().map(|()| file));
        let _lock = lock.map_err(unusable(&path))?;
        prepare(&connection, &path)?;
        let (commands, queue) = mpsc::channel::<Command>();
        // The thread ends with the last sender.
        let work = move || queue.into_iter().for_each(|command| command(&mut connection));
        let spawned = thread::Builder::new().name("tollgate-jobs".to_owned()).spawn(work);
        spawned.map_err(unusable(&path))?;
        Ok(Self { database: Database::Folder(commands), folder: Some(folder.to_owned()) })
    }

    /// Returns jobs that end with this value, for a process that needs no journal, and for tests.
    ///
    /// # Errors
    /// If SQLite cannot be used at all.
    pub fn in_memory() -> Result<Self> {
        let memory = Path::new("memory");
        let connection = Connection::open_in_memory().map_err(unusable(memory))?;
        prepare(&connection, memory)?;
        Ok(Self { database: Database::Memory(Box::new(Mutex::new(connection))), folder: None })
    }

    async fn run<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let result = match &self.database {
            Database::Memory(connection) => {
                command(&mut connection.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Database::Folder(commands) => {
                let ended = || Error::store("the thread of the jobs has ended");
                let (sender, result) = oneshot::channel();
                // The caller may be gone by then.
                let command = |connection: &mut Connection| drop(sender.send(command(connection)));
                commands.send(Box::new(command)).map_err(|_| ended())?;
                result.await.map_err(|_| ended())?
            }
        };
        result.map_err(unusable(self.folder.as_deref().unwrap_or(Path::new("memory"))))
    }

    fn lock_path(&self, id: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("job-{id}.lock")))
    }
}

#[async_trait]
impl SqlStore for EmbeddedJobs {
    async fn query(&self, sql: &str, values: Vec<Value>) -> Result<Vec<Row>> {
        let sql = sql.to_owned();
        self.run(move |connection| query(connection, &sql, &values)).await
    }

    async fn create(&self, job: &NewJob, now: Timestamp) -> Result<bool> {
        let job = job.clone();
        self.run(move |connection| {
            let transaction = begin(connection)?;
            let added = transaction.execute(
                "INSERT INTO jobs (id, name, state, settings, document, created_at) VALUES (?1, ?2, 'planned', ?3, ?4, ?5)
                 ON CONFLICT DO NOTHING",
                params![job.id, job.name, job.settings, job.document, integer(now.as_micros())],
            )?;
            let sql = "INSERT INTO chunks (job, first, last) VALUES (?1, ?2, ?3)";
            for run in job.chunks.iter().filter(|_| added == 1) {
                transaction.prepare_cached(sql)?.execute(params![job.id, run.first, run.end])?;
            }
            transaction.commit()?;
            Ok(added == 1)
        })
        .await
    }

    /// Takes back the chunks of a process that is gone. Its pending calls count as paid, since their outcome is unknown.
    async fn lock(&self, id: &str) -> Result<Box<dyn JobGuard>> {
        let file = self.lock_path(id).map(|path| take_lock(&path, id)).transpose()?;
        let sql = "UPDATE chunks SET state = 'pending', cost = cost + expected, expected = 0
             WHERE job = ?1 AND state IN ('reserved', 'sent')";
        self.query(sql, vec![id.into()]).await?;
        Ok(Box::new(Lock(file)))
    }

    async fn is_active(&self, id: &str, _now: Timestamp) -> Result<bool> {
        let file = self.lock_path(id).and_then(|path| File::open(path).ok());
        Ok(file.is_some_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))))
    }

    fn lease(&self) -> Option<Span> {
        None
    }

    async fn claim(&self, id: &str, _worker: &str, now: Timestamp) -> Result<ClaimOutcome> {
        let values = [Value::from(id), now.into()];
        let [job, chunk, sums] = self.run(move |connection| claim(connection, &values)).await?;
        let state = job.first().ok_or_else(|| no_such_job(id))?.job_state(0)?;
        if !matches!(state, JobState::Planned | JobState::Running) {
            return Ok(ClaimOutcome::Halted(state));
        }
        let Some(sums) = sums.first() else { return Ok(ClaimOutcome::Nothing) };
        if let Some(row) = chunk.first()
            && let Some(claim) = row.claim(0, id, sums.sum(0), sums.sum(1))?
        {
            return Ok(ClaimOutcome::Chunk(claim));
        }
        // Only this process works on the job, so it knows when one of its own chunks is finished.
        let end_of_work = (0 < sums.sum(3)).then_some(Timestamp::MAX.as_micros());
        Ok(ClaimOutcome::later(sums.number(2).or(end_of_work)))
    }

    async fn renew(&self, _claim: &Claim, _now: Timestamp) -> Result<()> {
        Ok(())
    }

    async fn update(&self, claim: &Claim, update: &ChunkUpdate) -> Result<bool> {
        let (claim, update) = (claim.clone(), update.clone());
        self.run(move |connection| update_chunk(connection, &claim, &update)).await
    }

    async fn retry_failed(&self, id: &str) -> Result<u64> {
        let values = [Value::from(id)];
        self.run(move |connection| {
            let transaction = begin(connection)?;
            let failed = query(&transaction, sql::RETRY, &values)?;
            if !failed.is_empty() {
                query(&transaction, sql::REOPEN, &values)?;
            }
            transaction.commit()?;
            Ok(failed.len() as u64)
        })
        .await
    }
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Self::Integer(number) => number.to_sql(),
            Self::Text(text) => text.to_sql(),
            Self::Bytes(bytes) => bytes.to_sql(),
        }
    }
}

impl FromSql for Value {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(match value {
            ValueRef::Integer(number) => Self::Integer(Some(number)),
            ValueRef::Blob(bytes) => Self::Bytes(bytes.to_vec()),
            other => Self::Text(FromSql::column_result(other)?),
        })
    }
}

/// Runs a statement that is written for PostgreSQL or for SQLite.
fn query(connection: &Connection, sql: &str, values: &[Value]) -> rusqlite::Result<Vec<Row>> {
    let sql = sql.replace("@.translate_", "").replace("::bigint", "").replace('$', "?");
    let mut statement = connection.prepare_cached(&sql)?;
    let columns = statement.column_count();
    let rows = statement.query_map(params_from_iter(values), |row| {
        let values: rusqlite::Result<_> = (0..columns).map(|column| row.get(column)).collect();
        values.map(Row)
    })?;
    rows.collect()
}

/// Claims the next chunk of the job in `values` that is due at the time in `values`. Returns the state of the job, the chunk, and
/// the cost, the reserved cost, the next retry and the number of claimed chunks of the job.
fn claim(connection: &mut Connection, values: &[Value; 2]) -> rusqlite::Result<[Vec<Row>; 3]> {
    let transaction = begin(connection)?;
    let job = "SELECT state, resume_at, why FROM jobs WHERE id = ?1";
    let chunk = "UPDATE chunks SET state = 'reserved', fence = fence + 1 WHERE rowid = (
             SELECT rowid FROM chunks WHERE job = ?1 AND state IN ('pending', 'again') AND due <= ?2
               AND (SELECT state FROM jobs WHERE id = ?1) IN ('planned', 'running')
             ORDER BY faults, first LIMIT 1
         ) RETURNING first, last, calls, faults, passing, fence, texts";
    let sums = "SELECT coalesce(sum(cost), 0), coalesce(sum(expected), 0), min(due) FILTER (WHERE state = 'again'),
             count(*) FILTER (WHERE state IN ('reserved', 'sent')) FROM chunks WHERE job = ?1";
    let id = &values[..1];
    let rows = [
        query(&transaction, job, id)?,
        query(&transaction, chunk, values)?,
        query(&transaction, sums, id)?,
    ];
    transaction.commit()?;
    Ok(rows)
}

fn update_chunk(
    connection: &mut Connection,
    claim: &Claim,
    update: &ChunkUpdate,
) -> rusqlite::Result<bool> {
    let transaction = begin(connection)?;
    let Update { set, condition, values } = sql::update(claim, update);
    let budget = match update {
        ChunkUpdate::Sent { most: Some(most), .. } => format!(
            "AND (SELECT sum(cost + expected) FROM chunks WHERE job = ?1) + ?5 <= {}",
            integer(*most)
        ),
        _ => String::new(),
    };
    let sql = format!(
        "UPDATE chunks SET {set} WHERE job = $1 AND first = $2 AND last = $3 AND {condition} {budget} RETURNING first"
    );
    let is_changed = !query(&transaction, &sql, &values)?.is_empty();
    if let ChunkUpdate::Split { parts, .. } = update
        && is_changed
    {
        let sql = "INSERT INTO chunks (job, first, last, state, texts, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        for part in parts {
            let (state, texts) = (part.state().word(), part.drafts.to_json());
            let values =
                params![claim.job, part.run.first, part.run.end, state, texts, part.failed];
            transaction.execute(sql, values)?;
        }
    }
    transaction.commit()?;
    Ok(is_changed)
}

/// Begins a transaction that is the only writer from its start.
fn begin(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

/// Creates the tables, or refuses a file that is not ours.
fn prepare(connection: &Connection, path: &Path) -> Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT).map_err(unusable(path))?;
    let number =
        |sql| connection.query_row(sql, [], |row| row.get::<_, u32>(0)).map_err(unusable(path));
    let application = number("PRAGMA application_id")?;
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    if application != APPLICATION_ID && (application, tables) != (0, 0) {
        return Err(Error::invalid("it is a database of another program; move it away"));
    }
    let version = number("PRAGMA user_version")?;
    if VERSION < version {
        return Err(Error::invalid(format!(
            "it is of version {version}, and this program knows {VERSION}; use a newer program"
        )));
    }
    // A journal that a power cut could shorten would have chunks paid twice.
    let sql = format!(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA application_id = {APPLICATION_ID};
         PRAGMA user_version = {VERSION}; {TABLES}"
    );
    connection.execute_batch(&sql).map_err(unusable(path))
}

/// Opens a file that only its owner may read, since it contains whole documents.
fn open_private(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn unusable<E: std::fmt::Display>(path: &Path) -> impl Fn(E) -> Error {
    move |why| Error::store(format!("the jobs in {} cannot be used: {why}", path.display()))
}

/// Locks a job for this process.
fn take_lock(path: &Path, id: &str) -> Result<File> {
    let file = open_private(path).map_err(unusable(path))?;
    let mut locked = file.try_lock();
    // A probe of another process holds the lock, shared, for a moment.
    for _ in 0..PROBES_MAX {
        match &locked {
            Err(TryLockError::WouldBlock) if file.try_lock_shared().is_ok() => {
                drop(file.unlock());
                thread::yield_now();
                locked = file.try_lock();
            }
            _ => break,
        }
    }
    match locked {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::store(format!(
            "another process works on the job {id:?} in {}; wait for it, or stop it first",
            path.parent().unwrap_or(path).display()
        ))),
        Err(TryLockError::Error(error)) => Err(unusable(path)(error)),
    }
}
