//! The audit of a data folder: a separate database with a thread of its own.
//!
//! Decisions do not depend on it, so commits are not synced: a power failure may lose the newest records, and a damaged file
//! only affects the audit.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, Row, params, params_from_iter};
use tokio::sync::oneshot;
use tollgate::audit::{AuditLog, Binding, Page, Query, Record, RecordedCharge, Retention};
use tollgate::gate::BoxFuture;
use tollgate::{Error, ErrorKind, Span, Timestamp};

use crate::database::fault;
use crate::folder::{unusable, writable};

const FILE: &str = "audit.sqlite";

/// How long a write waits for other programs, such as a backup.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// The application id in the header: "tola" in ASCII.
const APPLICATION_ID: u32 = 0x746f_6c61;

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS records (
        number INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, policy TEXT NOT NULL, subject TEXT NOT NULL,
        outcome TEXT NOT NULL, degraded INTEGER NOT NULL, limit_name TEXT, unit TEXT, asked INTEGER, retry_after INTEGER,
        by_key TEXT, charges TEXT
    );
    CREATE INDEX IF NOT EXISTS by_subject ON records (subject, number);
    CREATE INDEX IF NOT EXISTS by_outcome ON records (outcome, number);
    CREATE INDEX IF NOT EXISTS by_time ON records (at);
    CREATE TABLE IF NOT EXISTS charges (
        subject TEXT NOT NULL, policy TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (subject, policy, number)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS charges_by_number ON charges (number);";

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// The audit log of a data folder.
#[derive(Debug)]
pub struct EmbeddedAudit {
    path: PathBuf,
    jobs: mpsc::Sender<Job>,
}

impl EmbeddedAudit {
    /// Opens the audit of the existing data folder at `folder`, and creates its file if it is missing.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) if the file cannot be created or written, [`Invalid`](ErrorKind::Invalid) if
    /// it belongs to another program, [`Corrupt`](ErrorKind::Corrupt) if it is damaged.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(FILE);
        // It names subjects. SQLite creates the other files with the same mode.
        writable(&path).map_err(|error| unusable("create", &path, error))?;
        let mut connection = open(&path)?;
        let (jobs, next) = mpsc::channel::<Job>();
        let work = move || {
            // Ends with the last sender.
            for job in next {
                job(&mut connection);
            }
        };
        let spawned = thread::Builder::new().name("tollgate-audit".to_owned()).spawn(work);
        spawned.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "could not start the thread of the audit")
                .caused_by(error)
        })?;
        Ok(Self { path, jobs })
    }

    /// Runs `job` on the audit thread.
    async fn run<T: Send + 'static>(
        &self,
        act: &str,
        job: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let (done, answer) = oneshot::channel();
        let job = Box::new(move |connection: &mut Connection| {
            // The caller may be gone.
            let _ = done.send(job(connection));
        });
        let ended = || Error::new(ErrorKind::Unavailable, "the thread of the audit has ended");
        self.jobs.send(job).map_err(|_| ended())?;
        let answer = answer.await.map_err(|_| ended())?;
        answer.map_err(|error| fault(act, &self.path, error))
    }
}

fn open(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = || -> rusqlite::Result<(Connection, u32, u32)> {
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY_WAIT)?;
        let number = |sql| connection.query_row(sql, [], |row| row.get::<_, u32>(0));
        let application = number("PRAGMA application_id")?;
        let tables = number("SELECT count(*) FROM sqlite_schema")?;
        Ok((connection, application, tables))
    };
    let (connection, application, tables) = opened().map_err(|error| fault("open", path, error))?;
    if application != APPLICATION_ID && (application, tables) != (0, 0) {
        let text = format!("{} is a database of another program; move it away", path.display());
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let made = connection.execute_batch(&format!(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA application_id = {APPLICATION_ID}; {TABLES}"
    ));
    made.and_then(|()| add_columns(&connection)).map_err(|error| fault("create", path, error))?;
    Ok(connection)
}

/// Adds the columns that a file of an earlier version lacks.
fn add_columns(connection: &Connection) -> rusqlite::Result<()> {
    for column in ["by_key", "charges"] {
        let sql = "SELECT count(*) FROM pragma_table_info('records') WHERE name = ?1";
        if connection.query_row(sql, [column], |row| row.get::<_, u32>(0))? == 0 {
            connection.execute_batch(&format!("ALTER TABLE records ADD COLUMN {column} TEXT"))?;
        }
    }
    Ok(())
}

impl AuditLog for EmbeddedAudit {
    fn append<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), Error>> {
        let records = records.to_vec();
        Box::pin(self.run("write", move |connection| append(connection, &records)))
    }

    fn find<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>> {
        Box::pin(async move {
            let wanted = query.clone();
            let found = self.run("read", move |connection| find(connection, &wanted)).await?;
            Ok(query.page(found))
        })
    }

    fn trim(&self, keep: Retention, now: Timestamp) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(self.run("clean up", move |connection| trim(connection, keep, now)))
    }
}

