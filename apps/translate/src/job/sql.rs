//! The shared part of the stores in SQLite and PostgreSQL: statements, rows, and the verbs that are one statement in both.
//!
//! Statements are written for PostgreSQL, with `@` for the schema; SQLite has `?` for `$` and no schemas.

use std::fmt::Debug;

use async_trait::async_trait;
use tollgate::{Span, Timestamp};

use super::{
    CallUsage, ChunkRecord, ChunkUpdate, Claim, ClaimOutcome, Counts, Drafts, Job, JobGuard,
    JobState, JobStore, NewJob, SegmentRange, parse_texts,
};
use crate::error::{Error, Result};

/// The columns of a job, as [`parse_job`] takes them.
const JOB: &str = "id, name, state, resume_at, why, settings, created_at, started_at, ended_at";

/// Makes failed chunks pending.
pub(super) const RETRY: &str =
    "UPDATE @.translate_chunks SET state = 'pending', due = 0, faults = 0, passing = 0
     WHERE job = $1 AND state = 'failed' RETURNING first";

/// Makes the job of such chunks running.
pub(super) const REOPEN: &str = "UPDATE @.translate_jobs SET state = 'running', ended_at = NULL
     WHERE id = $1 AND state <> 'cancelled'";

/// A value of a statement or a row. NULL is a `Text` in rows of SQLite.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Integer(Option<i64>),
    Text(Option<String>),
    Bytes(Vec<u8>),
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Integer(Some(integer(number)))
    }
}

impl From<Timestamp> for Value {
    fn from(time: Timestamp) -> Self {
        time.as_micros().into()
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(Some(text.to_owned()))
    }
}

/// A row of a result.
#[derive(Debug)]
pub(super) struct Row(pub(super) Vec<Value>);

impl Row {
    pub(super) fn number(&self, column: usize) -> Option<u64> {
        match self.0.get(column) {
            Some(Value::Integer(Some(number))) => Some(u64::try_from(*number).unwrap_or(0)),
            _ => None,
        }
    }

    /// Returns a number, or 0 for NULL.
    pub(super) fn sum(&self, column: usize) -> u64 {
        self.number(column).unwrap_or(0)
    }

    fn small(&self, column: usize) -> u32 {
        u32::try_from(self.sum(column)).unwrap_or(u32::MAX)
    }

    fn text(&self, column: usize) -> Option<&str> {
        match self.0.get(column) {
            Some(Value::Text(text)) => text.as_deref(),
            _ => None,
        }
    }

    fn string(&self, column: usize) -> Result<String> {
        let text = self.text(column).map(str::to_owned);
        text.ok_or_else(|| Error::store("a stored row has no text where one is required"))
    }

    /// Returns the state of a job, from the columns `state`, `resume_at` and `why`.
    pub(super) fn job_state(&self, column: usize) -> Result<JobState> {
        let why = self.text(column + 2).map(str::to_owned);
        JobState::parse(&self.string(column)?, self.number(column + 1), why)
    }

    fn segments(&self, column: usize) -> SegmentRange {
        SegmentRange { first: self.small(column), end: self.small(column + 1) }
    }

    /// Returns a claim, from the columns `first`, `last`, `calls`, `faults`, `passing`, `fence` and `texts`; `None` if they are NULL.
    pub(super) fn claim(
        &self,
        column: usize,
        job: &str,
        spent: u64,
        under_way: u64,
    ) -> Result<Option<Claim>> {
        if self.number(column).is_none() {
            return Ok(None);
        }
        let run = self.segments(column);
        Ok(Some(Claim {
            job: job.to_owned(),
            run,
            calls: self.small(column + 2),
            faults: self.small(column + 3),
            transient: self.small(column + 4),
            fence: self.sum(column + 5),
            spent,
            under_way,
            drafts: Drafts::from_json(self.text(column + 6), run.len())?,
        }))
    }
}

/// A store of jobs in SQL. The verbs that are written differently for each database are as in [`JobStore`].
#[async_trait]
pub(super) trait SqlStore: Debug + Send + Sync + 'static {
    /// Runs a statement.
    async fn query(&self, sql: &str, values: Vec<Value>) -> Result<Vec<Row>>;
    async fn create(&self, job: &NewJob, now: Timestamp) -> Result<bool>;
    async fn lock(&self, id: &str) -> Result<Box<dyn JobGuard>>;
    async fn is_active(&self, id: &str, now: Timestamp) -> Result<bool>;
    fn lease(&self) -> Option<Span>;
    async fn claim(&self, id: &str, worker: &str, now: Timestamp) -> Result<ClaimOutcome>;
    async fn renew(&self, claim: &Claim, now: Timestamp) -> Result<()>;
    async fn update(&self, claim: &Claim, update: &ChunkUpdate) -> Result<bool>;
    async fn retry_failed(&self, id: &str) -> Result<u64>;
}

