//! Jobs in a DynamoDB table, so that workers and functions on AWS need no database server.
//!
//! - The table has the keys `pk` and `sk` and is billed per request. A missing table is created, if the credentials allow it.
//! - Workers and functions need `dynamodb:GetItem`, `PutItem`, `UpdateItem`, `DeleteItem` and `Query`; creators of jobs also need
//!   `BatchWriteItem`, and `CreateTable`, `DescribeTable` and `UpdateTimeToLive` for a missing table.
//! - DynamoDB has no clock: leases are measured by the clocks of the workers, which must agree within a few seconds. A worker whose clock is
//!   ahead by more than a lease takes chunks from others, and their calls are paid twice; the fencing token prevents anything worse.

mod chunk;
mod item;
mod table;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::job::{
    ChunkPart, ChunkRecord, ChunkState, ChunkUpdate, Claim, ClaimOutcome, Counts, Drafts, Job,
    JobGuard, JobState, JobStore, LEASE_DEFAULT, NewJob, no_such_job, parse_texts,
};
use crate::{Error, ErrorKind, Result};
use async_trait::async_trait;
use tollgate::{Span, Timestamp};
use tollgate_telemetry::sinks::aws::AwsOptions;

use chunk::Chunk;
use item::{Change, Item, Key, integer, number, optional, string, text};
use table::{CONTENDED, PIECE_BYTES_MAX, Table, TransactionOutcome, join_blob, retry, unusable};

/// The longest settings of a job: an item takes 400 KB, and has other attributes besides.
pub const SETTINGS_BYTES_MAX: usize = 300_000;

/// How long an answer stays in the cache.
pub const CACHE_TTL: Span = Span::from_hours(24 * 90);

/// The partition of all jobs.
const JOBS: &str = "jobs";

/// Jobs in a DynamoDB table.
///
/// ```text
/// pk                sk               item
/// jobs              JOB              state, settings, times, `body`, `document` (a blob)
/// chunks#BODY       FIRST-END        state, lease, fence, counts, cost, `texts` (a blob)
/// texts#BODY        BLOB#PIECE       a piece of a translation
/// document#BODY     BLOB#PIECE       a piece of the document
/// purse#BODY        purse            `turn`, which grows with each reservation of money
/// cache#HASH        texts            an answer of the provider, until `ttl`
/// ```
///
/// A job's chunks and texts are under a random `body`, and its own item is written last. A creator that dies leaves items that
/// no job refers to, and of two creators of one job the slower changes nothing.
#[derive(Debug)]
pub struct DynamoDbJobs {
    table: Table,
    lease: Span,
    /// The `body` of each job that was read. It never changes.
    bodies: Mutex<HashMap<String, Arc<str>>>,
}

impl DynamoDbJobs {
    /// Opens the jobs in `table`. A missing table is created.
    ///
    /// # Errors
    /// If no region is set, the table cannot be used or created, or it is of a newer version.
    pub async fn open(table: &str, options: &AwsOptions) -> Result<Self> {
        let table = Table::open(table, options).await?;
        Ok(Self { table, lease: LEASE_DEFAULT, bodies: Mutex::default() })
    }

    /// Sets how long a claim lives without being renewed.
    #[must_use]
    pub const fn with_lease(mut self, lease: Span) -> Self {
        self.lease = lease;
        self
    }

    async fn item(&self, id: &str) -> Result<Option<Item>> {
        self.table.get(&job_key(id)).await
    }

    /// Returns the `body` of the job `id`, if there is such a job.
    async fn body(&self, id: &str) -> Result<Option<Arc<str>>> {
        let known = self.bodies.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        match known {
            Some(body) => Ok(Some(body)),
            None => self.item(id).await?.map(|item| self.remember_body(id, &item)).transpose(),
        }
    }

    fn remember_body(&self, id: &str, item: &Item) -> Result<Arc<str>> {
        let body: Arc<str> = text(item, "body")?.into();
        let mut bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        bodies.insert(id.to_owned(), Arc::clone(&body));
        Ok(body)
    }

