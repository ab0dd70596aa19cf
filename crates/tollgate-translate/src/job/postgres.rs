//! Jobs in PostgreSQL, for workers on many machines.
//!
//! A worker claims a chunk with `SKIP LOCKED`, so none waits for another, and keeps it for as long as it renews its lease. Whose
//! lease ends is taken to be dead, and its chunks are taken up by others; a fence keeps a worker that comes back from
//! undoing what its successor did. Each verb is one statement, and leases are judged by the server's clock alone.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Row};
use tokio_postgres_rustls::MakeRustlsConnect;
use tollgate::{BoxFuture, Span, Timestamp};

use super::sqlite::{as_json, from_json, integer, natural};
use super::{
    ChunkRecord, Claim, Counts, Hold, Job, JobState, JobStore, NewJob, Next, Run, Step, Used,
};
use crate::error::Error;
use crate::provider::tls_config;

/// How long a claim lives without being renewed.
pub const LEASE_DEFAULT: Span = Span::from_secs(60);

const TABLES: &str = include_str!("postgres.sql");

/// The time in microseconds: the caller's in tests, the server's otherwise.
const NOW: &str = "coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)";

/// Jobs in PostgreSQL, in tables of their own.
pub struct PostgresJobs {
    config: Config,
    schema: String,
    lease: Span,
    by_callers_clock: bool,
    client: Mutex<Option<Arc<Client>>>,
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
        let config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
            Error::invalid(format!(
                "the url of the PostgreSQL server cannot be read ({error}); write it as in \
                 postgresql://user:password@host:5432/database?sslmode=require"
            ))
        })?;
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
            config,
            schema: schema.to_owned(),
            lease: LEASE_DEFAULT,
            by_callers_clock: false,
            client: Mutex::new(None),
        };
        let client = jobs.client().await?;
        client.batch_execute(&jobs.sql(TABLES)).await.map_err(|error| failed(&error))?;
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

    /// The same, judging leases by the clock of whoever calls, for tests.
    #[must_use]
    pub const fn by_callers_clock(mut self) -> Self {
        self.by_callers_clock = true;
        self
    }

    fn sql(&self, text: &str) -> String {
        text.replace('@', &self.schema)
    }

    fn now(&self, now: Timestamp) -> Option<i64> {
        self.by_callers_clock.then(|| integer(now.as_micros()))
    }

    /// The connection, made anew if it broke.
    async fn client(&self) -> Result<Arc<Client>, Error> {
        let kept = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(client) = kept.filter(|client| !client.is_closed()) {
            return Ok(client);
        }
        let tls = MakeRustlsConnect::new(tls_config()?);
        let (client, connection) =
            self.config.connect(tls).await.map_err(|error| failed(&error))?;
        // It ends with the client, and what it failed with every statement says too.
        tokio::spawn(async move { drop(connection.await) });
        let client = Arc::new(client);
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&client));
        Ok(client)
    }

    async fn query(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        let client = self.client().await?;
        client.query(&self.sql(sql), values).await.map_err(|error| failed(&error))
    }

    async fn execute(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        let client = self.client().await?;
        client.execute(&self.sql(sql), values).await.map_err(|error| failed(&error))
    }
}

fn failed(error: &tokio_postgres::Error) -> Error {
    let text = match error.as_db_error() {
        Some(said) => said.message().to_owned(),
        None => error.to_string(),
    };
    Error::store(format!("the jobs in PostgreSQL cannot be used: {text}"))
}

const JOB: &str = "id, name, state, resume_at, why, settings, created_at, started_at, ended_at";

fn read_job(row: &Row) -> Result<Job, Error> {
    let time = |place: usize| row.get::<_, Option<i64>>(place).map(natural);
    let state: String = row.get(2);
    Ok(Job {
        id: row.get(0),
        name: row.get(1),
        state: JobState::read(&state, time(3), row.get(4))?,
        settings: row.get(5),
        created_at: Timestamp::from_micros(time(6).unwrap_or(0)),
        started_at: time(7).map(Timestamp::from_micros),
        ended_at: time(8).map(Timestamp::from_micros),
    })
}

fn place(run: Run) -> (i64, i64) {
    (i64::from(run.first), i64::from(run.end))
}