#[async_trait]
impl<S: SqlStore> JobStore for S {
    async fn create(&self, job: &NewJob, now: Timestamp) -> Result<bool> {
        job.check()?;
        SqlStore::create(self, job, now).await
    }

    async fn job(&self, id: &str) -> Result<Option<Job>> {
        let sql = format!("SELECT {JOB} FROM @.translate_jobs WHERE id = $1");
        self.query(&sql, vec![id.into()]).await?.first().map(parse_job).transpose()
    }

    async fn jobs(&self) -> Result<Vec<Job>> {
        let sql = format!("SELECT {JOB} FROM @.translate_jobs ORDER BY created_at DESC, id");
        self.query(&sql, Vec::new()).await?.iter().map(parse_job).collect()
    }

    async fn document(&self, id: &str) -> Result<Option<Vec<u8>>> {
        let sql = "SELECT document FROM @.translate_jobs WHERE id = $1";
        let document =
            self.query(sql, vec![id.into()]).await?.pop().and_then(|mut row| row.0.pop());
        Ok(document.and_then(|value| match value {
            Value::Bytes(bytes) => Some(bytes),
            Value::Integer(_) | Value::Text(_) => None,
        }))
    }

    async fn set_state(&self, id: &str, state: &JobState, now: Timestamp) -> Result<bool> {
        let sql = "UPDATE @.translate_jobs SET state = $2, resume_at = $3, why = $4,
                 started_at = CASE WHEN $2 = 'running' THEN coalesce(started_at, $5) ELSE started_at END,
                 ended_at = CASE WHEN $6::bigint = 1 THEN $5 ELSE NULL END
             WHERE id = $1 AND state <> 'cancelled' RETURNING id";
        let (resume_at, why) = state.pause();
        let resume_at = resume_at.map(|at| integer(at.as_micros()));
        let (resume_at, why) = (Value::Integer(resume_at), Value::Text(why.map(str::to_owned)));
        let is_over = u64::from(state.is_over()).into();
        let values = vec![id.into(), state.word().into(), resume_at, why, now.into(), is_over];
        Ok(!self.query(sql, values).await?.is_empty())
    }

    async fn set_settings(&self, id: &str, settings: &str) -> Result<()> {
        let sql = "UPDATE @.translate_jobs SET settings = $2 WHERE id = $1";
        self.query(sql, vec![id.into(), settings.into()]).await.map(drop)
    }

    async fn lock(&self, id: &str) -> Result<Box<dyn JobGuard>> {
        SqlStore::lock(self, id).await
    }

    async fn is_active(&self, id: &str, now: Timestamp) -> Result<bool> {
        SqlStore::is_active(self, id, now).await
    }

    fn lease(&self) -> Option<Span> {
        SqlStore::lease(self)
    }

    async fn claim(&self, id: &str, worker: &str, now: Timestamp) -> Result<ClaimOutcome> {
        SqlStore::claim(self, id, worker, now).await
    }

    async fn renew(&self, claim: &Claim, now: Timestamp) -> Result<()> {
        SqlStore::renew(self, claim, now).await
    }

    async fn update(&self, claim: &Claim, update: &ChunkUpdate) -> Result<bool> {
        SqlStore::update(self, claim, update).await
    }

    async fn counts(&self, id: &str) -> Result<Counts> {
        let sql =
            "SELECT state, count(*), sum(calls)::bigint, sum(input)::bigint, sum(output)::bigint,
                 sum(cost + expected)::bigint
             FROM @.translate_chunks WHERE job = $1 GROUP BY state";
        let mut counts = Counts::default();
        for row in self.query(sql, vec![id.into()]).await? {
            counts.add(row.string(0)?.parse()?, row.sum(1));
            counts.calls += row.sum(2);
            counts.input_tokens += row.sum(3);
            counts.output_tokens += row.sum(4);
            counts.cost += row.sum(5);
        }
        Ok(counts)
    }

