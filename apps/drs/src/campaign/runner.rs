//! Runs a campaign: polls its jobs and starts waves that fit, until every server is launched or failed.

use std::collections::BTreeMap;
use std::fmt;

use aws_sdk_drs::types::{Job, JobStatus};
use tollgate::{Span, Timestamp};

use super::other_callers::{OtherCallers, is_open};
use super::{Campaign, Stage};
use crate::client::{DrsClient, JobFilter, SERVERS_IN_JOBS_MAX};
use crate::error::Error;
use crate::throttle::{JobThrottler, LOOK_BACK};

/// How often the service may refuse a wave because a server is busy, although no job has it.
pub const CONFLICTS_MAX: u32 = 5;

/// Runs campaigns.
#[derive(Debug)]
pub struct Runner {
    throttler: JobThrottler,
    poll: Span,
    conflicts: BTreeMap<usize, u32>,
    others: OtherCallers,
}

/// Persists a campaign, so that it can continue after a crash; also gets the reason why no wave is started.
pub type SaveCampaign<'a> = dyn FnMut(&Campaign, Option<&Waiting>) -> Result<(), Error> + Send + 'a;

/// Why no wave is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The threshold of jobs is reached.
    ForJobs {
        /// How many.
        jobs: u64,
        /// From how many on a new one waits.
        threshold: u64,
    },
    /// The quota of servers in jobs is reached.
    ForServers {
        /// How many.
        servers: usize,
    },
    /// The service refused another job by a quota.
    ForQuota {
        /// The quota, as in `L-D88FAC3A`.
        quota: &'static str,
        /// How many jobs were counted.
        jobs: u64,
    },
    /// Servers are in a job of another caller.
    ForOthers {
        /// How many.
        servers: usize,
        /// The job of the first of them.
        job: String,
    },
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForJobs { jobs, threshold } => {
                write!(f, "{jobs} jobs are under way; a new one starts below {threshold}")
            }
            Self::ForServers { servers } => {
                write!(f, "{servers} servers are in jobs, of {SERVERS_IN_JOBS_MAX} that may be")
            }
            Self::ForQuota { quota, jobs } => {
                write!(f, "DRS refuses another job by its quota {quota}; {jobs} jobs were counted")
            }
            Self::ForOthers { servers, job } => {
                write!(f, "{servers} servers are in {job}, a job of another caller")
            }
        }
    }
}

/// The jobs of the account.
#[derive(Debug, Default)]
struct Account {
    jobs: u64,
    servers: usize,
    /// The job of each server that is in one.
    busy: BTreeMap<String, String>,
}

impl Account {
    fn from_jobs(jobs: &[Job]) -> Self {
        let mut account = Self::default();
        for job in jobs.iter().filter(|job| job.status != Some(JobStatus::Completed)) {
            account.jobs += 1;
            account.servers += job.participating_servers().len();
            let ids = job.participating_servers().iter().filter_map(|one| one.source_server_id());
            account.busy.extend(ids.map(|id| (id.to_owned(), job.job_id().to_owned())));
        }
        account
    }

    fn add(&mut self, job: &Job, servers: usize) {
        self.jobs += 1;
        self.servers += servers.max(job.participating_servers().len());
    }
}

impl Runner {
    /// Returns a runner that starts jobs by `throttler` and polls them every `poll`.
    #[must_use]
    pub fn new(throttler: &JobThrottler, poll: Span) -> Self {
        // The runner polls its jobs between waits, so the throttle waits at most one interval.
        let throttler = throttler.clone().timeout(poll);
        Self { throttler, poll, conflicts: BTreeMap::new(), others: OtherCallers::default() }
    }

    /// Runs `campaign` to its end. `save` is called before each request and after each poll; an interrupted campaign continues
    /// from its last argument.
    ///
    /// # Errors
    /// Those of every call, if they concern more than one wave, and those of `save`.
    pub async fn run(
        &mut self,
        campaign: &mut Campaign,
        save: &mut SaveCampaign<'_>,
    ) -> Result<(), Error> {
        campaign.since.get_or_insert(self.client().clock().now().as_micros());
        loop {
            self.poll(campaign).await?;
            let waiting = self.start_waves(campaign, save).await?;
            save(campaign, waiting.as_ref())?;
            if campaign.is_over() {
                return Ok(());
            }
            let clock = self.client().clock();
            clock.sleep_until(clock.now() + self.poll).await;
        }
    }

