//! Jobs in PostgreSQL, for workers on many machines.
//!
//! A worker claims a chunk with `SKIP LOCKED`, so none waits for another, and keeps it for as long as it renews its lease. Whose
//! lease ends is taken to be dead, and its chunks are taken up by others; a fence keeps a worker that comes back from
//! undoing what its successor did. Each verb is one statement, and leases are judged by the server's clock alone.

mod chunks;
mod connection;
mod rows;

use std::fmt;
use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tollgate::{BoxFuture, Clock, Span, Timestamp};

use super::sqlite::{as_json, from_json, integer, natural};
use super::{
    ChunkRecord, Claim, Counts, Hold, Job, JobState, JobStore, NewJob, Next, Patience, Step,
};
use crate::error::Error;
use connection::Connection;
use rows::{JOB, place, read_job};

/// How long a claim lives without being renewed.
pub const LEASE_DEFAULT: Span = Span::from_secs(60);

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
    /// Without the address, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresJobs").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// Nothing is held: claims end by themselves.
#[derive(Debug)]
struct Nothing;

impl Hold for Nothing {}

impl PostgresJobs {
    /// The jobs in `schema` of the server that `url` names, as in `postgresql://user:password@host/database`. Tables are made
    /// if they are missing.
    ///
    /// # Errors
    /// If the address or the schema is wrong, the server cannot be reached, or its tables are of a newer version.
    pub async fn open(url: &str, schema: &str) -> Result<Self, Error> {
        let connection = Connection::new(url)?;
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if schema.is_empty()
            || !schema.chars().all(is_part)
            || schema.starts_with(|c: char| c.is_ascii_digit())
        {
            return Err(Error::invalid(format!(
                "{schema:?} is no name of a schema here; use lower-case letters, digits and _, as in tollgate"
            )));
        }
        let jobs = Self {
            connection,
            schema: schema.to_owned(),
            lease: LEASE_DEFAULT,
            by_callers_clock: false,
        };
        jobs.connection.begin(&jobs.sql(TABLES)).await?;
        let rows = jobs.query("SELECT max(version) FROM @.translate_versions", &[]).await?;
        let version: Option<i32> = rows.first().and_then(|row| row.get(0));
        if version != Some(1) {
            return Err(Error::store(format!(
                "the tables of jobs in the schema {schema:?} are of version {}, and this program knows 1; use a newer program",
                version.unwrap_or(0)
            )));
        }
        Ok(jobs)
    }

    /// The same, with claims that live so long.
    #[must_use]
    pub const fn with_lease(mut self, lease: Span) -> Self {
        self.lease = lease;
        self
    }

    /// How long calls wait for a server that is away, 10 s, and whether it is.
    #[must_use]
    pub const fn patience(&self) -> &Patience {
        &self.connection.patience
    }

    /// The same, judging leases by the clock of whoever calls, for tests.
    #[must_use]
    pub const fn by_callers_clock(mut self) -> Self {
        self.by_callers_clock = true;
        self
    }

    /// The same, with timeouts on `clock`, for tests.
    #[must_use]
    pub fn timed_by(mut self, clock: Arc<dyn Clock>) -> Self {
        self.connection.timer = clock;
        self
    }

    fn sql(&self, text: &str) -> String {
        text.replace('@', &self.schema)
    }

    fn now(&self, now: Timestamp) -> Option<i64> {
        self.by_callers_clock.then(|| integer(now.as_micros()))
    }

    async fn query(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.connection.query(&self.sql(sql), values).await
    }

    async fn execute(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        self.connection.execute(&self.sql(sql), values).await
    }
}