    /// Returns the chunks of `body` in order, those that were split included.
    async fn chunk_items(&self, body: &str) -> Result<Vec<Chunk>> {
        self.table.query(&chunk::partition(body), "").await?.iter().map(Chunk::parse).collect()
    }

    async fn put_texts(&self, body: &str, drafts: &Drafts) -> Result<Option<String>> {
        match drafts.to_json() {
            None => Ok(None),
            Some(json) => self.table.put_blob(&texts_of(body), json.as_bytes()).await.map(Some),
        }
    }

    /// Makes `change` with the translations so far. The texts are written first, so that a chunk never refers to a missing text.
    /// Returns the chunk as it was before, or `None` if the condition did not hold.
    async fn replace_texts(
        &self,
        body: &str,
        key: &Key,
        change: Change,
        drafts: &Drafts,
    ) -> Result<Option<Item>> {
        let texts = self.put_texts(body, drafts).await?;
        let change = change.set_or_remove("texts", texts.as_deref().map(string));
        let old = self.table.replace(key, change).await?;
        if let (None, Some(texts)) = (&old, texts) {
            self.table.remove_blob(&texts_of(body), &texts).await?;
        }
        Ok(old)
    }

    /// Replaces a chunk by `parts`.
    async fn split(
        &self,
        body: &str,
        key: &Key,
        change: Change,
        parts: &[ChunkPart],
    ) -> Result<bool> {
        let mut items = Vec::new();
        for part in parts {
            let texts = self.put_texts(body, &part.drafts).await?;
            items.push(chunk::part_item(body, part, texts.as_deref()));
        }
        let outcome = self.table.transact(vec![(key.clone(), change)], items).await?;
        Ok(matches!(outcome, TransactionOutcome::Done))
    }

    /// Sends a chunk if the budget suffices. Two workers must not both reserve the last of it: each reservation increments a turn,
    /// and a worker whose turn is outdated reads the sum again.
    async fn send_within(
        &self,
        body: &str,
        claim: &Claim,
        (cost, most): (u64, u64),
        change: Change,
    ) -> Result<bool> {
        let purse = Key::new(format!("purse#{body}"), "purse");
        let reserve = |_| async {
            let turn = self.table.get(&purse).await?.map_or(0, |item| number(&item, "turn"));
            let chunks = self.chunk_items(body).await?;
            // A reservation whose response was lost may be its own.
            let reserved = |chunk: &Chunk| if chunk.run == claim.run { 0 } else { chunk.expected };
            let all: u64 = chunks.iter().map(|chunk| chunk.cost + reserved(chunk)).sum();
            if most < all.saturating_add(cost) {
                return Ok(false);
            }
            let next = Change::default()
                .set("turn", integer(turn + 1))
                .value(":seen", integer(turn))
                .when(match turn {
                    0 => "attribute_not_exists(#turn) OR #turn = :seen",
                    _ => "#turn = :seen",
                });
            let updates =
                vec![(purse.clone(), next), (chunk::key(body, claim.run), change.clone())];
            match self.table.transact(updates, Vec::new()).await? {
                TransactionOutcome::Done => Ok(true),
                TransactionOutcome::Refused(refused) if refused.contains(&1) => Ok(false),
                // The turn is outdated.
                TransactionOutcome::Refused(_) => Err(None),
            }
        };
        retry(u32::MAX, CONTENDED, reserve).await
    }
}

