//! This test binary run again as another process, which works on a job and can be killed.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use rustix::process::{Signal, getpid, kill_process};
use tokio_util::sync::CancellationToken;
use tollgate::clock::SystemClock;
use tollgate::internal::edge::environment;
use tollgate::{Gate, Memory, Span, Timestamp};
use tollgate_testkit::fakes::gemini::Quota;
use tollgate_translate::Result;
use tollgate_translate::job::{
    ChunkRecord, ChunkUpdate, Claim, ClaimOutcome, Counts, EmbeddedJobs, Job, JobGuard, JobState,
    JobStore, NewJob, PostgresJobs,
};
use tollgate_translate::pipeline::{Options, Pipeline, Throttle};
use tollgate_translate::provider::gemini::Gemini;
use tollgate_translate::provider::{ApiKey, Http, ProviderClient, TIMEOUT_DEFAULT};

use crate::harness::policy;

const URL: &str = "TOLLGATE_TEST_PROVIDER";
const FOLDER: &str = "TOLLGATE_TEST_FOLDER";
const DATABASE: &str = "TOLLGATE_TEST_DATABASE";
const DIE_AT: &str = "TOLLGATE_TEST_DIE_AT";

pub(crate) const JOB: &str = "book";
/// How many chunks a child works on at once.
pub(crate) const PARALLEL: usize = 4;
/// How long the claims of a child on a shared store live: longer than a busy machine keeps it from renewing them.
pub(crate) const LEASE: Span = Span::from_secs(10);

/// Where a child's jobs are.
pub(crate) enum StoreLocation {
    Folder(PathBuf),
    Database(String),
}

/// Starts a child that works on the job until its end, or kills itself (signal 9) at its `die_at`-th step.
pub(crate) fn start(provider: &str, place: &StoreLocation, die_at: Option<u64>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_process::run_as_a_child", "--nocapture", "--test-threads=1"]);
    command.env(URL, provider).stdout(Stdio::null()).stderr(Stdio::inherit());
    match place {
        StoreLocation::Folder(folder) => command.env(FOLDER, folder),
        StoreLocation::Database(url) => command.env(DATABASE, url),
    };
    if let Some(die_at) = die_at {
        command.env(DIE_AT, die_at.to_string());
    }
    command.spawn().unwrap()
}

/// A pipeline on the real clock, over HTTP.
pub(crate) fn pipeline(provider: &str, store: Arc<dyn JobStore>) -> Pipeline {
    pipeline_of(provider, store, &Options::default().worker)
}

/// The same for the worker `worker`.
pub(crate) fn pipeline_of(provider: &str, store: Arc<dyn JobStore>, worker: &str) -> Pipeline {
    let clock = Arc::new(SystemClock);
    let gate: Arc<dyn Gate> = Arc::new(Memory::new());
    let policy = policy(Quota::NONE, Span::ZERO);
    let throttle = Arc::new(Throttle::new(gate, policy, "project", clock.clone()));
    let key = ApiKey::new("project.key").unwrap();
    let http = Arc::new(Http::new());
    let client = ProviderClient::new(provider, key, http, clock.clone(), TIMEOUT_DEFAULT);
    let provider = Gemini::new(client.unwrap());
    let options = Options { parallel: PARALLEL, worker: worker.to_owned(), ..Options::default() };
    Pipeline::new(Arc::new(provider), throttle, store, clock, options)
}

/// No test of its own: what [`start`] runs.
#[test]
fn run_as_a_child() {
    let Some(provider) = environment(URL) else { return };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store: Arc<dyn JobStore> = match environment(FOLDER) {
            Some(folder) => Arc::new(EmbeddedJobs::open(folder.as_ref()).unwrap()),
            None => {
                let jobs =
                    PostgresJobs::open(&environment(DATABASE).unwrap(), "tollgate").await.unwrap();
                Arc::new(jobs.with_lease(LEASE))
            }
        };
        let die_at = environment(DIE_AT).map_or(u64::MAX, |text| text.parse().unwrap());
        let store = Arc::new(CrashingStore { store, steps: AtomicU64::new(0), die_at });
        pipeline(&provider, store).run(JOB, &CancellationToken::new()).await.unwrap();
    });
}

/// A store whose process dies at a step: just before an odd one is done, just after an even one is.
#[derive(Debug)]
struct CrashingStore {
    store: Arc<dyn JobStore>,
    steps: AtomicU64,
    die_at: u64,
}

impl CrashingStore {
    async fn step<T>(&self, done: impl Future<Output = T>) -> T {
        self.live();
        let done = done.await;
        self.live();
        done
    }

    fn live(&self) {
        if self.steps.fetch_add(1, Ordering::SeqCst) + 1 == self.die_at {
            kill_process(getpid(), Signal::KILL).unwrap();
            loop {
                std::thread::park();
            }
        }
    }
}

#[async_trait]
impl JobStore for CrashingStore {
    async fn create(&self, job: &NewJob, now: Timestamp) -> Result<bool> {
        self.store.create(job, now).await
    }
    async fn job(&self, id: &str) -> Result<Option<Job>> {
        self.store.job(id).await
    }
    async fn jobs(&self) -> Result<Vec<Job>> {
        self.store.jobs().await
    }
    async fn document(&self, id: &str) -> Result<Option<Vec<u8>>> {
        self.store.document(id).await
    }
    async fn set_state(&self, id: &str, state: &JobState, now: Timestamp) -> Result<bool> {
        self.step(self.store.set_state(id, state, now)).await
    }
    async fn set_settings(&self, id: &str, settings: &str) -> Result<()> {
        self.store.set_settings(id, settings).await
    }
    async fn lock(&self, id: &str) -> Result<Box<dyn JobGuard>> {
        self.step(self.store.lock(id)).await
    }
    async fn is_active(&self, id: &str, now: Timestamp) -> Result<bool> {
        self.store.is_active(id, now).await
    }
    fn lease(&self) -> Option<Span> {
        self.store.lease()
    }
    async fn claim(&self, id: &str, worker: &str, now: Timestamp) -> Result<ClaimOutcome> {
        self.step(self.store.claim(id, worker, now)).await
    }
    async fn renew(&self, claim: &Claim, now: Timestamp) -> Result<()> {
        self.store.renew(claim, now).await
    }
    async fn update(&self, claim: &Claim, update: &ChunkUpdate) -> Result<bool> {
        self.step(self.store.update(claim, update)).await
    }
    async fn counts(&self, id: &str) -> Result<Counts> {
        self.store.counts(id).await
    }
    async fn chunks(&self, id: &str) -> Result<Vec<ChunkRecord>> {
        self.store.chunks(id).await
    }
    async fn retry_failed(&self, id: &str) -> Result<u64> {
        self.store.retry_failed(id).await
    }
    async fn cached(&self, hash: &[u8; 32]) -> Result<Option<Vec<String>>> {
        self.store.cached(hash).await
    }
    async fn cache(&self, hash: &[u8; 32], texts: &[String], now: Timestamp) -> Result<()> {
        self.step(self.store.cache(hash, texts, now)).await
    }
}
