#![doc = include_str!("../README.md")]

mod blob;
mod change;
mod chunk;
mod claim;
mod item;
mod record;
mod table;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate::{BoxFuture, Span, Timestamp};
use tollgate_telemetry::sinks::aws::Place;
use tollgate_translate::job::{
    ChunkRecord, ChunkState, Claim, Counts, Hold, Job, JobState, JobStore, LEASE_DEFAULT, NewJob,
    Next, Step,
};
use tollgate_translate::{Error, ErrorKind};

use change::Change;
use item::{Item, Key, number, optional, string, text};
use table::Table;

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
    /// The body of each job that was asked for. It never changes.
    bodies: Mutex<HashMap<String, Arc<str>>>,
}

/// Nothing is held: claims end by themselves.
#[derive(Debug)]
struct Nothing;

impl Hold for Nothing {}

impl DynamoDbJobs {
    /// The jobs in `table` at `place`. The table is made if it is missing.
    ///
    /// # Errors
    /// If no region is set, the table cannot be used or made, or it is of a newer version.
    pub async fn open(table: &str, place: &Place) -> Result<Self, Error> {
        let table = Table::open(table, place).await?;
        Ok(Self { table, lease: LEASE_DEFAULT, bodies: Mutex::default() })
    }

    /// The same, with claims that live so long.
    #[must_use]
    pub const fn with_lease(mut self, lease: Span) -> Self {
        self.lease = lease;
        self
    }

    async fn item(&self, id: &str) -> Result<Option<Item>, Error> {
        self.table.get(&job_key(id)).await
    }

    /// The body of the job `id`, if there is such a job.
    async fn body(&self, id: &str) -> Result<Option<Arc<str>>, Error> {
        let known = self.bodies.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        if known.is_some() {
            return Ok(known);
        }
        let Some(item) = self.item(id).await? else { return Ok(None) };
        self.remember_body(id, &item).map(Some)
    }

    fn remember_body(&self, id: &str, item: &Item) -> Result<Arc<str>, Error> {
        let body: Arc<str> = text(item, "body")?.into();
        let mut bodies = self.bodies.lock().unwrap_or_else(PoisonError::into_inner);
        bodies.insert(id.to_owned(), Arc::clone(&body));
        Ok(body)
    }

    async fn make(&self, job: &NewJob, now: Timestamp) -> Result<bool, Error> {
        job.check()?;
        check_settings(&job.settings)?;
        if self.item(&job.id).await?.is_some() {
            return Ok(false);
        }
        let body = format!("{}#{}", job.id, item::unique());
        let document = self.table.put_blob(&document_of(&body), &job.document).await?;
        self.table.put_all(job.chunks.iter().map(|run| chunk::fresh(&body, *run))).await?;
        let change = Change::new()
            .set("name", string(&job.name))
            .set("state", string(JobState::Planned.word()))
            .set("settings", string(&job.settings))
            .set("created_at", item::integer(now.as_micros()))
            .set("body", string(&body))
            .set("document", string(&document))
            .when("attribute_not_exists(#pk)");
        let is_made = self.table.update(&job_key(&job.id), change).await?;
        if !is_made {
            self.table.remove_all(&document_of(&body)).await?;
            self.table.remove_all(&chunk::partition(&body)).await?;
        }
        Ok(is_made)
    }

    async fn reopen_failed(&self, id: &str) -> Result<u64, Error> {
        let Some(body) = self.body(id).await? else { return Ok(0) };
        let chunks = self.chunk_items(&body).await?;
        let failed: Vec<_> =
            chunks.iter().filter(|chunk| chunk.state == ChunkState::Failed).collect();
        if failed.is_empty() {
            return Ok(0);
        }
        // The job first: one that runs without anything to do ends again by itself.
        let running = Change::new()
            .set("state", string(JobState::Running.word()))
            .remove("ended_at")
            .value(":cancelled", string(JobState::Cancelled.word()))
            .when("attribute_exists(#pk) AND #state <> :cancelled");
        self.table.update(&job_key(id), running).await?;
        let mut count = 0;
        for chunk in failed {
            let zero = item::integer(0);
            let pending = Change::new()
                .set("state", string(ChunkState::Pending.word()))
                .set("due", zero.clone())
                .set("faults", zero.clone())
                .set("passing", zero)
                .value(":failed", string(ChunkState::Failed.word()))
                .when("#state = :failed");
            count += u64::from(self.table.update(&chunk::key(&body, chunk.run), pending).await?);
        }
        Ok(count)
    }
}

fn job_key(id: &str) -> Key {
    Key::new(JOBS, id)
}

fn document_of(body: &str) -> String {
    format!("document#{body}")
}