#[async_trait]
impl JobStore for DynamoDbJobs {
    async fn create(&self, job: &NewJob, now: Timestamp) -> Result<bool> {
        job.check()?;
        check_settings(&job.settings)?;
        if self.item(&job.id).await?.is_some() {
            return Ok(false);
        }
        let body = format!("{}#{}", job.id, item::unique());
        let document = self.table.put_blob(&document_of(&body), &job.document).await?;
        let chunks = job.chunks.iter();
        let chunks = chunks.map(|run| chunk::new_item(&body, *run, ChunkState::Pending));
        self.table.put_all(chunks).await?;
        let change = Change::default()
            .set("name", string(&job.name))
            .set("state", string(JobState::Planned.word()))
            .set("settings", string(&job.settings))
            .set("created_at", integer(now.as_micros()))
            .set("body", string(&body))
            .set("document", string(&document))
            .when("attribute_not_exists(#pk)");
        let is_new = self.table.update(&job_key(&job.id), change).await?;
        if !is_new {
            self.table.remove_all(&document_of(&body)).await?;
            self.table.remove_all(&chunk::partition(&body)).await?;
        }
        Ok(is_new)
    }

    async fn job(&self, id: &str) -> Result<Option<Job>> {
        self.item(id).await?.map(|item| parse_job(id, &item)).transpose()
    }