    const fn client(&self) -> &DrsClient {
        self.throttler.client()
    }

    /// Polls the jobs that run.
    async fn poll(&self, campaign: &mut Campaign) -> Result<(), Error> {
        let running = |stage: &Stage| match stage {
            Stage::Running { job } => Some(job.clone()),
            _ => None,
        };
        let ids: Vec<String> =
            campaign.waves.iter().filter_map(|wave| running(&wave.stage)).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let found =
            self.client().describe_jobs(&JobFilter { ids, ..JobFilter::default() }).all().await?;
        for wave in &mut campaign.waves {
            let id = running(&wave.stage);
            if let Some(job) = found.iter().find(|job| Some(job.job_id()) == id.as_deref()) {
                wave.update(job);
            }
        }
        Ok(())
    }

    async fn start_waves(
        &mut self,
        campaign: &mut Campaign,
        save: &mut SaveCampaign<'_>,
    ) -> Result<Option<Waiting>, Error> {
        if !campaign.waves.iter().any(|wave| is_open(&wave.stage)) {
            return Ok(None);
        }
        let from = Some(self.client().clock().now() - LOOK_BACK);
        let jobs =
            self.client().describe_jobs(&JobFilter { from, ..JobFilter::default() }).all().await?;
        self.others.adopt(campaign, &jobs);
        let mut account = Account::from_jobs(&jobs);
        let mut waiting = None;
        for number in 0..campaign.waves.len() {
            let wave = &campaign.waves[number];
            let size = wave.open().count();
            match wave.stage {
                // It was being requested when the campaign was interrupted, and may have arrived.
                Stage::Starting { since } => {
                    let id = campaign.request_id(number);
                    let since = Timestamp::from_micros(since);
                    if let Some(job) = self.client().find_recovery(&id, since).await? {
                        let job = job.job_id().to_owned();
                        campaign.waves[number].stage = Stage::Running { job };
                        continue;
                    }
                }
                Stage::Waiting => {}
                Stage::Running { .. } | Stage::Ended { .. } => continue,
            }
            let threshold = self.throttler.settings().threshold;
            if threshold <= account.jobs {
                return Ok(Some(Waiting::ForJobs { jobs: account.jobs, threshold }));
            }
            if SERVERS_IN_JOBS_MAX < account.servers + size {
                return Ok(Some(Waiting::ForServers { servers: account.servers }));
            }
            let busy: Vec<&String> = wave.open().filter_map(|id| account.busy.get(id)).collect();
            if let Some(job) = busy.first() {
                waiting = Some(Waiting::ForOthers { servers: busy.len(), job: (*job).clone() });
                continue;
            }
            let before = wave.stage.clone();
            campaign.waves[number].starting(self.client().clock().now());
            save(campaign, None)?;
            match self.throttler.start_recovery(&campaign.recovery(number)).await {
                Ok(job) => {
                    account.add(&job, size);
                    campaign.waves[number].stage = Stage::Running { job: job.job_id().to_owned() };
                    save(campaign, None)?;
                }
                Err(Error::JobCapacityTimeout(full)) => {
                    campaign.waves[number].stage = before;
                    let jobs = full.current_jobs;
                    return Ok(Some(match full.quota {
                        Some(quota) => Waiting::ForQuota { quota, jobs },
                        None => Waiting::ForJobs { jobs, threshold },
                    }));
                }
                Err(error) => self.refused(campaign, number, error)?,
            }
        }
        Ok(waiting)
    }

    /// Ends the wave if the refusal concerns it alone, and the run otherwise.
    fn refused(
        &mut self,
        campaign: &mut Campaign,
        number: usize,
        error: Error,
    ) -> Result<(), Error> {
        let wave = &mut campaign.waves[number];
        match &error {
            // The stage stays: the conflict may be with the job of the same wave from before an interruption, which is
            // not in the list yet.
            Error::Refused(_) if error.code() == "ConflictException" => {
                let conflicts = self.conflicts.entry(number).or_default();
                *conflicts += 1;
                if CONFLICTS_MAX <= *conflicts {
                    wave.fail(&error.to_string());
                }
                Ok(())
            }
            Error::Refused(_)
                if matches!(error.code(), "ValidationException" | "ResourceNotFoundException") =>
            {
                wave.fail(&error.to_string());
                Ok(())
            }
            _ => Err(error),
        }
    }
}
