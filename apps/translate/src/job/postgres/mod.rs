//! Jobs in PostgreSQL, for workers on many machines.
//!
//! A worker claims a chunk with `SKIP LOCKED`, so that no worker waits for another, and holds it as long as it renews its lease. When
//! a lease expires, other workers take the chunk; the fencing token keeps the expired worker from undoing what its successor did.
//! Each verb is one statement, and leases are measured by the server's clock alone.

mod connection;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tollgate::{Clock, Span, Timestamp};

use super::sql::{self, CHUNK, JOB, Update, Value, integer, natural};
use super::{
    ChunkPart, ChunkRecord, ChunkUpdate, Claim, ClaimOutcome, Counts, Drafts, Job, JobGuard,
    JobState, JobStore, LEASE_DEFAULT, NewJob, OutageMonitor, SegmentRange, no_such_job,
    parse_texts,
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
        let rows = jobs.query("SELECT max(version) FROM @.translate_versions", &[]).await?;
        let version: Option<i32> = rows.first().and_then(|row| row.get(0));
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

    async fn query(&self, sql: &str, values: &Values<'_>) -> Result<Vec<Row>> {
        self.connection.query(&self.sql(sql), values).await
    }

    async fn execute(&self, sql: &str, values: &Values<'_>) -> Result<u64> {
        self.connection.execute(&self.sql(sql), values).await
    }

    /// Sends a chunk if the budget suffices. Two workers must not both reserve the last of it: each reservation increments a turn,
    /// and a worker whose turn is outdated reads the sum again.
    async fn send_within(
        &self,
        key: &Values<'_>,
        update: &Update,
        cost: u64,
        most: u64,
    ) -> Result<bool> {
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
             SELECT EXISTS (SELECT FROM turn), EXISTS (SELECT FROM sent)",
            update.set, update.condition
        );
        loop {
            let rows = self.query(look, &key[..3]).await?;
            let Some(row) = rows.first() else { return Ok(false) };
            let (turn, all): (i64, i64) = (row.get(0), row.get(1));
            if most < natural(all).saturating_add(cost) {
                return Ok(false);
            }
            let values: Vec<_> = with_values(key, update).into_iter().chain([&turn as _]).collect();
            let rows = self.query(&take, &values).await?;
            if let Some(row) = rows.first().filter(|row| row.get(0)) {
                return Ok(row.get(1));
            }
        }
    }

    /// Replaces a chunk by `parts`.
    async fn split(&self, key: &Values<'_>, update: &Update, parts: &[ChunkPart]) -> Result<u64> {
        let sql = format!(
            "WITH parent AS (
                 UPDATE @.translate_chunks SET {} WHERE job = $1 AND first = $2 AND last = $3 AND {} RETURNING first
             )
             INSERT INTO @.translate_chunks (job, first, last, state, texts, reason)
             SELECT $1, part.first, part.last, part.state, part.texts, part.reason
             FROM parent, unnest($9::bigint[], $10::bigint[], $11::text[], $12::text[], $13::text[])
                 AS part (first, last, state, texts, reason)",
            update.set, update.condition
        );
        let (first, last): (Vec<i64>, Vec<i64>) =
            parts.iter().map(|part| columns(part.run)).unzip();
        let states: Vec<&str> = parts.iter().map(|part| part.state().word()).collect();
        let texts: Vec<Option<String>> = parts.iter().map(|part| part.drafts.to_json()).collect();
        let failed: Vec<Option<&str>> = parts.iter().map(|part| part.failed.as_deref()).collect();
        let arrays: [&(dyn ToSql + Sync); 5] = [&first, &last, &states, &texts, &failed];
        let values: Vec<_> = with_values(key, update).into_iter().chain(arrays).collect();
        self.execute(&sql, &values).await
    }
}

#[async_trait]
impl JobStore for PostgresJobs {
    async fn create(&self, job: &NewJob, now: Timestamp) -> Result<bool> {
        job.check()?;
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
        Ok(!self.query(sql, values).await?.is_empty())
    }

    async fn job(&self, id: &str) -> Result<Option<Job>> {
        let sql = format!("SELECT {JOB} FROM @.translate_jobs WHERE id = $1");
        self.query(&sql, &[&id]).await?.first().map(parse_job).transpose()
    }

