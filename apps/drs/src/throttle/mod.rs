//! Keeps concurrent jobs within their quota: a new job waits while too many run.
//!
//! Counting first and starting later is a race: two orchestrators both see the last free slot. So each takes a slot of a
//! shared concurrency limit before it counts, and starts only if the jobs that it counts, the slots that were taken before,
//! and its own fit below the threshold. A slot is held until its job appears in the count. Every earlier slot is therefore
//! in the number of slots, or its job is in the count, and in the order of slots the threshold is never exceeded.

mod job_slot;
mod options;
mod status;

use std::sync::{Arc, LazyLock};

use aws_sdk_drs::types::{Job, JobStatus};
use tollgate::gate::AcquireError;
use tollgate::{Ask, Concurrency, Gate, Guard, Limit, Memory, Policy, Span, Timestamp};

use crate::client::{DrsClient, JobFilter, Recovery};
use crate::error::{Context, Error};
use crate::failure::JOB_QUOTAS;
use crate::monitor::Event;
use crate::retry::RetryOptions;

pub use job_slot::JobSlot;
pub use options::{MAX_JOBS, ThrottleOptions, VARIABLES};
pub use status::{HttpResponse, JobCapacityTimeout, ThrottleStatus};

/// The age of jobs that are counted. A job that runs longer is not.
pub const LOOK_BACK: Span = Span::from_hours(48);

const JOBS: &str = "jobs";

/// The slots of throttlers without a gate, shared in the process.
static PROCESS: LazyLock<Arc<dyn Gate>> = LazyLock::new(|| Arc::new(Memory::new()));

/// Starts jobs while the quota has room. Clones share everything.
///
/// ```no_run
/// # async fn recover(drs: tollgate_drs::DrsClient) -> Result<(), tollgate_drs::Error> {
/// use tollgate_drs::throttle::{JobThrottler, ThrottleOptions};
/// use tollgate_drs::Recovery;
///
/// let throttler = JobThrottler::new(drs, ThrottleOptions::from_environment()?)?;
/// let job = throttler.start_recovery(&Recovery::new(["s-00000000000000001"])).await?;
/// println!("{}", job.job_id());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct JobThrottler {
    client: DrsClient,
    settings: ThrottleOptions,
    slots: Arc<dyn Gate>,
    policy: Policy,
    subject: Arc<str>,
}

/// The result of counting jobs.
enum Capacity {
    Free(Box<JobSlot>),
    Full(Full),
}

/// Why no job may be started.
#[derive(Clone, Copy, Debug, Default)]
struct Full {
    current_jobs: u64,
    starting: u64,
    /// The quota by which the service refused, if it did.
    quota: Option<&'static str>,
}

impl JobThrottler {
    /// Returns a throttler for the account and region of `client`, with slots in this process.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a setting is out of bounds.
    pub fn new(client: DrsClient, settings: ThrottleOptions) -> Result<Self, Error> {
        settings.check()?;
        let rule = Concurrency::new(settings.threshold, settings.slot_ttl);
        let policy = Policy::new("aws.drs.jobs", [Limit::new(JOBS, JOBS, rule)]);
        let policy = policy.map_err(|error| Error::Invalid(error.to_string()))?;
        let subject = format!("{}/{}", client.account(), client.region()).into();
        Ok(Self { client, settings, slots: Arc::clone(&PROCESS), policy, subject })
    }

    /// Takes slots from `gate`, which other processes share.
    #[must_use]
    pub fn slots(mut self, gate: Arc<dyn Gate>) -> Self {
        self.slots = gate;
        self
    }

    /// Sets the timeout of a wait.
    #[must_use]
    pub(crate) fn timeout(mut self, timeout: Span) -> Self {
        self.settings.timeout = timeout;
        self.settings.poll_interval = self.settings.poll_interval.min(timeout);
        self
    }

    /// Returns the settings.
    #[must_use]
    pub const fn settings(&self) -> &ThrottleOptions {
        &self.settings
    }

    /// Returns the client.
    #[must_use]
    pub const fn client(&self) -> &DrsClient {
        &self.client
    }

    /// Counts jobs, without waiting.
    ///
    /// # Errors
    /// Those of every call.
    pub async fn check_capacity(&self) -> Result<ThrottleStatus, Error> {
        Ok(self.settings.status(self.count().await?, None))
    }

    /// Waits until a job may be started, and returns its slot, which is held until [`JobSlot::started`] or until it is dropped.
    /// Fails open where jobs cannot be counted: a recovery must not fail because of its throttle.
    ///
    /// # Errors
    /// [`Error::JobCapacityTimeout`] if no slot becomes free in time.
    pub async fn wait_for_capacity(&self) -> Result<JobSlot, Error> {
        self.wait(&self.client.context("StartRecovery"), self.client.clock().now()).await
    }