fn append(connection: &mut Connection, records: &[Record]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    {
        let mut insert = transaction.prepare_cached(
            "INSERT INTO records (at, policy, subject, outcome, degraded, limit_name, unit, asked, retry_after,
             by_key, charges) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )?;
        let mut insert_charge = transaction.prepare_cached(
            "INSERT OR IGNORE INTO charges (subject, policy, number) VALUES (?1, ?2, ?3)",
        )?;
        for record in records {
            let binding = record.binding.as_ref();
            insert.execute(params![
                integer(record.at.as_micros()),
                &*record.policy,
                &*record.subject,
                record.outcome.name(),
                record.degraded,
                binding.map(|binding| &*binding.limit),
                binding.map(|binding| &*binding.unit),
                binding.map(|binding| integer(binding.asked)),
                binding
                    .and_then(|binding| binding.retry_after)
                    .map(|wait| integer(wait.as_micros())),
                record.by.as_deref(),
                charges_text(&record.charges)?,
            ])?;
            let number = transaction.last_insert_rowid();
            for charge in &record.charges {
                insert_charge.execute(params![&*charge.subject, &*charge.policy, number])?;
            }
        }
    }
    transaction.commit()
}

fn find(connection: &Connection, query: &Query) -> rusqlite::Result<Vec<Record>> {
    let text = |text: &str| Value::Text(text.to_owned());
    let conditions = [
        ("at >=", query.since.map(|since| Value::Integer(integer(since.as_micros())))),
        ("outcome =", query.outcome.map(|outcome| text(outcome.name()))),
        ("degraded =", query.degraded.then_some(Value::Integer(1))),
        ("number <", query.before.map(|before| Value::Integer(integer(before)))),
    ];
    let mut sql = "SELECT number, at, policy, subject, outcome, degraded, limit_name, unit, asked, retry_after, by_key, \
                   charges FROM records WHERE true"
        .to_owned();
    let mut values: Vec<Value> = Vec::new();
    let about = [("policy", query.policy.as_deref()), ("subject", query.subject.as_deref())];
    let about: Vec<(&str, &str)> =
        about.into_iter().filter_map(|(column, text)| Some((column, text?))).collect();
    if !about.is_empty() {
        // A record is about each of its charges.
        let equal: Vec<String> = about.iter().map(|(column, _)| format!("{column} = ?")).collect();
        let equal = equal.join(" AND ");
        sql += &format!(" AND ({equal} OR number IN (SELECT number FROM charges WHERE {equal}))");
        values.extend(about.iter().chain(&about).map(|(_, wanted)| text(wanted)));
    }
    for (condition, value) in conditions {
        if let Some(value) = value {
            sql += &format!(" AND {condition} ?");
            values.push(value);
        }
    }
    sql += &format!(" ORDER BY number DESC LIMIT {}", query.rows() + 1);
    let mut statement = connection.prepare_cached(&sql)?;
    statement.query_map(params_from_iter(values), read)?.collect()
}

fn read(row: &Row<'_>) -> rusqlite::Result<Record> {
    let whole = |place: usize| row.get::<_, Option<i64>>(place).map(|it| it.map(natural));
    let text = |place: usize| row.get::<_, Option<String>>(place);
    let outcome: String = row.get(4)?;
    let limit = text(6)?;
    let (unit, asked, retry_after) = (text(7)?, whole(8)?, whole(9)?);
    Ok(Record {
        number: whole(0)?.unwrap_or(0),
        at: Timestamp::from_micros(whole(1)?.unwrap_or(0)),
        policy: row.get::<_, String>(2)?.into(),
        subject: row.get::<_, String>(3)?.into(),
        outcome: outcome.parse().map_err(|error: Error| {
            let kind = rusqlite::types::Type::Text;
            rusqlite::Error::FromSqlConversionFailure(4, kind, Box::new(error))
        })?,
        binding: limit.map(|limit| Binding {
            limit: limit.into(),
            unit: unit.unwrap_or_default().into(),
            asked: asked.unwrap_or(0),
            retry_after: retry_after.map(Span::from_micros),
        }),
        degraded: row.get(5)?,
        by: text(10)?.map(Into::into),
        charges: match text(11)? {
            Some(charges) => serde_json::from_str(&charges).map_err(|error| {
                let kind = rusqlite::types::Type::Text;
                rusqlite::Error::FromSqlConversionFailure(11, kind, Box::new(error))
            })?,
            None => Vec::new(),
        },
    })
}

/// Returns the column of `charges`; null if there are none.
fn charges_text(charges: &[RecordedCharge]) -> rusqlite::Result<Option<String>> {
    if charges.is_empty() {
        return Ok(None);
    }
    let text = serde_json::to_string(charges);
    text.map(Some).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

fn trim(connection: &Connection, keep: Retention, now: Timestamp) -> rusqlite::Result<u64> {
    let before = now.as_micros().saturating_sub(keep.age_max.as_micros());
    let old = connection
        .prepare_cached("DELETE FROM records WHERE at < ?1")?
        .execute([integer(before)])?;
    let beyond = connection
        .prepare_cached(
            "DELETE FROM records WHERE number <=
                 (SELECT number FROM records ORDER BY number DESC LIMIT 1 OFFSET ?1)",
        )?
        .execute([integer(keep.entries_max as u64)])?;
    // Those of a record in the middle, whose clock was wrong, go when their turn comes; no query finds them.
    connection
        .prepare_cached(
            "DELETE FROM charges WHERE number < (SELECT coalesce(min(number), 9223372036854775807) FROM records)",
        )?
        .execute([])?;
    Ok((old + beyond) as u64)
}

fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn natural(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
