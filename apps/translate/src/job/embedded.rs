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
use rusqlite::{
    Connection, OptionalExtension, Row, ToSql, Transaction, TransactionBehavior, params,
};
use tokio::sync::oneshot;
use tollgate::{Span, Timestamp};

use super::sql::{self, CHUNK, JOB, Update, Value, integer, natural};
use super::{
    ChunkRecord, ChunkUpdate, Claim, ClaimOutcome, Counts, Drafts, Job, JobGuard, JobState,
    JobStore, NewJob, SegmentRange, no_such_job, parse_texts,
};
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

/// The error of a statement: from the database, or about a stored value.
#[derive(Debug)]
enum Fault {
    Sql(rusqlite::Error),
    Stored(Error),
}

impl Fault {
    fn at(self, path: &Path) -> Error {
        match self {
            Self::Sql(error) => unusable(path)(error),
            Self::Stored(error) => error,
        }
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Stored(error)
    }
}

type SqlResult<T> = std::result::Result<T, Fault>;

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
        prepare(&connection).map_err(|fault| fault.at(&path))?;
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
        prepare(&connection).map_err(|fault| fault.at(memory))?;
        Ok(Self { database: Database::Memory(Box::new(Mutex::new(connection))), folder: None })
    }

    async fn run<T: Send + 'static>(
        &self,
        command: impl FnOnce(&mut Connection) -> SqlResult<T> + Send + 'static,
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
        result.map_err(|fault| fault.at(self.folder.as_deref().unwrap_or(Path::new("memory"))))
    }

    fn lock_path(&self, id: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("job-{id}.lock")))
    }
}

