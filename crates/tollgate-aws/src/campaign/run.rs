//! The steps of a campaign: start what fits, look, wait, until every server runs or failed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use aws_sdk_drs::types::{Job, JobStatus};
use tollgate::{Span, Timestamp};

use super::{Campaign, Stage};
use crate::drs::{DrsClient, JobFilter, SERVERS_IN_JOBS_MAX};
use crate::error::Error;
use crate::throttle::{JobThrottler, LOOK_BACK};

/// How often a wave may be refused because a server is busy, although no job has it.
pub const CONFLICTS_MAX: u32 = 5;

/// Takes the steps of a campaign.
#[derive(Debug)]
pub struct Runner {
    throttler: JobThrottler,
    poll: Span,
    conflicts: BTreeMap<usize, u32>,
}

/// Keeps a campaign, so that it can go on after a crash; it is also told why nothing is started, where nothing is.
pub type Keep<'a> = dyn FnMut(&Campaign, Option<&Waiting>) -> Result<(), Error> + Send + 'a;

/// Why nothing is started at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// There are as many jobs as may be started.
    ForJobs {
        /// How many.
        jobs: u64,
        /// From how many on a new one waits.
        threshold: u64,
    },
    /// There are as many servers in jobs as may be.
    ForServers {
        /// How many.
        servers: usize,
    },
    /// Servers are in jobs of somebody else.
    ForOthers {
        /// How many.
        servers: usize,
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
            Self::ForOthers { servers } => {
                write!(f, "{servers} servers are in somebody else's job")
            }
        }
    }
}

/// What is going on in the account.
#[derive(Debug, Default)]
struct Account {
    jobs: u64,
    servers: usize,
    busy: BTreeSet<String>,
}

impl Account {
    fn of(jobs: &[Job]) -> Self {
        let mut account = Self::default();
        for job in jobs.iter().filter(|job| job.status != Some(JobStatus::Completed)) {
            account.jobs += 1;
            account.servers += job.participating_servers().len();
            let ids = job.participating_servers().iter().filter_map(|one| one.source_server_id());
            account.busy.extend(ids.map(str::to_owned));
        }
        account
    }

    fn add(&mut self, job: &Job, servers: usize) {
        self.jobs += 1;
        self.servers += servers.max(job.participating_servers().len());
    }
}

impl Runner {
    /// Starts jobs by `throttler` and looks at them every `poll`.
    #[must_use]
    pub fn new(throttler: &JobThrottler, poll: Span) -> Self {
        // Whoever waits here goes on looking meanwhile, so the throttle waits for no more than one look.
        Self { throttler: throttler.clone().within(poll), poll, conflicts: BTreeMap::new() }
    }

    /// Takes `campaign` to its end. `keep` is called before anything is sent and after every look: what it was given last is
    /// where an interrupted campaign goes on.
    ///
    /// # Errors
    /// Those of every call, if they concern more than one wave, and those of `keep`.
    pub async fn run(&mut self, campaign: &mut Campaign, keep: &mut Keep<'_>) -> Result<(), Error> {
        loop {
            self.look(campaign).await?;
            let waiting = self.start_what_fits(campaign, keep).await?;
            keep(campaign, waiting.as_ref())?;
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

    /// What became of the jobs that are under way.
    async fn look(&self, campaign: &mut Campaign) -> Result<(), Error> {
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
                wave.learn(job);
            }
        }
        Ok(())
    }

    async fn start_what_fits(
        &mut self,
        campaign: &mut Campaign,
        keep: &mut Keep<'_>,
    ) -> Result<Option<Waiting>, Error> {
        let is_open = |stage: &Stage| matches!(stage, Stage::Waiting | Stage::Starting { .. });
        if !campaign.waves.iter().any(|wave| is_open(&wave.stage)) {
            return Ok(None);
        }
        let from = Some(self.client().clock().now() - LOOK_BACK);
        let jobs =
            self.client().describe_jobs(&JobFilter { from, ..JobFilter::default() }).all().await?;
        let mut account = Account::of(&jobs);
        let mut waiting = None;
        for number in 0..campaign.waves.len() {
            let wave = &campaign.waves[number];
            let size = wave.servers.len();
            match wave.stage {
                // It was being sent when the campaign was interrupted: perhaps it arrived.
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
            let busy = wave.servers.keys().filter(|id| account.busy.contains(*id)).count();
            if 0 < busy {
                waiting = Some(Waiting::ForOthers { servers: busy });
                continue;
            }
            let before = wave.stage.clone();
            campaign.waves[number].starting(self.client().clock().now());
            keep(campaign, None)?;
            match self.throttler.start_recovery(&campaign.recovery(number)).await {
                Ok(job) => {
                    account.add(&job, size);
                    campaign.waves[number].stage = Stage::Running { job: job.job_id().to_owned() };
                    keep(campaign, None)?;
                }
                Err(Error::JobCapacityTimeout(full)) => {
                    campaign.waves[number].stage = before;
                    return Ok(Some(Waiting::ForJobs { jobs: full.current_jobs, threshold }));
                }
                Err(error) => self.refused(campaign, number, error)?,
            }
        }
        Ok(waiting)
    }

    /// A refusal that concerns one wave ends that wave; any other ends the run.
    fn refused(
        &mut self,
        campaign: &mut Campaign,
        number: usize,
        error: Error,
    ) -> Result<(), Error> {
        let wave = &mut campaign.waves[number];
        match &error {
            // It stays as it is being sent: perhaps it conflicts with the job that it started before an interruption,
            // which the list did not show yet.
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