    /// Waits for a slot and starts `recovery`. Also waits while the service refuses the job by its quota.
    ///
    /// # Errors
    /// [`Error::JobCapacityTimeout`] if it does not start in time, and those of
    /// [`DrsClient::start_recovery`].
    pub async fn start_recovery(&self, recovery: &Recovery) -> Result<Job, Error> {
        let context = self.client.context("StartRecovery");
        let began = self.client.clock().now();
        // A full quota has room again when a job ends, not in seconds, so the wait is here and not in the retries.
        let mut retry: RetryOptions = self.client.retry().clone();
        retry.retryable_errors.remove("ServiceQuotaExceededException");
        loop {
            let slot = self.wait(&context, began).await?;
            match self.client.start(recovery, &retry).await {
                Ok(job) => {
                    slot.started(&job).await;
                    return Ok(job);
                }
                Err(error) if error.failure().is_some_and(crate::Failure::is_full) => {
                    let said = error.failure().and_then(|failure| failure.quota_code.as_deref());
                    let quota = JOB_QUOTAS.into_iter().find(|code| Some(*code) == said);
                    let current_jobs = slot.status().map_or(0, |status| status.current_jobs);
                    slot.release().await;
                    self.pause(&context, began, Full { current_jobs, quota, starting: 0 }).await?;
                }
                // There may be a job, so the slot is held until it expires.
                Err(error @ Error::Ambiguous(_)) => {
                    slot.keep();
                    return Err(error);
                }
                Err(error) => {
                    slot.release().await;
                    return Err(error);
                }
            }
        }
    }

    async fn wait(&self, context: &Context, began: Timestamp) -> Result<JobSlot, Error> {
        loop {
            match self.check(context, began).await {
                Capacity::Free(slot) => return Ok(*slot),
                Capacity::Full(full) => self.pause(context, began, full).await?,
            }
        }
    }

    /// Sleeps for the polling interval, at most until the timeout.
    async fn pause(&self, context: &Context, began: Timestamp, full: Full) -> Result<(), Error> {
        let Full { current_jobs, starting, quota } = full;
        let ThrottleOptions { timeout, poll_interval, max_jobs, .. } = self.settings;
        let clock = self.client.clock();
        let waited = clock.now().since(began);
        if timeout <= waited {
            let timeout = JobCapacityTimeout { current_jobs, starting, max_jobs, quota, waited };
            return Err(Error::JobCapacityTimeout(timeout));
        }
        let left = Span::from_micros(timeout.as_micros() - waited.as_micros());
        let pause = poll_interval.min(left);
        self.client.observe(&Event::Throttled { context, current_jobs, max_jobs, pause });
        clock.sleep_until(clock.now() + pause).await;
        Ok(())
    }

    /// Takes a slot, then counts.
    async fn check(&self, context: &Context, began: Timestamp) -> Capacity {
        let ask = Ask::new(&self.policy, &*self.subject).cost(JOBS, 1);
        let slot = match Guard::acquire(&self.slots, &ask).await {
            Ok(slot) => Some(slot),
            Err(AcquireError::Denied(_)) => {
                // All slots are taken by jobs that are being started.
                let current_jobs = self.count().await.unwrap_or(0);
                let starting = self.settings.threshold;
                return Capacity::Full(Full { current_jobs, starting, quota: None });
            }
            Err(AcquireError::Failed(error)) => {
                let error = Error::Gate(error);
                self.client.observe(&Event::FailedOpen { context, error: &error });
                None
            }
        };
        let taken =
            slot.as_ref().and_then(|slot| slot.permit()?.limits.first().map(|limit| limit.used));
        let with_mine = taken.unwrap_or(1).max(1);
        let counted = match self.count().await {
            Ok(jobs) if self.settings.threshold < jobs + with_mine => {
                if let Some(slot) = slot {
                    job_slot::release(slot).await;
                }
                let starting = with_mine - 1;
                return Capacity::Full(Full { current_jobs: jobs, starting, quota: None });
            }
            Ok(jobs) => Some(jobs),
            Err(error) => {
                self.client.observe(&Event::FailedOpen { context, error: &error });
                None
            }
        };
        let waited = self.client.clock().now().since(began);
        let status = counted.map(|jobs| self.settings.status(jobs, Some(waited)));
        Capacity::Free(Box::new(JobSlot::new(self.client.clone(), slot, status, waited)))
    }

    /// Counts the jobs of the last two days that are not completed, up to the quota.
    async fn count(&self) -> Result<u64, Error> {
        let from = self.client.clock().now() - LOOK_BACK;
        let mut pages =
            self.client.describe_jobs(&JobFilter { from: Some(from), ..JobFilter::default() });
        let is_active =
            |job: &&Job| matches!(job.status, Some(JobStatus::Pending | JobStatus::Started));
        let mut active = 0;
        while active < self.settings.max_jobs
            && let Some(page) = pages.next_page().await
        {
            active += page?.iter().filter(is_active).count() as u64;
        }
        Ok(active)
    }
}