#[async_trait]
impl JobStore for EmbeddedJobs {
    async fn create(&self, job: &NewJob, now: Timestamp) -> Result<bool> {
        job.check()?;
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

    async fn job(&self, id: &str) -> Result<Option<Job>> {
        let id = id.to_owned();
        self.run(move |connection| find_job(connection, &id)).await
    }

    async fn jobs(&self) -> Result<Vec<Job>> {
        self.run(|connection| {
            let sql = format!("SELECT {JOB} FROM jobs ORDER BY created_at DESC, id");
            let mut statement = connection.prepare_cached(&sql)?;
            statement.query_and_then([], parse_job)?.collect()
        })
        .await
    }

    async fn document(&self, id: &str) -> Result<Option<Vec<u8>>> {
        let id = id.to_owned();
        self.run(move |connection| {
            let sql = "SELECT document FROM jobs WHERE id = ?1";
            Ok(connection.query_row(sql, [id], |row| row.get(0)).optional()?)
        })
        .await
    }

    async fn set_state(&self, id: &str, state: &JobState, now: Timestamp) -> Result<bool> {
        let (id, state) = (id.to_owned(), state.clone());
        self.run(move |connection| {
            let (resume_at, why) = state.pause();
            let resume_at = resume_at.map(|at| integer(at.as_micros()));
            let now = integer(now.as_micros());
            let values = params![id, state.word(), resume_at, why, now, state.is_over()];
            Ok(0 < connection
                .execute(&sqlite(&format!("UPDATE jobs {}", sql::SET_STATE)), values)?)
        })
        .await
    }

    async fn set_settings(&self, id: &str, settings: &str) -> Result<()> {
        let values = [id.to_owned(), settings.to_owned()];
        self.run(move |connection| {
            connection.execute("UPDATE jobs SET settings = ?2 WHERE id = ?1", values)?;
            Ok(())
        })
        .await
    }

    /// Takes back the chunks of a process that is gone. Its pending calls count as paid, since their outcome is unknown.
    async fn lock(&self, id: &str) -> Result<Box<dyn JobGuard>> {
        let file = self.lock_path(id).map(|path| take_lock(&path, id)).transpose()?;
        let id = id.to_owned();
        self.run(move |connection| {
            connection.execute(
                "UPDATE chunks SET state = 'pending', cost = cost + expected, expected = 0
                 WHERE job = ?1 AND state IN ('reserved', 'sent')",
                [id],
            )?;
            Ok(())
        })
        .await?;
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
        let id = id.to_owned();
        self.run(move |connection| claim(connection, id, now)).await
    }

    async fn renew(&self, _claim: &Claim, _now: Timestamp) -> Result<()> {
        Ok(())
    }

    async fn update(&self, claim: &Claim, update: &ChunkUpdate) -> Result<bool> {
        let (claim, update) = (claim.clone(), update.clone());
        self.run(move |connection| update_chunk(connection, &claim, &update)).await
    }

    async fn counts(&self, id: &str) -> Result<Counts> {
        let id = id.to_owned();
        self.run(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT state, count(*), sum(calls), sum(input), sum(output), sum(cost + expected) FROM chunks
                 WHERE job = ?1 GROUP BY state",
            )?;
            let mut counts = Counts::default();
            let mut rows = statement.query([id])?;
            while let Some(row) = rows.next()? {
                let number = |column: usize| row.get::<_, i64>(column).map(natural);
                counts.add(row.get::<_, String>(0)?.parse()?, number(1)?);
                counts.calls += number(2)?;
                counts.input_tokens += number(3)?;
                counts.output_tokens += number(4)?;
                counts.cost += number(5)?;
            }
            Ok(counts)
        })
        .await
    }

    async fn chunks(&self, id: &str) -> Result<Vec<ChunkRecord>> {
        let id = id.to_owned();
        self.run(move |connection| {
            let sql = format!(
                "SELECT {CHUNK} FROM chunks WHERE job = ?1 AND state <> 'split' ORDER BY first"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let parse = |row: &Row<'_>| {
                let run = SegmentRange { first: row.get(0)?, end: row.get(1)? };
                let texts: Option<String> = row.get(3)?;
                let drafts = Drafts::from_json(texts.as_deref(), run.len())?;
                let (state, due) = (row.get::<_, String>(2)?.parse()?, natural(row.get(6)?));
                Ok(ChunkRecord::new(run, state, Some(drafts), row.get(4)?, row.get(5)?, due))
            };
            statement.query_and_then([id], parse)?.collect()
        })
        .await
    }

    async fn retry_failed(&self, id: &str) -> Result<u64> {
        let id = id.to_owned();
        self.run(move |connection| {
            let transaction = begin(connection)?;
            let sql = sqlite(&format!("UPDATE chunks {}", sql::RETRY));
            let changed = transaction.execute(&sql, [&id])?;
            if 0 < changed {
                transaction.execute(&sqlite(&format!("UPDATE jobs {}", sql::REOPEN)), [&id])?;
            }
            transaction.commit()?;
            Ok(changed as u64)
        })
        .await
    }

    async fn cached(&self, hash: &[u8; 32]) -> Result<Option<Vec<String>>> {
        let hash = *hash;
        self.run(move |connection| {
            let mut statement =
                connection.prepare_cached("SELECT texts FROM cache WHERE hash = ?1")?;
            let found = statement.query_row([hash.as_slice()], |row| row.get(0)).optional()?;
            Ok(found.map(|texts: String| parse_texts(&texts)).transpose()?)
        })
        .await
    }

    async fn cache(&self, hash: &[u8; 32], texts: &[String], now: Timestamp) -> Result<()> {
        let (hash, texts) = (*hash, serde_json::Value::from(texts).to_string());
        self.run(move |connection| {
            let sql = "INSERT OR REPLACE INTO cache (hash, texts, at) VALUES (?1, ?2, ?3)";
            let values = params![hash.as_slice(), texts, integer(now.as_micros())];
            connection.prepare_cached(sql)?.execute(values)?;
            Ok(())
        })
        .await
    }
}

fn claim(connection: &mut Connection, job: String, now: Timestamp) -> SqlResult<ClaimOutcome> {
    let transaction = begin(connection)?;
    match find_job(&transaction, &job)?.ok_or_else(|| no_such_job(&job))?.state {
        JobState::Planned | JobState::Running => {}
        halted => return Ok(ClaimOutcome::Halted(halted)),
    }
    let found = transaction
        .prepare_cached(
            "UPDATE chunks SET state = 'reserved', fence = fence + 1 WHERE rowid = (
                 SELECT rowid FROM chunks WHERE job = ?1 AND state IN ('pending', 'again') AND due <= ?2
                 ORDER BY faults, first LIMIT 1
             ) RETURNING first, last, calls, faults, passing, fence, texts",
        )?
        .query_row(params![job, integer(now.as_micros())], |row| {
            let run = SegmentRange { first: row.get(0)?, end: row.get(1)? };
            let (fence, texts): (i64, Option<String>) = (row.get(5)?, row.get(6)?);
            Ok((run, row.get(2)?, row.get(3)?, row.get(4)?, natural(fence), texts))
        })
        .optional()?;
    let sql = "SELECT coalesce(sum(cost), 0), coalesce(sum(expected), 0), min(due) FILTER (WHERE state = 'again'),
             count(*) FILTER (WHERE state IN ('reserved', 'sent')) FROM chunks WHERE job = ?1";
    let (spent, under_way, due, working): (i64, i64, Option<i64>, u32) =
        transaction.query_row(sql, [&job], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?;
    let Some((run, calls, faults, transient, fence, texts)) = found else {
        // Only this process works on the job, so it knows when one of its own chunks is finished.
        let end_of_work = (0 < working).then_some(Timestamp::MAX.as_micros());
        return Ok(ClaimOutcome::later(due.map(natural).or(end_of_work)));
    };
    transaction.commit()?;
    let (spent, under_way) = (natural(spent), natural(under_way));
    let drafts = Drafts::from_json(texts.as_deref(), run.len())?;
    let claim = Claim { job, run, calls, faults, transient, fence, spent, under_way, drafts };
    Ok(ClaimOutcome::Chunk(claim))
}