    async fn jobs(&self) -> Result<Vec<Job>> {
        let items = self.table.query(JOBS, "").await?;
        let jobs = items.iter().map(|item| parse_job(&text(item, "sk")?, item));
        let mut jobs: Vec<Job> = jobs.collect::<Result<_>>()?;
        jobs.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id)));
        Ok(jobs)
    }

    async fn document(&self, id: &str) -> Result<Option<Vec<u8>>> {
        let Some(item) = self.item(id).await? else { return Ok(None) };
        let partition = document_of(&text(&item, "body")?);
        self.table.get_blob(&partition, &text(&item, "document")?).await.map(Some)
    }

    async fn set_state(&self, id: &str, state: &JobState, now: Timestamp) -> Result<bool> {
        let (resume_at, why) = state.pause();
        let at = |at: Timestamp| integer(at.as_micros());
        let mut change = change_job(state)
            .set_or_remove("resume_at", resume_at.map(at))
            .set_or_remove("why", why.map(string))
            .set_or_remove("ended_at", state.is_over().then(|| at(now)));
        if matches!(state, JobState::Running) {
            change = change
                .set_to("started_at", "if_not_exists(#started_at, :started_at)")
                .value(":started_at", at(now));
        }
        self.table.update(&job_key(id), change).await
    }

    async fn set_settings(&self, id: &str, settings: &str) -> Result<()> {
        check_settings(settings)?;
        let change = Change::default().set("settings", string(settings));
        self.table.update(&job_key(id), change.when("attribute_exists(#pk)")).await.map(drop)
    }

    async fn lock(&self, _id: &str) -> Result<Box<dyn JobGuard>> {
        Ok(Box::new(()))
    }

    async fn is_active(&self, id: &str, now: Timestamp) -> Result<bool> {
        let Some(body) = self.body(id).await? else { return Ok(false) };
        let chunks = self.chunk_items(&body).await?;
        Ok(chunks.iter().any(|chunk| chunk.is_leased(now.as_micros())))
    }

    fn lease(&self) -> Option<Span> {
        Some(self.lease)
    }

    async fn claim(&self, id: &str, worker: &str, now: Timestamp) -> Result<ClaimOutcome> {
        let item = self.item(id).await?.ok_or_else(|| no_such_job(id))?;
        let state = parse_job(id, &item)?.state;
        if !matches!(state, JobState::Planned | JobState::Running) {
            return Ok(ClaimOutcome::Halted(state));
        }
        let (body, now) = (self.remember_body(id, &item)?, now.as_micros());
        let lease_until = now.saturating_add(self.lease.as_micros());
        loop {
            let chunks = self.chunk_items(&body).await?;
            let all: u64 = chunks.iter().map(|chunk| chunk.cost + chunk.expected).sum();
            let held = chunks.iter().filter(|chunk| now < chunk.lease_until);
            let under_way: u64 = held.map(|chunk| chunk.expected).sum();
            let is_ready = |chunk: &&Chunk| chunk.ready_at().is_some_and(|at| at <= now);
            let mut ready: Vec<&Chunk> = chunks.iter().filter(is_ready).collect();
            if ready.is_empty() {
                return Ok(ClaimOutcome::later(chunks.iter().filter_map(Chunk::ready_at).min()));
            }
            ready.sort_by_key(|chunk| (chunk.faults, chunk.run.first));
            for chunk in ready {
                let (run, change) = (chunk.run, chunk.claim(worker, lease_until));
                if !self.table.update(&chunk::key(&body, run), change).await? {
                    continue;
                }
                let drafts = match &chunk.texts {
                    None => Drafts::none(run.len()),
                    Some(texts) => {
                        parse_drafts(self.table.get_blob(&texts_of(&body), texts).await?, chunk)?
                    }
                };
                return Ok(ClaimOutcome::Chunk(Claim {
                    job: id.to_owned(),
                    run,
                    calls: chunk.calls,
                    faults: chunk.faults,
                    transient: chunk.transient,
                    fence: chunk.fence + 1,
                    spent: all.saturating_sub(under_way),
                    under_way,
                    drafts,
                }));
            }
            // Other workers took every chunk that was ready.
        }
    }

    async fn renew(&self, claim: &Claim, now: Timestamp) -> Result<()> {
        let Some(body) = self.body(&claim.job).await? else { return Ok(()) };
        let until = now.as_micros().saturating_add(self.lease.as_micros());
        let change = Change::default().set("lease_until", integer(until));
        let change = chunk::when_claimed(change, claim);
        self.table.update(&chunk::key(&body, claim.run), change).await.map(drop)
    }

    async fn update(&self, claim: &Claim, update: &ChunkUpdate) -> Result<bool> {
        let Some(body) = self.body(&claim.job).await? else { return Ok(false) };
        let (key, change) = (chunk::key(&body, claim.run), chunk::change(claim, update));
        match update {
            ChunkUpdate::Sent { cost, most: Some(most) } => {
                self.send_within(&body, claim, (*cost, *most), change).await
            }
            ChunkUpdate::Again { drafts, .. } => {
                let old = self.replace_texts(&body, &key, change, drafts).await?;
                // No other worker has the chunk, so its earlier drafts are not read any more.
                if let Some(texts) = old.as_ref().and_then(|old| text(old, "texts").ok()) {
                    self.table.remove_blob(&texts_of(&body), &texts).await?;
                }
                Ok(old.is_some())
            }
            ChunkUpdate::Done { drafts, .. } => {
                Ok(self.replace_texts(&body, &key, change, drafts).await?.is_some())
            }
            ChunkUpdate::Split { parts, .. } => self.split(&body, &key, change, parts).await,
            ChunkUpdate::Sent { most: None, .. }
            | ChunkUpdate::Returned
            | ChunkUpdate::Failed { .. } => self.table.update(&key, change).await,
        }
    }

    async fn counts(&self, id: &str) -> Result<Counts> {
        let mut counts = Counts::default();
        let Some(body) = self.body(id).await? else { return Ok(counts) };
        for chunk in self.chunk_items(&body).await? {
            counts.add(chunk.state, 1);
            counts.calls += u64::from(chunk.calls);
            counts.input_tokens += chunk.input;
            counts.output_tokens += chunk.output;
            counts.cost += chunk.cost + chunk.expected;
        }
        Ok(counts)
    }

    async fn chunks(&self, id: &str) -> Result<Vec<ChunkRecord>> {
        let Some(body) = self.body(id).await? else { return Ok(Vec::new()) };
        // The chunks first: a text exists before its chunk refers to it.
        let mut chunks = self.chunk_items(&body).await?;
        chunks.retain(|chunk| chunk.state != ChunkState::Split);
        let pieces = self.table.query(&texts_of(&body), "").await?;
        let mut blobs: HashMap<String, Vec<&Item>> = HashMap::new();
        for piece in &pieces {
            let sk = text(piece, "sk")?;
            let (reference, _) = sk.rsplit_once('#').unwrap_or((&sk, ""));
            blobs.entry(reference.to_owned()).or_default().push(piece);
        }
        let record = |chunk: Chunk| {
            let drafts = match &chunk.texts {
                Some(reference) if chunk.state == ChunkState::Done => {
                    let pieces = blobs.get(reference).map(Vec::as_slice).unwrap_or_default();
                    Some(parse_drafts(join_blob(pieces.iter().copied(), reference)?, &chunk)?)
                }
                _ => None,
            };
            let Chunk { run, state, calls, reason, due, .. } = chunk;
            Ok(ChunkRecord::new(run, state, drafts, reason, calls, due))
        };
        chunks.into_iter().map(record).collect()
    }

    async fn retry_failed(&self, id: &str) -> Result<u64> {
        let Some(body) = self.body(id).await? else { return Ok(0) };
        let mut failed = self.chunk_items(&body).await?;
        failed.retain(|chunk| chunk.state == ChunkState::Failed);
        if failed.is_empty() {
            return Ok(0);
        }
        // The job first: a running job without open chunks ends again.
        let running = change_job(&JobState::Running).remove("ended_at");
        self.table.update(&job_key(id), running).await?;
        let mut count = 0;
        for chunk in failed {
            let pending = chunk::set_state(ChunkState::Pending)
                .set("due", integer(0))
                .set("faults", integer(0))
                .set("passing", integer(0))
                .value(":failed", string(ChunkState::Failed.word()))
                .when("#state = :failed");
            count += u64::from(self.table.update(&chunk::key(&body, chunk.run), pending).await?);
        }
        Ok(count)
    }

    async fn cached(&self, hash: &[u8; 32]) -> Result<Option<Vec<String>>> {
        let item = self.table.get(&cache_key(hash)).await?;
        item.map(|item| parse_texts(&text(&item, "texts")?)).transpose()
    }

    /// An answer that does not fit into an item is not cached.
    async fn cache(&self, hash: &[u8; 32], texts: &[String], now: Timestamp) -> Result<()> {
        let texts = serde_json::Value::from(texts).to_string();
        if PIECE_BYTES_MAX < texts.len() {
            return Ok(());
        }
        let until = (now + CACHE_TTL).as_micros() / 1_000_000;
        let change = Change::default().set("texts", string(&texts)).set("ttl", integer(until));
        self.table.update(&cache_key(hash), change).await.map(drop)
    }
}

