//! Jobs in PostgreSQL, for workers on many machines.
//!
//! A worker claims a chunk with `SKIP LOCKED`, so that no worker waits for another, and holds it as long as it renews its lease. When
//! a lease expires, other workers take the chunk; the fencing token keeps the expired worker from undoing what its successor did.
//! Each verb is one statement, and leases are measured by the server's clock alone.

mod connection;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Column;
use tokio_postgres::types::{ToSql, Type};
use tollgate::{Clock, Span, Timestamp};

use super::sql::{self, Row, SqlStore, Update, Value, integer};
use super::{
    ChunkPart, ChunkUpdate, Claim, ClaimOutcome, JobGuard, JobState, LEASE_DEFAULT, NewJob,
    OutageMonitor, SegmentRange, no_such_job,
};
use crate::error::{Error, Result};
use connection::Connection;

const TABLES: &str = include_str!("tables.sql");

/// The time in microseconds: the caller's in tests, the server's otherwise.
const NOW: &str = "coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)";

/// Jobs in PostgreSQL, in tables of their own.
pub struct PostgresJobs {
    connection: Connection,
    schema: String,
    lease: Span,
    by_callers_clock: bool,
}

impl fmt::Debug for PostgresJobs {
    /// Omits the URL, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresJobs").field("schema", &self.schema).finish_non_exhaustive()
    }
}

type Values<'a> = [&'a (dyn ToSql + Sync)];

impl PostgresJobs {
    /// Opens the jobs in `schema` of the server at `url`, as in `postgresql://user:password@host/database`. Missing tables are
    /// created.
    ///
    /// # Errors
    /// If the URL or the schema is invalid, the server is unreachable, or its tables are of a newer version.
    pub async fn open(url: &str, schema: &str) -> Result<Self> {
        let connection = Connection::new(url)?;
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if schema.is_empty()
            || !schema.chars().all(is_part)
            || schema.starts_with(|c: char| c.is_ascii_digit())
        {
            return Err(Error::invalid(format!(
                "invalid schema {schema:?}; use lower-case letters, digits and _, as in tollgate"
            )));
        }
        let (schema, lease) = (schema.to_owned(), LEASE_DEFAULT);
        let jobs = Self { connection, schema, lease, by_callers_clock: false };
        jobs.connection.begin(&jobs.sql(TABLES)).await?;
        let rows = jobs.run("SELECT max(version) FROM @.translate_versions", &[]).await?;
        let version = rows.first().and_then(|row| row.number(0));
        if version != Some(1) {
            return Err(Error::store(format!(
                "the tables of jobs in the schema {:?} are of version {}, and this program knows 1; use a newer program",
                jobs.schema,
                version.unwrap_or(0)
            )));
        }
        Ok(jobs)
    }

    /// Sets how long a claim lives without being renewed.
    #[must_use]
    pub const fn with_lease(mut self, lease: Span) -> Self {
        self.lease = lease;
        self
    }

    /// Returns how long calls wait during an outage of the server, and the current outage.
    #[must_use]
    pub const fn outages(&self) -> &OutageMonitor {
        &self.connection.outages
    }

    /// Measures leases by the caller's clock, for tests.
    #[must_use]
    pub const fn by_callers_clock(mut self) -> Self {
        self.by_callers_clock = true;
        self
    }

    /// Measures timeouts by `clock`, for tests.
    #[must_use]
    pub fn timed_by(mut self, clock: Arc<dyn Clock>) -> Self {
        self.connection.clock = clock;
        self
    }

    fn sql(&self, text: &str) -> String {
        text.replace('@', &self.schema)
    }

    fn now(&self, now: Timestamp) -> Option<i64> {
        self.by_callers_clock.then(|| integer(now.as_micros()))
    }

    fn lease_micros(&self) -> i64 {
        integer(self.lease.as_micros())
    }

    async fn run(&self, sql: &str, values: &Values<'_>) -> Result<Vec<Row>> {
        self.connection.query(&self.sql(sql), values).await?.iter().map(convert).collect()
    }