fn cache_key(hash: &[u8; 32]) -> Key {
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    Key::new(format!("cache#{hex}"), "texts")
}

fn check_settings(settings: &str) -> Result<(), Error> {
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

fn read_job(id: &str, item: &Item) -> Result<Job, Error> {
    let time = |name| optional(item, name).map(Timestamp::from_micros);
    let why = text(item, "why").ok();
    Ok(Job {
        id: id.to_owned(),
        name: text(item, "name")?,
        state: JobState::read(&text(item, "state")?, optional(item, "resume_at"), why)?,
        settings: text(item, "settings")?,
        created_at: Timestamp::from_micros(number(item, "created_at")),
        started_at: time("started_at"),
        ended_at: time("ended_at"),
    })
}

impl JobStore for DynamoDbJobs {
    fn create<'a>(&'a self, job: &'a NewJob, now: Timestamp) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.make(job, now))
    }

    fn job<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Job>, Error>> {
        Box::pin(async move { self.item(id).await?.map(|item| read_job(id, &item)).transpose() })
    }

    fn jobs(&self) -> BoxFuture<'_, Result<Vec<Job>, Error>> {
        Box::pin(async move {
            let items = self.table.query(JOBS, "").await?;
            let jobs = items.iter().map(|item| read_job(&text(item, "sk")?, item));
            let mut jobs: Vec<Job> = jobs.collect::<Result<_, Error>>()?;
            jobs.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.id.cmp(&b.id)));
            Ok(jobs)
        })
    }

    fn document<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Error>> {
        Box::pin(async move {
            let Some(item) = self.item(id).await? else { return Ok(None) };
            let partition = document_of(&text(&item, "body")?);
            self.table.get_blob(&partition, &text(&item, "document")?).await.map(Some)
        })
    }

    fn set_state<'a>(
        &'a self,
        id: &'a str,
        state: &'a JobState,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let mut change = Change::new()
                .set("state", string(state.word()))
                .value(":cancelled", string(JobState::Cancelled.word()))
                .when("attribute_exists(#pk) AND #state <> :cancelled");
            let (resume_at, why) = match state {
                JobState::Paused { resume_at, why } => (*resume_at, Some(why)),
                _ => (None, None),
            };
            let at = |at: Timestamp| item::integer(at.as_micros());
            change = change.set_or_remove("resume_at", resume_at.map(at));
            change = change.set_or_remove("why", why.map(|why| string(why)));
            change = change.set_or_remove("ended_at", state.is_over().then(|| at(now)));
            if matches!(state, JobState::Running) {
                change = change.set_to("started_at", "if_not_exists(#started_at, :started_at)");
                change = change.value(":started_at", at(now));
            }
            self.table.update(&job_key(id), change).await
        })
    }

    fn set_settings<'a>(
        &'a self,
        id: &'a str,
        settings: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            check_settings(settings)?;
            let change = Change::new().set("settings", string(settings));
            let change = change.when("attribute_exists(#pk)");
            self.table.update(&job_key(id), change).await.map(drop)
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
        Box::pin(async move {
            let Some(body) = self.body(id).await? else { return Ok(false) };
            let chunks = self.chunk_items(&body).await?;
            Ok(chunks.iter().any(|chunk| chunk.is_leased(now.as_micros())))
        })
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
        Box::pin(self.change_chunk(claim, step))
    }

    fn counts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Counts, Error>> {
        Box::pin(async move {
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
        })
    }

    fn chunks<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<ChunkRecord>, Error>> {
        Box::pin(self.read_chunks(id))
    }

    fn retry_failed<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<u64, Error>> {
        Box::pin(self.reopen_failed(id))
    }

    fn recall<'a>(
        &'a self,
        hash: &'a [u8; 32],
    ) -> BoxFuture<'a, Result<Option<Vec<String>>, Error>> {
        Box::pin(async move {
            let Some(item) = self.table.get(&cache_key(hash)).await? else { return Ok(None) };
            let texts = text(&item, "texts")?;
            serde_json::from_str(&texts).map(Some).map_err(|error| {
                table::unusable(format!("a stored translation cannot be read: {error}"))
            })
        })
    }

    /// An answer that does not fit into an item is not kept, and asked for again where it is needed.
    fn remember<'a>(
        &'a self,
        hash: &'a [u8; 32],
        texts: &'a [String],
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let texts = serde_json::Value::from(texts).to_string();
            if blob::PIECE_BYTES_MAX < texts.len() {
                return Ok(());
            }
            let until = (now + CACHE_TTL).as_micros() / 1_000_000;
            let change =
                Change::new().set("texts", string(&texts)).set("ttl", item::integer(until));
            self.table.update(&cache_key(hash), change).await.map(drop)
        })
    }
}