fn job_key(id: &str) -> Key {
    Key::new(JOBS, id)
}

fn texts_of(body: &str) -> String {
    format!("texts#{body}")
}

fn document_of(body: &str) -> String {
    format!("document#{body}")
}

fn cache_key(hash: &[u8; 32]) -> Key {
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    Key::new(format!("cache#{hex}"), "texts")
}

/// Sets the state of a job that is not cancelled.
fn change_job(state: &JobState) -> Change {
    Change::default()
        .set("state", string(state.word()))
        .value(":cancelled", string(JobState::Cancelled.word()))
        .when("attribute_exists(#pk) AND #state <> :cancelled")
}

fn check_settings(settings: &str) -> Result<()> {
    let bytes = settings.len();
    if bytes <= SETTINGS_BYTES_MAX {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "the settings of the job take {bytes} bytes, and an item of DynamoDB at most {SETTINGS_BYTES_MAX}; use a smaller \
             glossary, or keep jobs in PostgreSQL"
        ),
    ))
}

fn parse_job(id: &str, item: &Item) -> Result<Job> {
    let time = |name| optional(item, name).map(Timestamp::from_micros);
    let why = text(item, "why").ok();
    Ok(Job {
        id: id.to_owned(),
        name: text(item, "name")?,
        state: JobState::parse(&text(item, "state")?, optional(item, "resume_at"), why)?,
        settings: text(item, "settings")?,
        created_at: Timestamp::from_micros(number(item, "created_at")),
        started_at: time("started_at"),
        ended_at: time("ended_at"),
    })
}

fn parse_drafts(bytes: Vec<u8>, chunk: &Chunk) -> Result<Drafts> {
    let json =
        String::from_utf8(bytes).map_err(|_| unusable("a stored translation is not text"))?;
    Drafts::from_json(Some(&json), chunk.run.len())
}