    /// Sends a chunk if the budget suffices. Two workers must not both reserve the last of it: each reservation increments a turn,
    /// and a worker whose turn is outdated reads the sum again.
    async fn send_within(&self, update: &Update, cost: u64, most: u64) -> Result<bool> {
        let values: Vec<_> = update.values.iter().map(as_sql).collect();
        // A reservation whose response was lost may be its own.
        let look = "SELECT coalesce((SELECT turn FROM @.translate_purses WHERE job = $1), 0),
                (SELECT sum(cost + CASE WHEN first = $2 AND last = $3 THEN 0 ELSE expected END)::bigint
                 FROM @.translate_chunks WHERE job = $1)";
        let take = format!(
            "WITH turn AS (
                 INSERT INTO @.translate_purses AS purse (job, turn) VALUES ($1, $7::bigint + 1)
                 ON CONFLICT (job) DO UPDATE SET turn = excluded.turn WHERE purse.turn = $7 RETURNING turn
             ), sent AS (
                 UPDATE @.translate_chunks SET {}
                 WHERE job = $1 AND first = $2 AND last = $3 AND {} AND EXISTS (SELECT FROM turn) RETURNING first
             )
             SELECT (SELECT count(*) FROM turn), (SELECT count(*) FROM sent)",
            update.set, update.condition
        );
        loop {
            let rows = self.run(look, &values[..3]).await?;
            let Some(row) = rows.first() else { return Ok(false) };
            if most < row.sum(1).saturating_add(cost) {
                return Ok(false);
            }
            let turn = integer(row.sum(0));
            let values: Vec<_> = values.iter().copied().chain([&turn as _]).collect();
            let rows = self.run(&take, &values).await?;
            if let Some(row) = rows.first().filter(|row| row.sum(0) == 1) {
                return Ok(row.sum(1) == 1);
            }
        }
    }

    /// Replaces a chunk by `parts`.
    async fn split(&self, update: &Update, parts: &[ChunkPart]) -> Result<bool> {
        let sql = format!(
            "WITH parent AS (
                 UPDATE @.translate_chunks SET {} WHERE job = $1 AND first = $2 AND last = $3 AND {} RETURNING first
             )
             INSERT INTO @.translate_chunks (job, first, last, state, texts, reason)
             SELECT $1, part.first, part.last, part.state, part.texts, part.reason
             FROM parent, unnest($9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::text[])
                 AS part (first, last, state, texts, reason)
             RETURNING first",
            update.set, update.condition
        );
        let (first, last): (Vec<i64>, Vec<i64>) =
            parts.iter().map(|part| columns(part.run)).unzip();
        let states: Vec<&str> = parts.iter().map(|part| part.state().word()).collect();
        let texts: Vec<Option<String>> = parts.iter().map(|part| part.drafts.to_json()).collect();
        let failed: Vec<Option<&str>> = parts.iter().map(|part| part.failed.as_deref()).collect();
        let arrays: [&(dyn ToSql + Sync); 5] = [&first, &last, &states, &texts, &failed];
        let values: Vec<_> = update.values.iter().map(as_sql).chain(arrays).collect();
        Ok(!self.run(&sql, &values).await?.is_empty())
    }
}

#[async_trait]
impl SqlStore for PostgresJobs {
    async fn query(&self, sql: &str, values: Vec<Value>) -> Result<Vec<Row>> {
        self.run(sql, &values.iter().map(as_sql).collect::<Vec<_>>()).await
    }