    async fn chunks(&self, id: &str) -> Result<Vec<ChunkRecord>> {
        let sql = "SELECT first, last, state, texts, reason, calls, due FROM @.translate_chunks
             WHERE job = $1 AND state <> 'split' ORDER BY first";
        let parse = |row: &Row| {
            let (run, state) = (row.segments(0), row.string(2)?.parse()?);
            let drafts = Drafts::from_json(row.text(3), run.len())?;
            let reason = row.text(4).map(str::to_owned);
            Ok(ChunkRecord::new(run, state, Some(drafts), reason, row.small(5), row.sum(6)))
        };
        self.query(sql, vec![id.into()]).await?.iter().map(parse).collect()
    }

    async fn retry_failed(&self, id: &str) -> Result<u64> {
        SqlStore::retry_failed(self, id).await
    }

    async fn cached(&self, hash: &[u8; 32]) -> Result<Option<Vec<String>>> {
        let sql = "SELECT texts FROM @.translate_cache WHERE hash = $1";
        let rows = self.query(sql, vec![Value::Bytes(hash.to_vec())]).await?;
        rows.first().map(|row| parse_texts(&row.string(0)?)).transpose()
    }

    async fn cache(&self, hash: &[u8; 32], texts: &[String], now: Timestamp) -> Result<()> {
        let sql = "INSERT INTO @.translate_cache (hash, texts, at) VALUES ($1, $2, $3)
             ON CONFLICT (hash) DO UPDATE SET texts = excluded.texts, at = excluded.at";
        let texts = Value::Text(Some(serde_json::Value::from(texts).to_string()));
        self.query(sql, vec![Value::Bytes(hash.to_vec()), texts, now.into()]).await.map(drop)
    }
}

fn parse_job(row: &Row) -> Result<Job> {
    let time = |column| row.number(column).map(Timestamp::from_micros);
    Ok(Job {
        id: row.string(0)?,
        name: row.string(1)?,
        state: row.job_state(2)?,
        settings: row.string(5)?,
        created_at: time(6).unwrap_or_default(),
        started_at: time(7),
        ended_at: time(8),
    })
}

/// An update of one chunk, whose job, first, last and fence are `$1` to `$4`.
#[derive(Debug)]
pub(super) struct Update {
    pub(super) set: String,
    /// The condition: the claim is valid. A translation is as good from an expired worker as from its successor.
    pub(super) condition: &'static str,
    /// From `$1` on.
    pub(super) values: Vec<Value>,
}

pub(super) fn update(claim: &Claim, update: &ChunkUpdate) -> Update {
    let finished = |set: &str, used: &CallUsage, more: Vec<Value>| {
        let used = [used.input, used.output, used.cost].map(Value::from);
        let set = format!(
            "{set}, input = input + $5, output = output + $6, cost = cost + $7, expected = 0"
        );
        (set, used.into_iter().chain(more).collect())
    };
    let (set, values) = match update {
        ChunkUpdate::Sent { cost, .. } => {
            let calls = u64::from(claim.calls.saturating_add(1));
            let values = vec![Value::from(*cost), calls.into()];
            ("state = 'sent', expected = $5, calls = $6::bigint".to_owned(), values)
        }
        ChunkUpdate::Returned => ("state = 'pending', expected = 0".to_owned(), Vec::new()),
        ChunkUpdate::Done { drafts, used } => {
            let texts = vec![Value::Text(drafts.to_json())];
            finished("state = 'done', texts = $8, reason = NULL", used, texts)
        }
        ChunkUpdate::Again { at, reason, drafts, used, is_fault } => {
            let counted = match is_fault {
                true => "faults = faults + 1, passing = 0",
                false => "passing = passing + 1",
            };
            let set = format!("state = 'again', due = $8, reason = $9, texts = $10, {counted}");
            finished(
                &set,
                used,
                vec![(*at).into(), reason.as_str().into(), Value::Text(drafts.to_json())],
            )
        }
        ChunkUpdate::Failed { reason, used } => {
            finished("state = 'failed', reason = $8", used, vec![reason.as_str().into()])
        }
        ChunkUpdate::Split { reason, used, .. } => {
            finished("state = 'split', reason = $8", used, vec![reason.as_str().into()])
        }
    };
    let condition = match update {
        ChunkUpdate::Done { .. } => "state NOT IN ('done', 'split') AND $4::bigint IS NOT NULL",
        _ => "state IN ('reserved', 'sent') AND fence = $4",
    };
    let SegmentRange { first, end } = claim.run;
    let mut all = vec![claim.job.as_str().into()];
    all.extend([u64::from(first), u64::from(end), claim.fence].map(Value::from));
    all.extend(values);
    Update { set, condition, values: all }
}

pub(super) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