fn update_chunk(
    connection: &mut Connection,
    claim: &Claim,
    update: &ChunkUpdate,
) -> SqlResult<bool> {
    let transaction = begin(connection)?;
    let Claim { job, run, .. } = claim;
    let Update { set, condition, values } = sql::update(claim, update);
    let budget = match update {
        ChunkUpdate::Sent { most: Some(most), .. } => format!(
            "AND (SELECT sum(cost + expected) FROM chunks WHERE job = ?1) + ?5 <= {}",
            integer(*most)
        ),
        _ => String::new(),
    };
    let sql = sqlite(&format!(
        "UPDATE chunks SET {set} WHERE job = $1 AND first = $2 AND last = $3 AND {condition} {budget}"
    ));
    let fence = integer(claim.fence);
    let mut all: Vec<&dyn ToSql> = vec![job, &run.first, &run.end, &fence];
    all.extend(values.iter().map(|value| match value {
        Value::Integer(number) => number as &dyn ToSql,
        Value::Text(text) => text,
    }));
    let changed = transaction.execute(&sql, all.as_slice())?;
    if let ChunkUpdate::Split { parts, .. } = update
        && 0 < changed
    {
        let sql = "INSERT INTO chunks (job, first, last, state, texts, reason) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        for part in parts {
            let (state, texts) = (part.state().word(), part.drafts.to_json());
            let values = params![job, part.run.first, part.run.end, state, texts, part.failed];
            transaction.execute(sql, values)?;
        }
    }
    transaction.commit()?;
    Ok(0 < changed)
}

/// Begins a transaction that is the only writer from its start.
fn begin(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

/// Translates shared SQL for SQLite.
fn sqlite(sql: &str) -> String {
    sql.replace("::bigint", "").replace('$', "?")
}

fn find_job(connection: &Connection, id: &str) -> SqlResult<Option<Job>> {
    let sql = format!("SELECT {JOB} FROM jobs WHERE id = ?1");
    let mut statement = connection.prepare_cached(&sql)?;
    statement.query_and_then([id], parse_job)?.next().transpose()
}

fn parse_job(row: &Row<'_>) -> SqlResult<Job> {
    let micros = |column: usize| row.get::<_, Option<i64>>(column).map(|it| it.map(natural));
    let time = |column: usize| micros(column).map(|it| it.map(Timestamp::from_micros));
    let state: String = row.get(2)?;
    Ok(Job {
        id: row.get(0)?,
        name: row.get(1)?,
        state: JobState::parse(&state, micros(3)?, row.get(4)?)?,
        settings: row.get(5)?,
        created_at: time(6)?.unwrap_or_default(),
        started_at: time(7)?,
        ended_at: time(8)?,
    })
}

/// Creates the tables, or refuses a file that is not ours.
fn prepare(connection: &Connection) -> SqlResult<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    let number = |sql| connection.query_row(sql, [], |row| row.get::<_, u32>(0));
    let application = number("PRAGMA application_id")?;
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    if application != APPLICATION_ID && (application, tables) != (0, 0) {
        return Err(Error::invalid("it is a database of another program; move it away").into());
    }
    let version = number("PRAGMA user_version")?;
    if VERSION < version {
        return Err(Error::invalid(format!(
            "it is of version {version}, and this program knows {VERSION}; use a newer program"
        ))
        .into());
    }
    // A journal that a power cut could shorten would have chunks paid twice.
    connection.execute_batch(&format!(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA application_id = {APPLICATION_ID};
         PRAGMA user_version = {VERSION}; {TABLES}"
    ))?;
    Ok(())
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
