//! This test binary run again as another process, which works on a job and can be killed.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, getpid, kill_process};
use tollgate::edge::environment;
use tollgate::{Atomic, BoxFuture, Gate, Memory, Span, SystemClock, Timestamp};
use tollgate_testing::fakes::gemini::Quota;
use tollgate_translate::Error;
use tollgate_translate::job::{
    ChunkRecord, Claim, Counts, EmbeddedJobs, Hold, Job, JobState, JobStore, NewJob, Next,
    PostgresJobs, Step,
};
use tollgate_translate::pipeline::{Options, Pipeline, Stop, Throttle};
use tollgate_translate::provider::gemini::Gemini;
use tollgate_translate::provider::{Http, Key, TIMEOUT_DEFAULT};

use crate::desk::policy;

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
pub(crate) enum Place {
    Folder(PathBuf),
    Database(String),
}

/// Starts a child that works on the job until its end, or kills itself (signal 9) at its `die_at`-th step.
pub(crate) fn start(provider: &str, place: &Place, die_at: Option<u64>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child::run_as_a_child", "--nocapture", "--test-threads=1"]);
    command.env(URL, provider).stdout(Stdio::null()).stderr(Stdio::inherit());
    match place {
        Place::Folder(folder) => command.env(FOLDER, folder),
        Place::Database(url) => command.env(DATABASE, url),
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
    let gate: Arc<dyn Gate> = Arc::new(Atomic::new(Memory::new()));
    let policy = policy(Quota::NONE, Span::ZERO);
    let throttle = Arc::new(Throttle::new(gate, policy, "project", clock.clone()));
    let key = Key::new("project.key").unwrap();
    let http = Arc::new(Http::new().unwrap());
    let provider = Gemini::new(provider, key, http, clock.clone(), TIMEOUT_DEFAULT).unwrap();
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
        let store = Arc::new(Mortal { store, steps: AtomicU64::new(0), die_at });
        pipeline(&provider, store).run(JOB, &Stop::never()).await.unwrap();
    });
}

/// A store whose process dies at a step: just before an odd one is done, just after an even one is.
#[derive(Debug)]
struct Mortal {
    store: Arc<dyn JobStore>,
    steps: AtomicU64,
    die_at: u64,
}

impl Mortal {
    async fn step<T>(&self, done: BoxFuture<'_, T>) -> T {
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

impl JobStore for Mortal {
    fn create<'a>(&'a self, job: &'a NewJob, now: Timestamp) -> BoxFuture<'a, Result<bool, Error>> {
        self.store.create(job, now)
    }
    fn job<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Job>, Error>> {
        self.store.job(id)
    }
    fn jobs(&self) -> BoxFuture<'_, Result<Vec<Job>, Error>> {
        self.store.jobs()
    }
    fn document<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Vec<u8>>, Error>> {
        self.store.document(id)
    }
    fn set_state<'a>(
        &'a self,
        id: &'a str,
        state: &'a JobState,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.step(self.store.set_state(id, state, now)))
    }
    fn set_settings<'a>(
        &'a self,
        id: &'a str,
        settings: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.store.set_settings(id, settings)
    }
    fn enter<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Box<dyn Hold>, Error>> {
        Box::pin(self.step(self.store.enter(id)))
    }
    fn is_worked_on<'a>(
        &'a self,
        id: &'a str,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        self.store.is_worked_on(id, now)
    }
    fn lease(&self) -> Option<Span> {
        self.store.lease()
    }
    fn claim<'a>(
        &'a self,
        id: &'a str,
        worker: &'a str,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Next, Error>> {
        Box::pin(self.step(self.store.claim(id, worker, now)))
    }
    fn renew<'a>(&'a self, claim: &'a Claim, now: Timestamp) -> BoxFuture<'a, Result<(), Error>> {
        self.store.renew(claim, now)
    }
    fn record<'a>(
        &'a self,
        claim: &'a Claim,
        step: &'a Step,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(self.step(self.store.record(claim, step)))
    }
    fn counts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Counts, Error>> {
        self.store.counts(id)
    }
    fn chunks<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<ChunkRecord>, Error>> {
        self.store.chunks(id)
    }
    fn retry_failed<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<u64, Error>> {
        self.store.retry_failed(id)
    }
    fn recall<'a>(
        &'a self,
        hash: &'a [u8; 32],
    ) -> BoxFuture<'a, Result<Option<Vec<String>>, Error>> {
        self.store.recall(hash)
    }
    fn remember<'a>(
        &'a self,
        hash: &'a [u8; 32],
        texts: &'a [String],
        now: Timestamp,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(self.step(self.store.remember(hash, texts, now)))
    }
}