fn run_of(row: &Row, first: usize) -> Run {
    let number = |place: usize| u32::try_from(row.get::<_, i64>(place)).unwrap_or(u32::MAX);
    Run { first: number(first), end: number(first + 1) }
}

fn count(row: &Row, place: usize) -> u32 {
    u32::try_from(row.get::<_, i32>(place)).unwrap_or(0)
}

const USED: &str = "input = input + $5, output = output + $6, cost = cost + $7, expected = 0";
const MINE: &str = "state IN ('reserved', 'sent') AND fence = $4";
/// A translation is as good from a worker that was given up as from its successor.
const ANYBODYS: &str = "state NOT IN ('done', 'split') AND $4::bigint IS NOT NULL";

impl PostgresJobs {
    async fn claim_next(&self, id: &str, worker: &str, now: Timestamp) -> Result<Next, Error> {
        let sql = format!(
            "WITH clock AS (SELECT {NOW} AS now),
             job AS (SELECT state, resume_at, why FROM @.translate_jobs WHERE id = $2),
             picked AS (
                 SELECT first, last FROM @.translate_chunks, clock
                 WHERE job = $2 AND (SELECT state FROM job) IN ('planned', 'running')
                   AND ((state IN ('pending', 'again') AND due <= now) OR (state IN ('reserved', 'sent') AND lease_until <= now))
                 ORDER BY first LIMIT 1 FOR UPDATE OF translate_chunks SKIP LOCKED
             ),
             taken AS (
                 UPDATE @.translate_chunks c
                 SET state = 'reserved', fence = c.fence + 1, worker = $3, lease_until = now + $4,
                     cost = c.cost + c.expected, expected = 0
                 FROM picked, clock WHERE c.job = $2 AND c.first = picked.first AND c.last = picked.last
                 RETURNING c.first, c.last, c.calls, c.faults, c.passing, c.fence
             )
             SELECT job.state, job.resume_at, job.why, taken.first, taken.last, taken.calls, taken.faults, taken.passing, taken.fence,
                 (SELECT coalesce(sum(cost + expected), 0)::bigint FROM @.translate_chunks WHERE job = $2),
                 (SELECT min(CASE state WHEN 'pending' THEN now WHEN 'again' THEN due ELSE lease_until END)
                  FROM @.translate_chunks, clock WHERE job = $2 AND state IN ('pending', 'again', 'reserved', 'sent'))
             FROM job LEFT JOIN taken ON true"
        );
        let lease = integer(self.lease.as_micros());
        let rows = self.query(&sql, &[&self.now(now), &id, &worker, &lease]).await?;
        let Some(row) = rows.first() else {
            return Err(Error::invalid(format!("there is no job {id:?}")));
        };
        let state: String = row.get(0);
        let state = JobState::read(&state, row.get::<_, Option<i64>>(1).map(natural), row.get(2))?;
        if !matches!(state, JobState::Planned | JobState::Running) {
            return Ok(Next::Halted(state));
        }
        if row.get::<_, Option<i64>>(3).is_none() {
            let later: Option<i64> = row.get(10);
            return Ok(
                later.map_or(Next::Nothing, |at| Next::Later(Timestamp::from_micros(natural(at))))
            );
        }
        Ok(Next::Chunk(Claim {
            job: id.to_owned(),
            run: run_of(row, 3),
            calls: count(row, 5),
            faults: count(row, 6),
            passing: count(row, 7),
            fence: natural(row.get(8)),
            spent: natural(row.get(9)),
        }))
    }

