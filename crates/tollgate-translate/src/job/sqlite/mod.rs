//! The statements of a store in SQLite: the tables, jobs and the cache here, chunks beside it. Each change is one transaction.

mod chunks;

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use tollgate::Timestamp;

use super::{Job, JobState, NewJob};
use crate::error::Error;

pub(super) use chunks::{chunks, claim, counts, record, retry_failed, take_back};

/// Says in the file's header that it is ours: "tolj" in ASCII.
pub(super) const APPLICATION_ID: u32 = 0x746f_6c6a;

/// The version of the tables, kept in the file's header.
pub(super) const VERSION: u32 = 1;

pub(super) const TABLES: &str = "
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

/// What a statement may fail with: the database, or what it holds.
#[derive(Debug)]
pub(super) enum Fault {
    Sql(rusqlite::Error),
    Ours(Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

pub(super) type Done<T> = Result<T, Fault>;

/// A transaction that is the only writer from its beginning on.
fn begin(connection: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate)
}

pub(super) fn create(connection: &mut Connection, job: &NewJob, now: Timestamp) -> Done<bool> {
    let transaction = begin(connection)?;
    let added = transaction.execute(
        "INSERT INTO jobs (id, name, state, settings, document, created_at) VALUES (?1, ?2, 'planned', ?3, ?4, ?5)
         ON CONFLICT DO NOTHING",
        params![job.id, job.name, job.settings, job.document, integer(now.as_micros())],
    )?;
    if added == 0 {
        return Ok(false);
    }
    {
        let mut insert =
            transaction.prepare("INSERT INTO chunks (job, first, last) VALUES (?1, ?2, ?3)")?;
        for run in &job.chunks {
            insert.execute(params![job.id, run.first, run.end])?;
        }
    }
    transaction.commit()?;
    Ok(true)
}

const JOB: &str = "id, name, state, resume_at, why, settings, created_at, started_at, ended_at";

fn read_job(row: &Row<'_>) -> rusqlite::Result<Result<Job, Error>> {
    let time = |place: usize| {
        let micros: Option<i64> = row.get(place)?;
        Ok::<_, rusqlite::Error>(micros.map(natural))
    };
    let state: String = row.get(2)?;
    let (resume_at, why): (Option<u64>, Option<String>) = (time(3)?, row.get(4)?);
    let (id, name, settings) = (row.get(0)?, row.get(1)?, row.get(5)?);
    let created_at = Timestamp::from_micros(time(6)?.unwrap_or(0));
    let started_at = time(7)?.map(Timestamp::from_micros);
    let ended_at = time(8)?.map(Timestamp::from_micros);
    Ok(JobState::read(&state, resume_at, why).map(|state| Job {
        id,
        name,
        state,
        settings,
        created_at,
        started_at,
        ended_at,
    }))
}

pub(super) fn job(connection: &Connection, id: &str) -> Done<Option<Job>> {
    let sql = format!("SELECT {JOB} FROM jobs WHERE id = ?1");
    let found = connection.prepare_cached(&sql)?.query_row([id], read_job).optional()?;
    Ok(found.transpose()?)
}

pub(super) fn jobs(connection: &Connection) -> Done<Vec<Job>> {
    let sql = format!("SELECT {JOB} FROM jobs ORDER BY created_at DESC, id");
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map([], read_job)?.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(rows.into_iter().collect::<Result<_, Error>>()?)
}

pub(super) fn document(connection: &Connection, id: &str) -> Done<Option<Vec<u8>>> {
    let sql = "SELECT document FROM jobs WHERE id = ?1";
    Ok(connection.query_row(sql, [id], |row| row.get(0)).optional()?)
}

pub(super) fn set_state(
    connection: &Connection,
    id: &str,
    state: &JobState,
    now: Timestamp,
) -> Done<bool> {
    let (resume_at, why) = match state {
        JobState::Paused { resume_at, why } => {
            (resume_at.map(|at| integer(at.as_micros())), Some(why.as_str()))
        }
        _ => (None, None),
    };
    let changed = connection.execute(
        "UPDATE jobs SET state = ?2, resume_at = ?3, why = ?4,
             started_at = CASE WHEN ?2 = 'running' THEN coalesce(started_at, ?5) ELSE started_at END,
             ended_at = CASE WHEN ?6 THEN ?5 ELSE NULL END
         WHERE id = ?1 AND state <> 'cancelled'",
        params![id, state.word(), resume_at, why, integer(now.as_micros()), state.is_over()],
    )?;
    Ok(0 < changed)
}

pub(super) fn set_settings(connection: &Connection, id: &str, settings: &str) -> Done<()> {
    connection.execute("UPDATE jobs SET settings = ?2 WHERE id = ?1", [id, settings])?;
    Ok(())
}

pub(super) fn recall(connection: &Connection, hash: &[u8; 32]) -> Done<Option<Vec<String>>> {
    let mut statement = connection.prepare_cached("SELECT texts FROM cache WHERE hash = ?1")?;
    let found: Option<String> =
        statement.query_row([hash.as_slice()], |row| row.get(0)).optional()?;
    Ok(found.map(|texts| from_json(&texts)).transpose()?)
}

pub(super) fn remember(
    connection: &Connection,
    hash: &[u8; 32],
    texts: &[String],
    now: Timestamp,
) -> Done<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO cache (hash, texts, at) VALUES (?1, ?2, ?3)")?
        .execute(params![hash.as_slice(), as_json(texts), integer(now.as_micros())])?;
    Ok(())
}

pub(super) fn as_json(texts: &[String]) -> String {
    serde_json::Value::from(texts).to_string()
}

pub(super) fn from_json(texts: &str) -> Result<Vec<String>, Error> {
    serde_json::from_str(texts)
        .map_err(|error| Error::store(format!("a stored translation cannot be read: {error}")))
}

pub(super) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