    async fn jobs(&self) -> Result<Vec<Job>> {
        let sql = format!("SELECT {JOB} FROM @.translate_jobs ORDER BY created_at DESC, id");
        self.query(&sql, &[]).await?.iter().map(parse_job).collect()
    }

    async fn document(&self, id: &str) -> Result<Option<Vec<u8>>> {
        let sql = "SELECT document FROM @.translate_jobs WHERE id = $1";
        Ok(self.query(sql, &[&id]).await?.first().map(|row| row.get(0)))
    }

    async fn set_state(&self, id: &str, state: &JobState, now: Timestamp) -> Result<bool> {
        let (resume_at, why) = state.pause();
        let resume_at = resume_at.map(|at| integer(at.as_micros()));
        let sql = format!("UPDATE @.translate_jobs {}", sql::SET_STATE);
        let (word, now, is_over) = (state.word(), integer(now.as_micros()), state.is_over());
        Ok(0 < self.execute(&sql, &[&id, &word, &resume_at, &why, &now, &is_over]).await?)
    }

    async fn set_settings(&self, id: &str, settings: &str) -> Result<()> {
        let sql = "UPDATE @.translate_jobs SET settings = $2 WHERE id = $1";
        self.execute(sql, &[&id, &settings]).await.map(drop)
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
        Ok(!self.query(&sql, values).await?.is_empty())
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
             SELECT job.state, job.resume_at, job.why, taken.first, taken.last, taken.calls, taken.faults, taken.passing, taken.fence,
                 (SELECT coalesce(sum(cost + expected), 0)::bigint FROM @.translate_chunks WHERE job = $2),
                 (SELECT coalesce(sum(expected), 0)::bigint FROM @.translate_chunks, clock WHERE job = $2 AND now < lease_until),
                 (SELECT min(CASE state WHEN 'pending' THEN now WHEN 'again' THEN due ELSE lease_until END)
                  FROM @.translate_chunks, clock WHERE job = $2 AND state IN ('pending', 'again', 'reserved', 'sent')),
                 taken.texts
             FROM job LEFT JOIN taken ON true"
        );
        let rows = self.query(&sql, &[&self.now(now), &id, &worker, &self.lease_micros()]).await?;
        let row = rows.first().ok_or_else(|| no_such_job(id))?;
        let resume_at = row.get::<_, Option<i64>>(1).map(natural);
        let state = JobState::parse(row.get(0), resume_at, row.get(2))?;
        if !matches!(state, JobState::Planned | JobState::Running) {
            return Ok(ClaimOutcome::Halted(state));
        }
        if row.get::<_, Option<i64>>(3).is_none() {
            return Ok(ClaimOutcome::later(row.get::<_, Option<i64>>(11).map(natural)));
        }
        let (all, under_way) = (natural(row.get(9)), natural(row.get(10)));
        let run = segments(row, 3);
        Ok(ClaimOutcome::Chunk(Claim {
            job: id.to_owned(),
            run,
            calls: count(row, 5),
            faults: count(row, 6),
            transient: count(row, 7),
            fence: natural(row.get(8)),
            spent: all - under_way,
            under_way,
            drafts: Drafts::from_json(row.get(12), run.len())?,
        }))
    }

    async fn renew(&self, claim: &Claim, now: Timestamp) -> Result<()> {
        let sql = format!(
            "UPDATE @.translate_chunks SET lease_until = {NOW} + $6
             WHERE job = $2 AND first = $3 AND last = $4 AND state IN ('reserved', 'sent') AND fence = $5"
        );
        let ((first, last), fence) = (columns(claim.run), integer(claim.fence));
        let (now, lease) = (self.now(now), self.lease_micros());
        self.execute(&sql, &[&now, &claim.job, &first, &last, &fence, &lease]).await.map(drop)
    }

    async fn update(&self, claim: &Claim, update: &ChunkUpdate) -> Result<bool> {
        let ((first, last), fence) = (columns(claim.run), integer(claim.fence));
        let key: &Values<'_> = &[&claim.job, &first, &last, &fence];
        let prepared = sql::update(claim, update);
        let changed = match update {
            ChunkUpdate::Sent { cost, most: Some(most) } => {
                return self.send_within(key, &prepared, *cost, *most).await;
            }
            ChunkUpdate::Split { parts, .. } => self.split(key, &prepared, parts).await?,
            _ => {
                let Update { set, condition, .. } = &prepared;
                let sql = format!(
                    "UPDATE @.translate_chunks SET {set} WHERE job = $1 AND first = $2 AND last = $3 AND {condition}"
                );
                self.execute(&sql, &with_values(key, &prepared)).await?
            }
        };
        Ok(0 < changed)
    }

    async fn counts(&self, id: &str) -> Result<Counts> {
        let sql =
            "SELECT state, count(*), sum(calls)::bigint, sum(input)::bigint, sum(output)::bigint,
                 sum(cost + expected)::bigint
             FROM @.translate_chunks WHERE job = $1 GROUP BY state";
        let mut counts = Counts::default();
        for row in self.query(sql, &[&id]).await? {
            let number = |column: usize| natural(row.get(column));
            counts.add(row.get::<_, &str>(0).parse()?, number(1));
            counts.calls += number(2);
            counts.input_tokens += number(3);
            counts.output_tokens += number(4);
            counts.cost += number(5);
        }
        Ok(counts)
    }

    async fn chunks(&self, id: &str) -> Result<Vec<ChunkRecord>> {
        let sql = format!(
            "SELECT {CHUNK} FROM @.translate_chunks WHERE job = $1 AND state <> 'split' ORDER BY first"
        );
        let parse = |row: &Row| {
            let run = segments(row, 0);
            let drafts = Drafts::from_json(row.get(3), run.len())?;
            let (state, due) = (row.get::<_, &str>(2).parse()?, natural(row.get(6)));
            Ok(ChunkRecord::new(run, state, Some(drafts), row.get(4), count(row, 5), due))
        };
        self.query(&sql, &[&id]).await?.iter().map(parse).collect()
    }

    async fn retry_failed(&self, id: &str) -> Result<u64> {
        let sql = format!(
            "WITH again AS (UPDATE @.translate_chunks {} RETURNING first),
             opened AS (UPDATE @.translate_jobs {} AND EXISTS (SELECT FROM again))
             SELECT count(*) FROM again",
            sql::RETRY,
            sql::REOPEN
        );
        let rows = self.query(&sql, &[&id]).await?;
        Ok(rows.first().map_or(0, |row| natural(row.get(0))))
    }

    async fn cached(&self, hash: &[u8; 32]) -> Result<Option<Vec<String>>> {
        let sql = "SELECT texts FROM @.translate_cache WHERE hash = $1";
        let rows = self.query(sql, &[&hash.as_slice()]).await?;
        rows.first().map(|row| parse_texts(row.get(0))).transpose()
    }

    async fn cache(&self, hash: &[u8; 32], texts: &[String], now: Timestamp) -> Result<()> {
        let sql = "INSERT INTO @.translate_cache (hash, texts, at) VALUES ($1, $2, $3)
             ON CONFLICT (hash) DO UPDATE SET texts = excluded.texts, at = excluded.at";
        let (texts, now) = (serde_json::Value::from(texts).to_string(), integer(now.as_micros()));
        self.execute(sql, &[&hash.as_slice(), &texts, &now]).await.map(drop)
    }
}

