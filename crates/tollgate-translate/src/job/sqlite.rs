//! The statements of a store in SQLite. Each change is one transaction.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior, params};
use tollgate::Timestamp;

use super::{ChunkRecord, Claim, Counts, Job, JobState, NewJob, Next, Run, Step, Used};
use crate::error::Error;

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

/// Takes back what a process that is gone had. Whether its calls were answered is unknown, so they count as made.
pub(super) fn take_back(connection: &Connection, id: &str) -> Done<()> {
    connection.execute(
        "UPDATE chunks SET state = 'pending', cost = cost + expected, expected = 0
         WHERE job = ?1 AND state IN ('reserved', 'sent')",
        [id],
    )?;
    Ok(())
}

pub(super) fn claim(connection: &mut Connection, id: &str, now: Timestamp) -> Done<Next> {
    let transaction = begin(connection)?;
    match job(&transaction, id)?.map(|job| job.state) {
        Some(JobState::Planned | JobState::Running) => {}
        Some(halted) => return Ok(Next::Halted(halted)),
        None => return Err(Error::invalid(format!("there is no job {id:?}")).into()),
    }
    let found = transaction
        .prepare_cached(
            "SELECT first, last, calls, faults, passing, fence FROM chunks
             WHERE job = ?1 AND state IN ('pending', 'again') AND due <= ?2 ORDER BY first LIMIT 1",
        )?
        .query_row(params![id, integer(now.as_micros())], |row| {
            let run = Run { first: row.get(0)?, end: row.get(1)? };
            let fence: i64 = row.get(5)?;
            Ok((run, row.get(2)?, row.get(3)?, row.get(4)?, natural(fence) + 1))
        })
        .optional()?;
    let Some((run, calls, faults, passing, fence)) = found else {
        let sql = "SELECT min(due), count(*) FROM chunks WHERE job = ?1 AND state = 'again'";
        let (due, waiting): (Option<i64>, u32) =
            transaction.query_row(sql, [id], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let sql = "SELECT count(*) FROM chunks WHERE job = ?1 AND state IN ('reserved', 'sent')";
        let working: u32 = transaction.query_row(sql, [id], |row| row.get(0))?;
        return Ok(match due {
            Some(due) if 0 < waiting => Next::Later(Timestamp::from_micros(natural(due))),
            // Only this process works on the job, so it knows when one of them is through.
            _ if 0 < working => Next::Later(Timestamp::MAX),
            _ => Next::Nothing,
        });
    };
    transaction.execute(
        "UPDATE chunks SET state = 'reserved', fence = ?4 WHERE job = ?1 AND first = ?2 AND last = ?3",
        params![id, run.first, run.end, integer(fence)],
    )?;
    let sql = "SELECT coalesce(sum(cost + expected), 0) FROM chunks WHERE job = ?1";
    let spent: i64 = transaction.query_row(sql, [id], |row| row.get(0))?;
    transaction.commit()?;
    let job = id.to_owned();
    Ok(Next::Chunk(Claim { job, run, calls, faults, passing, fence, spent: natural(spent) }))
}

pub(super) fn record(connection: &mut Connection, claim: &Claim, step: &Step) -> Done<bool> {
    let transaction = begin(connection)?;
    let Claim { job, run, fence, .. } = claim;
    // A translation is as good from a worker that was given up as from its successor.
    let whose = match step {
        Step::Done { .. } => "state NOT IN ('done', 'split') AND ?4 = ?4",
        _ => "state IN ('reserved', 'sent') AND fence = ?4",
    };
    let update = |set: &str, values: &[&dyn rusqlite::ToSql]| {
        let sql = format!(
            "UPDATE chunks SET {set} WHERE job = ?1 AND first = ?2 AND last = ?3 AND {whose}"
        );
        let fence = integer(*fence);
        let mut all: Vec<&dyn rusqlite::ToSql> = vec![job, &run.first, &run.end, &fence];
        all.extend_from_slice(values);
        transaction.prepare_cached(&sql)?.execute(all.as_slice())
    };
    let used = |used: &Used| (integer(used.input), integer(used.output), integer(used.cost));
    const USED: &str = "input = input + ?5, output = output + ?6, cost = cost + ?7, expected = 0";
    let changed = match step {
        Step::Expect { cost } => update("expected = ?5", &[&integer(*cost)])?,
        Step::Sent { cost } => {
            update("state = 'sent', calls = calls + 1, expected = ?5", &[&integer(*cost)])?
        }
        Step::Back => update("state = 'pending', expected = 0", &[])?,
        Step::Done { texts, warning, used: spent } => {
            let (input, output, cost) = used(spent);
            let texts = as_json(texts);
            let set = format!("state = 'done', texts = ?8, reason = ?9, {USED}");
            update(&set, &[&input, &output, &cost, &texts, warning])?
        }
        Step::Again { at, reason, used: spent, is_fault } => {
            let (input, output, cost) = used(spent);
            let due = integer(at.as_micros());
            let count = if *is_fault {
                "faults = faults + 1, passing = 0"
            } else {
                "passing = passing + 1"
            };
            let set = format!("state = 'again', due = ?8, reason = ?9, {count}, {USED}");
            update(&set, &[&input, &output, &cost, &due, reason])?
        }
        Step::Failed { reason, used: spent } => {
            let (input, output, cost) = used(spent);
            update(
                &format!("state = 'failed', reason = ?8, {USED}"),
                &[&input, &output, &cost, reason],
            )?
        }
        Step::Split { at, reason, used: spent } => {
            let (input, output, cost) = used(spent);
            let set = format!("state = 'split', reason = ?8, {USED}");
            let changed = update(&set, &[&input, &output, &cost, reason])?;
            if 0 < changed {
                let sql = "INSERT INTO chunks (job, first, last) VALUES (?1, ?2, ?3)";
                transaction.execute(sql, params![job, run.first, at])?;
                transaction.execute(sql, params![job, at, run.end])?;
            }
            changed
        }
    };
    transaction.commit()?;
    Ok(0 < changed)
}

pub(super) fn counts(connection: &Connection, id: &str) -> Done<Counts> {
    let mut statement = connection.prepare_cached(
        "SELECT state, count(*), sum(calls), sum(input), sum(output), sum(cost + expected) FROM chunks
         WHERE job = ?1 GROUP BY state",
    )?;
    let mut counts = Counts::default();
    let mut rows = statement.query([id])?;
    while let Some(row) = rows.next()? {
        let number = |place: usize| row.get::<_, i64>(place).map(natural);
        let state: String = row.get(0)?;
        counts.add(state.parse()?, number(1)?);
        counts.calls += number(2)?;
        counts.input_tokens += number(3)?;
        counts.output_tokens += number(4)?;
        counts.cost += number(5)?;
    }
    Ok(counts)
}

pub(super) fn chunks(connection: &Connection, id: &str) -> Done<Vec<ChunkRecord>> {
    let mut statement = connection.prepare_cached(
        "SELECT first, last, state, texts, reason, calls FROM chunks WHERE job = ?1 AND state <> 'split' ORDER BY first",
    )?;
    let mut rows = statement.query([id])?;
    let mut chunks = Vec::new();
    while let Some(row) = rows.next()? {
        let state: String = row.get(2)?;
        let texts: Option<String> = row.get(3)?;
        chunks.push(ChunkRecord {
            run: Run { first: row.get(0)?, end: row.get(1)? },
            state: state.parse()?,
            texts: texts.map(|texts| from_json(&texts)).transpose()?.unwrap_or_default(),
            reason: row.get(4)?,
            calls: row.get(5)?,
        });
    }
    Ok(chunks)
}

pub(super) fn retry_failed(connection: &mut Connection, id: &str) -> Done<u64> {
    let transaction = begin(connection)?;
    let changed = transaction.execute(
        "UPDATE chunks SET state = 'pending', due = 0, faults = 0, passing = 0 WHERE job = ?1 AND state = 'failed'",
        [id],
    )?;
    if 0 < changed {
        transaction.execute(
            "UPDATE jobs SET state = 'running', ended_at = NULL WHERE id = ?1 AND state <> 'cancelled'",
            [id],
        )?;
    }
    transaction.commit()?;
    Ok(changed as u64)
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