impl JobStore for PostgresJobs {
    fn create<'a>(&'a self, job: &'a NewJob, now: Timestamp) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            job.check()?;
            let (first, last): (Vec<i64>, Vec<i64>) =
                job.chunks.iter().map(|run| place(*run)).unzip();
            let sql = "WITH made AS (
                     INSERT INTO @.translate_jobs (id, name, state, settings, document, created_at)
                     VALUES ($1, $2, 'planned', $3, $4, $5) ON CONFLICT DO NOTHING RETURNING id
                 ), cut AS (
                     INSERT INTO @.translate_chunks (job, first, last)
                     SELECT made.id, run.first, run.last FROM made, unnest($6::bigint[], $7::bigint[]) AS run (first, last)
                 )
                 SELECT id FROM made";
            let made = integer(now.as_micros());
            let values: [&(dyn ToSql + Sync); 7] =
                [&job.id, &job.name, &job.settings, &job.document, &made, &first, &last];
            Ok(!self.query(sql, &values).await?.is_empty())
        })
    }

    fn job<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Job>, Error>> {
        Box::pin(async move {
            let sql = format!("SELECT {JOB} FROM @.translate_jobs WHERE id = $1");
            self.query(&sql, &[&id]).await?.first().map(read_job).transpose()
        })
    }

    fn jobs(&self) -> BoxFuture<'_, Result<Vec<Job>, Error>> {
        Box::pin(async move {
            let sql = format!("SELECT {JOB} FROM @.translate_jobs ORDER BY created_at DESC, id");
            self.query(&sql, &[]).await?.iter().map(read_job).collect()
        })
    }

    fn document<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Error>> {
        Box::pin(async move {
            let rows =
                self.query("SELECT document FROM @.translate_jobs WHERE id = $1", &[&id]).await?;
            Ok(rows.first().map(|row| row.get(0)))
        })
    }

    fn set_state<'a>(
        &'a self,
        id: &'a str,
        state: &'a JobState,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let (resume_at, why) = match state {
                JobState::Paused { resume_at, why } => {
                    (resume_at.map(|at| integer(at.as_micros())), Some(why.as_str()))
                }
                _ => (None, None),
            };
            let sql = "UPDATE @.translate_jobs SET state = $2, resume_at = $3, why = $4,
                     started_at = CASE WHEN $2 = 'running' THEN coalesce(started_at, $5) ELSE started_at END,
                     ended_at = CASE WHEN $6 THEN $5 ELSE NULL END
                 WHERE id = $1 AND state <> 'cancelled'";
            let (word, at, over) = (state.word(), integer(now.as_micros()), state.is_over());
            Ok(0 < self.execute(sql, &[&id, &word, &resume_at, &why, &at, &over]).await?)
        })
    }

    fn set_settings<'a>(
        &'a self,
        id: &'a str,
        settings: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let sql = "UPDATE @.translate_jobs SET settings = $2 WHERE id = $1";
            self.execute(sql, &[&id, &settings]).await.map(drop)
        })
    }

    fn enter<'a>(&'a self, _id: &'a str) -> BoxFuture<'a, Result<Box<dyn Hold>, Error>> {
        Box::pin(std::future::ready(Ok(Box::new(Nothing) as Box<dyn Hold>)))
    }

    fn is_worked_on<'a>(
        &'a self,
        id: &'a str,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.has_claims(id, now))
    }

    fn lease(&self) -> Option<Span> {
        Some(self.lease)
    }

    fn claim<'a>(
        &'a self,
        id: &'a str,
        worker: &'a str,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Next, Error>> {
        Box::pin(self.claim_next(id, worker, now))
    }

    fn renew<'a>(&'a self, claim: &'a Claim, now: Timestamp) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.renew_claim(claim, now))
    }

    fn record<'a>(
        &'a self,
        claim: &'a Claim,
        step: &'a Step,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.change(claim, step))
    }

    fn counts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Counts, Error>> {
        Box::pin(self.count(id))
    }

    fn chunks<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<ChunkRecord>, Error>> {
        Box::pin(self.read_chunks(id))
    }

    fn retry_failed<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(async move {
            let sql = "WITH again AS (
                     UPDATE @.translate_chunks SET state = 'pending', due = 0, faults = 0, passing = 0
                     WHERE job = $1 AND state = 'failed' RETURNING first
                 ), opened AS (
                     UPDATE @.translate_jobs SET state = 'running', ended_at = NULL
                     WHERE id = $1 AND state <> 'cancelled' AND EXISTS (SELECT FROM again)
                 )
                 SELECT count(*) FROM again";
            let rows = self.query(sql, &[&id]).await?;
            Ok(rows.first().map_or(0, |row| natural(row.get(0))))
        })
    }

    fn recall<'a>(
        &'a self,
        hash: &'a [u8; 32],
    ) -> BoxFuture<'a, Result<Option<Vec<String>>, Error>> {
        Box::pin(async move {
            let sql = "SELECT texts FROM @.translate_cache WHERE hash = $1";
            let rows = self.query(sql, &[&hash.as_slice()]).await?;
            rows.first().map(|row| from_json(&row.get::<_, String>(0))).transpose()
        })
    }

    fn remember<'a>(
        &'a self,
        hash: &'a [u8; 32],
        texts: &'a [String],
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let sql = "INSERT INTO @.translate_cache (hash, texts, at) VALUES ($1, $2, $3)
                 ON CONFLICT (hash) DO UPDATE SET texts = excluded.texts, at = excluded.at";
            let values: [&(dyn ToSql + Sync); 3] =
                [&hash.as_slice(), &as_json(texts), &integer(now.as_micros())];
            self.execute(sql, &values).await.map(drop)
        })
    }
}
