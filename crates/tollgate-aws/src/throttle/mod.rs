//! Jobs within their quota: who would start one waits while too many run (R001.11).
//!
//! Counting first and starting later lets two orchestrators both see the last place. So each takes a slot of a shared
//! concurrency limit before it counts, and goes on only if the jobs that it counts, the slots that were taken before its
//! own, and its own fit below the threshold. A slot is held until the job shows in the count. Whoever took a slot before
//! me is in my number, or its job is in my count; so in the order in which slots are taken, nobody goes over.

mod place;
mod settings;
mod status;

use std::sync::{Arc, LazyLock};

use aws_sdk_drs::types::{Job, JobStatus};
use tollgate::{Ask, Atomic, Concurrency, Gate, Guard, Limit, Memory, Policy, Span, Timestamp};

use crate::drs::{DrsClient, JobFilter, Recovery};
use crate::error::{Context, Error};
use crate::failure::JOB_QUOTAS;
use crate::monitor::Event;
use crate::retry::RetryConfig;

pub use place::Place;
pub use settings::{MAX_JOBS, Settings, VARIABLES};
pub use status::{HttpAnswer, JobCapacityTimeout, ThrottleStatus};

/// How far back jobs are looked for. A job that runs longer is not counted.
pub const LOOK_BACK: Span = Span::from_hours(48);

const JOBS: &str = "jobs";

/// Slots of throttlers that were given no gate: those of one process see each other.
static PROCESS: LazyLock<Arc<dyn Gate>> = LazyLock::new(|| Arc::new(Atomic::new(Memory::new())));

/// Lets jobs start while there is room for them. Clones are the same throttler.
///
/// ```no_run
/// # async fn recover(drs: tollgate_aws::DrsClient) -> Result<(), tollgate_aws::Error> {
/// use tollgate_aws::throttle::{JobThrottler, Settings};
/// use tollgate_aws::Recovery;
///
/// let throttler = JobThrottler::new(drs, Settings::from_environment()?)?;
/// let job = throttler.start_recovery(&Recovery::of(["s-00000000000000001"])).await?;
/// println!("{}", job.job_id());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct JobThrottler {
    client: DrsClient,
    settings: Settings,
    slots: Arc<dyn Gate>,
    policy: Policy,
    subject: Arc<str>,
}

/// What a look at the jobs found.
enum Look {
    Free(Box<Place>),
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
    /// A throttler for the account and region of `client`, whose slots are those of this process.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a setting is out of bounds.
    pub fn new(client: DrsClient, settings: Settings) -> Result<Self, Error> {
        settings.check()?;
        let rule = Concurrency::new(settings.threshold, settings.slot_ttl);
        let policy = Policy::new("aws.drs.jobs", [Limit::new(JOBS, JOBS, rule)]);
        let policy = policy.map_err(|error| Error::Invalid(error.to_string()))?;
        let subject = format!("{}/{}", client.account(), client.region()).into();
        Ok(Self { client, settings, slots: Arc::clone(&PROCESS), policy, subject })
    }

    /// Slots of `gate`, which other processes share.
    #[must_use]
    pub fn slots(mut self, gate: Arc<dyn Gate>) -> Self {
        self.slots = gate;
        self
    }

    /// The same, which waits no longer than `timeout` in all.
    #[must_use]
    pub(crate) fn within(mut self, timeout: Span) -> Self {
        self.settings.timeout = timeout;
        self.settings.poll_interval = self.settings.poll_interval.min(timeout);
        self
    }

    /// Its settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Its client.
    #[must_use]
    pub const fn client(&self) -> &DrsClient {
        &self.client
    }

    /// How many jobs there are, without waiting.
    ///
    /// # Errors
    /// Those of every call.
    pub async fn check_capacity(&self) -> Result<ThrottleStatus, Error> {
        Ok(self.settings.status(self.count().await?, None))
    }

    /// Waits until a job may be started. The place that is returned is held until it is told that the job was started, or
    /// is dropped. Where jobs cannot be counted the place is given: a recovery must not fail because of its throttle.
    ///
    /// # Errors
    /// [`Error::JobCapacityTimeout`] if no place becomes free in time.
    pub async fn wait_for_capacity(&self) -> Result<Place, Error> {
        self.wait(&self.client.context("StartRecovery"), self.client.clock().now()).await
    }

    /// Waits for a place and starts `recovery` in it. A service that says that its quota is full is waited for as well.
    ///
    /// # Errors
    /// [`Error::JobCapacityTimeout`] if it does not start in time, and those of
    /// [`DrsClient::start_recovery`].
    pub async fn start_recovery(&self, recovery: &Recovery) -> Result<Job, Error> {
        let context = self.client.context("StartRecovery");
        let began = self.client.clock().now();
        // A full quota frees itself when a job ends, not in seconds: it is waited for here.
        let mut retry: RetryConfig = self.client.retry().clone();
        retry.retryable_errors.remove("ServiceQuotaExceededException");
        loop {
            let place = self.wait(&context, began).await?;
            match self.client.start(recovery, &retry).await {
                Ok(job) => {
                    place.started(&job).await;
                    return Ok(job);
                }
                Err(error) if error.failure().is_some_and(crate::Failure::is_full) => {
                    let said = error.failure().and_then(|failure| failure.quota_code.as_deref());
                    let quota = JOB_QUOTAS.into_iter().find(|code| Some(*code) == said);
                    let current_jobs = place.status().map_or(0, |status| status.current_jobs);
                    place.give_back().await;
                    self.pause(&context, began, Full { current_jobs, quota, starting: 0 }).await?;
                }
                // Perhaps there is a job: the slot stays taken until it expires.
                Err(error @ Error::Ambiguous(_)) => {
                    place.keep();
                    return Err(error);
                }
                Err(error) => {
                    place.give_back().await;
                    return Err(error);
                }
            }
        }
    }

    async fn wait(&self, context: &Context, began: Timestamp) -> Result<Place, Error> {
        loop {
            match self.look(context, began).await {
                Look::Free(place) => return Ok(*place),
                Look::Full(full) => self.pause(context, began, full).await?,
            }
        }
    }

    /// Sleeps until the next look, but not beyond the time that is left.
    async fn pause(&self, context: &Context, began: Timestamp, full: Full) -> Result<(), Error> {
        let Full { current_jobs, starting, quota } = full;
        let Settings { timeout, poll_interval, max_jobs, .. } = self.settings;
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
    async fn look(&self, context: &Context, began: Timestamp) -> Look {
        let ask = Ask::new(&self.policy, &*self.subject).cost(JOBS, 1);
        let slot = match Guard::acquire(&self.slots, &ask).await {
            Ok(Ok(slot)) => Some(slot),
            Ok(Err(_)) => {
                // As many are being started as may run at all.
                let current_jobs = self.count().await.unwrap_or(0);
                let starting = self.settings.threshold;
                return Look::Full(Full { current_jobs, starting, quota: None });
            }
            Err(error) => {
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
                    place::give_back(slot).await;
                }
                let starting = with_mine - 1;
                return Look::Full(Full { current_jobs: jobs, starting, quota: None });
            }
            Ok(jobs) => Some(jobs),
            Err(error) => {
                self.client.observe(&Event::FailedOpen { context, error: &error });
                None
            }
        };
        let waited = self.client.clock().now().since(began);
        let status = counted.map(|jobs| self.settings.status(jobs, Some(waited)));
        Look::Free(Box::new(Place::new(self.client.clone(), slot, status, waited)))
    }

    /// How many jobs of the last two days are not completed. It stops at the quota: more there cannot be.
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