    async fn change(&self, claim: &Claim, step: &Step) -> Result<bool, Error> {
        let ((first, last), fence) = (place(claim.run), integer(claim.fence));
        let whose = if matches!(step, Step::Done { .. }) { ANYBODYS } else { MINE };
        let update = async |set: &str, values: &[&(dyn ToSql + Sync)]| {
            let sql = format!(
                "UPDATE @.translate_chunks SET {set} WHERE job = $1 AND first = $2 AND last = $3 AND {whose}"
            );
            let mut all: Vec<&(dyn ToSql + Sync)> = vec![&claim.job, &first, &last, &fence];
            all.extend_from_slice(values);
            self.execute(&sql, &all).await
        };
        let used = |used: &Used| (integer(used.input), integer(used.output), integer(used.cost));
        let changed = match step {
            Step::Expect { cost } => update("expected = $5", &[&integer(*cost)]).await?,
            Step::Sent { cost } => {
                update("state = 'sent', calls = calls + 1, expected = $5", &[&integer(*cost)])
                    .await?
            }
            Step::Back => update("state = 'pending', expected = 0", &[]).await?,
            Step::Done { texts, warning, used: spent } => {
                let (input, output, cost) = used(spent);
                let set = format!("state = 'done', texts = $8, reason = $9, {USED}");
                update(&set, &[&input, &output, &cost, &as_json(texts), warning]).await?
            }
            Step::Again { at, reason, used: spent, is_fault } => {
                let (input, output, cost) = used(spent);
                let counted = if *is_fault {
                    "faults = faults + 1, passing = 0"
                } else {
                    "passing = passing + 1"
                };
                let set = format!("state = 'again', due = $8, reason = $9, {counted}, {USED}");
                update(&set, &[&input, &output, &cost, &integer(at.as_micros()), reason]).await?
            }
            Step::Failed { reason, used: spent } => {
                let (input, output, cost) = used(spent);
                update(
                    &format!("state = 'failed', reason = $8, {USED}"),
                    &[&input, &output, &cost, reason],
                )
                .await?
            }
            Step::Split { at, reason, used: spent } => {
                let (input, output, cost) = used(spent);
                let sql = format!(
                    "WITH parent AS (
                         UPDATE @.translate_chunks SET state = 'split', reason = $8, {USED}
                         WHERE job = $1 AND first = $2 AND last = $3 AND {MINE} RETURNING first, last
                     )
                     INSERT INTO @.translate_chunks (job, first, last)
                     SELECT $1, first, $9::bigint FROM parent UNION ALL SELECT $1, $9::bigint, last FROM parent"
                );
                let at = i64::from(*at);
                self.execute(
                    &sql,
                    &[&claim.job, &first, &last, &fence, &input, &output, &cost, reason, &at],
                )
                .await?
            }
        };
        Ok(0 < changed)
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

    fn renew<'a>(
        &'a self,
        id: &'a str,
        worker: &'a str,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let sql = format!(
                "UPDATE @.translate_chunks SET lease_until = {NOW} + $4
                 WHERE job = $2 AND worker = $3 AND state IN ('reserved', 'sent')"
            );
            let lease = integer(self.lease.as_micros());
            self.execute(&sql, &[&self.now(now), &id, &worker, &lease]).await.map(drop)
        })
    }

    fn record<'a>(
        &'a self,
        claim: &'a Claim,
        step: &'a Step,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.change(claim, step))
    }

    fn counts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Counts, Error>> {
        Box::pin(async move {
            let sql = "SELECT state, count(*), sum(calls)::bigint, sum(input)::bigint, sum(output)::bigint,
                     sum(cost + expected)::bigint
                 FROM @.translate_chunks WHERE job = $1 GROUP BY state";
            let mut counts = Counts::default();
            for row in self.query(sql, &[&id]).await? {
                let number = |place: usize| natural(row.get(place));
                counts.add(row.get::<_, String>(0).parse()?, number(1));
                counts.calls += number(2);
                counts.input_tokens += number(3);
                counts.output_tokens += number(4);
                counts.cost += number(5);
            }
            Ok(counts)
        })
    }

    fn chunks<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<ChunkRecord>, Error>> {
        Box::pin(async move {
            let sql = "SELECT first, last, state, texts, reason, calls FROM @.translate_chunks
                 WHERE job = $1 AND state <> 'split' ORDER BY first";
            let read = |row: &Row| {
                let texts: Option<String> = row.get(3);
                Ok(ChunkRecord {
                    run: run_of(row, 0),
                    state: row.get::<_, String>(2).parse()?,
                    texts: texts.map(|texts| from_json(&texts)).transpose()?.unwrap_or_default(),
                    reason: row.get(4),
                    calls: count(row, 5),
                })
            };
            self.query(sql, &[&id]).await?.iter().map(read).collect()
        })
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