    async fn create(&self, job: &NewJob, now: Timestamp) -> Result<bool> {
        let (first, last): (Vec<i64>, Vec<i64>) =
            job.chunks.iter().map(|run| columns(*run)).unzip();
        let sql = "WITH made AS (
                 INSERT INTO @.translate_jobs (id, name, state, settings, document, created_at)
                 VALUES ($1, $2, 'planned', $3, $4, $5) ON CONFLICT DO NOTHING RETURNING id
             ), cut AS (
                 INSERT INTO @.translate_chunks (job, first, last)
                 SELECT made.id, run.first, run.last FROM made, unnest($6::bigint[], $7::bigint[]) AS run (first, last)
             )
             SELECT id FROM made";
        let now = integer(now.as_micros());
        let values: &Values<'_> =
            &[&job.id, &job.name, &job.settings, &job.document, &now, &first, &last];
        Ok(!self.run(sql, values).await?.is_empty())
    }

    async fn lock(&self, _id: &str) -> Result<Box<dyn JobGuard>> {
        Ok(Box::new(()))
    }

    async fn is_active(&self, id: &str, now: Timestamp) -> Result<bool> {
        let sql = format!(
            "SELECT 1 FROM @.translate_chunks WHERE job = $2
               AND (state IN ('reserved', 'sent') AND {NOW} < lease_until OR state = 'again' AND {NOW} < due + $3) LIMIT 1"
        );
        let values: &Values<'_> = &[&self.now(now), &id, &self.lease_micros()];
        Ok(!self.run(&sql, values).await?.is_empty())
    }

    fn lease(&self) -> Option<Span> {
        Some(self.lease)
    }

    async fn claim(&self, id: &str, worker: &str, now: Timestamp) -> Result<ClaimOutcome> {
        let sql = format!(
            "WITH clock AS (SELECT {NOW} AS now),
             job AS (SELECT state, resume_at, why FROM @.translate_jobs WHERE id = $2),
             picked AS (
                 SELECT first, last FROM @.translate_chunks, clock
                 WHERE job = $2 AND (SELECT state FROM job) IN ('planned', 'running')
                   AND ((state IN ('pending', 'again') AND due <= now) OR (state IN ('reserved', 'sent') AND lease_until <= now))
                 ORDER BY faults, first LIMIT 1 FOR UPDATE OF translate_chunks SKIP LOCKED
             ),
             taken AS (
                 UPDATE @.translate_chunks c
                 SET state = 'reserved', fence = c.fence + 1, worker = $3, lease_until = now + $4,
                     cost = c.cost + c.expected, expected = 0
                 FROM picked, clock WHERE c.job = $2 AND c.first = picked.first AND c.last = picked.last
                 RETURNING c.first, c.last, c.calls, c.faults, c.passing, c.fence, c.texts
             )
             SELECT job.state, job.resume_at, job.why,
                 taken.first, taken.last, taken.calls, taken.faults, taken.passing, taken.fence, taken.texts,
                 (SELECT coalesce(sum(cost + expected), 0)::bigint FROM @.translate_chunks WHERE job = $2),
                 (SELECT coalesce(sum(expected), 0)::bigint FROM @.translate_chunks, clock WHERE job = $2 AND now < lease_until),
                 (SELECT min(CASE state WHEN 'pending' THEN now WHEN 'again' THEN due ELSE lease_until END)
                  FROM @.translate_chunks, clock WHERE job = $2 AND state IN ('pending', 'again', 'reserved', 'sent'))
             FROM job LEFT JOIN taken ON true"
        );
        let rows = self.run(&sql, &[&self.now(now), &id, &worker, &self.lease_micros()]).await?;
        let row = rows.first().ok_or_else(|| no_such_job(id))?;
        let state = row.job_state(0)?;
        if !matches!(state, JobState::Planned | JobState::Running) {
            return Ok(ClaimOutcome::Halted(state));
        }
        let (all, under_way) = (row.sum(10), row.sum(11));
        Ok(match row.claim(3, id, all - under_way, under_way)? {
            Some(claim) => ClaimOutcome::Chunk(claim),
            None => ClaimOutcome::later(row.number(12)),
        })
    }

    async fn renew(&self, claim: &Claim, now: Timestamp) -> Result<()> {
        let sql = format!(
            "UPDATE @.translate_chunks SET lease_until = {NOW} + $6
             WHERE job = $2 AND first = $3 AND last = $4 AND state IN ('reserved', 'sent') AND fence = $5"
        );
        let ((first, last), fence) = (columns(claim.run), integer(claim.fence));
        let (now, lease) = (self.now(now), self.lease_micros());
        self.run(&sql, &[&now, &claim.job, &first, &last, &fence, &lease]).await.map(drop)
    }

    async fn update(&self, claim: &Claim, update: &ChunkUpdate) -> Result<bool> {
        let prepared = sql::update(claim, update);
        match update {
            ChunkUpdate::Sent { cost, most: Some(most) } => {
                self.send_within(&prepared, *cost, *most).await
            }
            ChunkUpdate::Split { parts, .. } => self.split(&prepared, parts).await,
            _ => {
                let Update { set, condition, values } = prepared;
                let sql = format!(
                    "UPDATE @.translate_chunks SET {set} WHERE job = $1 AND first = $2 AND last = $3 AND {condition}
                     RETURNING first"
                );
                Ok(!self.query(&sql, values).await?.is_empty())
            }
        }
    }

    async fn retry_failed(&self, id: &str) -> Result<u64> {
        let sql = format!(
            "WITH again AS ({}), opened AS ({} AND EXISTS (SELECT FROM again)) SELECT count(*) FROM again",
            sql::RETRY,
            sql::REOPEN
        );
        Ok(self.run(&sql, &[&id]).await?.first().map_or(0, |row| row.sum(0)))
    }
}

fn as_sql(value: &Value) -> &(dyn ToSql + Sync) {
    match value {
        Value::Integer(number) => number,
        Value::Text(text) => text,
        Value::Bytes(bytes) => bytes,
    }
}

fn convert(row: &tokio_postgres::Row) -> Result<Row> {
    let value = |(index, column): (usize, &Column)| match *column.type_() {
        Type::BYTEA => row.try_get(index).map(Value::Bytes),
        Type::INT8 => row.try_get(index).map(Value::Integer),
        Type::INT4 => {
            let number: Result<Option<i32>, _> = row.try_get(index);
            number.map(|number| Value::Integer(number.map(i64::from)))
        }
        _ => row.try_get(index).map(Value::Text),
    };
    let values: Result<_, tokio_postgres::Error> =
        row.columns().iter().enumerate().map(value).collect();
    values.map(Row).map_err(|error| Error::store(format!("a stored row cannot be parsed: {error}")))
}

/// The columns `first` and `last` of a chunk.
fn columns(run: SegmentRange) -> (i64, i64) {
    (i64::from(run.first), i64::from(run.end))
}