/// `key` followed by the values of `update`.
fn with_values<'a>(key: &Values<'a>, update: &'a Update) -> Vec<&'a (dyn ToSql + Sync)> {
    let value = |value: &'a Value| match value {
        Value::Integer(number) => number as &(dyn ToSql + Sync),
        Value::Text(text) => text,
    };
    key.iter().copied().chain(update.values.iter().map(value)).collect()
}

fn parse_job(row: &Row) -> Result<Job> {
    let micros = |column: usize| row.get::<_, Option<i64>>(column).map(natural);
    let time = |column: usize| micros(column).map(Timestamp::from_micros);
    Ok(Job {
        id: row.get(0),
        name: row.get(1),
        state: JobState::parse(row.get(2), micros(3), row.get(4))?,
        settings: row.get(5),
        created_at: time(6).unwrap_or_default(),
        started_at: time(7),
        ended_at: time(8),
    })
}

/// The columns `first` and `last` of a chunk.
fn columns(run: SegmentRange) -> (i64, i64) {
    (i64::from(run.first), i64::from(run.end))
}

fn segments(row: &Row, first: usize) -> SegmentRange {
    let number = |column: usize| u32::try_from(row.get::<_, i64>(column)).unwrap_or(u32::MAX);
    SegmentRange { first: number(first), end: number(first + 1) }
}

fn count(row: &Row, column: usize) -> u32 {
    u32::try_from(row.get::<_, i32>(column)).unwrap_or(0)
}
