//! The recovery of many servers, in waves that fit into the quotas of the service.
//!
//! A campaign is a serializable value. A program that persists it before each step can be interrupted at any point and
//! continue. [`Runner`] takes the steps.

mod other_callers;
mod runner;

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_drs::types::{Job, JobStatus, LaunchStatus};
use serde::{Deserialize, Serialize};
use tollgate::Timestamp;

use crate::client::{Recovery, SERVERS_PER_JOB_MAX};
use crate::error::Error;

pub use other_callers::CAMPAIGN_TAG;
pub use runner::{CONFLICTS_MAX, Runner, SaveCampaign, Waiting};

/// The most servers of one campaign: the quota of source servers of an account, five times over.
pub const SERVERS_MAX: usize = 20_000;

/// The recovery of many servers.
///
/// ```
/// use tollgate_drs::campaign::Campaign;
///
/// let servers = (0..250).map(|number| format!("s-{number:017x}"));
/// let campaign = Campaign::plan("night-drill", servers, true)?;
/// assert_eq!(campaign.waves.iter().map(|wave| wave.servers.len()).collect::<Vec<_>>(), [100, 100, 50]);
/// # Ok::<(), tollgate_drs::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Campaign {
    /// The id, which is part of the tag of each of its jobs.
    pub id: String,
    /// Whether it is a drill.
    pub is_drill: bool,
    /// When it was planned, in microseconds since 1970; the first run sets it if it is missing. A server that another caller
    /// launches later is not launched again.
    #[serde(default)]
    pub since: Option<u64>,
    /// Its waves, each one job.
    pub waves: Vec<Wave>,
}

/// Servers that are recovered by one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wave {
    /// Its progress.
    pub stage: Stage,
    /// Its servers and their outcomes.
    pub servers: BTreeMap<String, Outcome>,
}

/// The progress of a wave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The job was not requested.
    Waiting,
    /// The job is being requested, or was when the campaign was interrupted.
    Starting {
        /// When, in microseconds since 1970.
        since: u64,
    },
    /// The job runs.
    Running {
        /// The job.
        job: String,
    },
    /// It is over.
    Ended {
        /// The job, if there was one.
        job: Option<String>,
    },
}

/// The outcome of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is not decided.
    Open,
    /// It runs.
    Launched {
        /// The recovery instance, where the service named it.
        instance: Option<String>,
    },
    /// It failed.
    Failed {
        /// Why, as far as is known.
        why: String,
    },
}

/// The number of servers by progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// In waves that were not started.
    pub waiting: usize,
    /// In jobs that are under way.
    pub launching: usize,
    /// That run.
    pub launched: usize,
    /// That failed.
    pub failed: usize,
}

impl Campaign {
    /// Plans the recovery of `servers`, without duplicates, in waves of the largest size of a job.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are none or more than [`SERVERS_MAX`], or the id is not 1 to 200 bytes long.
    pub fn plan(
        id: impl Into<String>,
        servers: impl IntoIterator<Item = String>,
        is_drill: bool,
    ) -> Result<Self, Error> {
        let id = id.into();
        if id.is_empty() || 200 < id.len() {
            return Err(Error::Invalid("the id of a campaign has 1 to 200 bytes".to_owned()));
        }
        let servers: Vec<String> =
            servers.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        if servers.is_empty() || SERVERS_MAX < servers.len() {
            return Err(Error::Invalid(format!(
                "a campaign recovers 1 to {SERVERS_MAX} servers, not {}",
                servers.len()
            )));
        }
        let wave = |servers: &[String]| Wave {
            stage: Stage::Waiting,
            servers: servers.iter().map(|server| (server.clone(), Outcome::Open)).collect(),
        };
        let waves = servers.chunks(SERVERS_PER_JOB_MAX).map(wave).collect();
        Ok(Self { id, is_drill, since: None, waves })
    }

    /// Counts the servers by progress.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for wave in &self.waves {
            for outcome in wave.servers.values() {
                match outcome {
                    Outcome::Launched { .. } => tally.launched += 1,
                    Outcome::Failed { .. } => tally.failed += 1,
                    Outcome::Open if wave.stage == Stage::Waiting => tally.waiting += 1,
                    Outcome::Open => tally.launching += 1,
                }
            }
        }
        tally
    }

    /// Returns whether all waves have ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.waves.iter().all(|wave| matches!(wave.stage, Stage::Ended { .. }))
    }

    /// Returns the servers in the order of the waves.
    pub fn servers(&self) -> impl Iterator<Item = (&str, &Outcome)> {
        self.waves.iter().flat_map(|wave| &wave.servers).map(|(id, outcome)| (id.as_str(), outcome))
    }

    /// Returns the request of wave `number`, with the same id on every attempt.
    fn recovery(&self, number: usize) -> Recovery {
        Recovery::new(self.waves[number].open())
            .drill(self.is_drill)
            .tag(CAMPAIGN_TAG, &self.id)
            .request_id(self.request_id(number))
    }

    fn request_id(&self, number: usize) -> String {
        format!("{}-{number}", self.id)
    }
}

impl Wave {
    /// Returns its job, if it has one.
    #[must_use]
    pub fn job(&self) -> Option<&str> {
        match &self.stage {
            Stage::Running { job } => Some(job),
            Stage::Ended { job } => job.as_deref(),
            Stage::Waiting | Stage::Starting { .. } => None,
        }
    }

    /// Returns the servers that are neither launched nor failed.
    fn open(&self) -> impl Iterator<Item = &String> {
        self.servers.iter().filter(|(_, outcome)| **outcome == Outcome::Open).map(|(id, _)| id)
    }

    /// Marks the job as requested at `now`, unless it was before.
    fn starting(&mut self, now: Timestamp) {
        if self.stage == Stage::Waiting {
            self.stage = Stage::Starting { since: now.as_micros() };
        }
    }

    /// Ends the wave: its undecided servers failed because of `why`.
    fn fail(&mut self, why: &str) {
        for outcome in self.servers.values_mut().filter(|outcome| **outcome == Outcome::Open) {
            *outcome = Outcome::Failed { why: why.to_owned() };
        }
        self.stage = Stage::Ended { job: self.job().map(str::to_owned) };
    }

    /// Updates the outcomes from `job`.
    fn update(&mut self, job: &Job) {
        for server in job.participating_servers() {
            let Some(outcome) = server.source_server_id().and_then(|id| self.servers.get_mut(id))
            else {
                continue;
            };
            match server.launch_status() {
                Some(LaunchStatus::Launched) => {
                    let instance = server.recovery_instance_id().map(str::to_owned);
                    *outcome = Outcome::Launched { instance };
                }
                Some(status @ (LaunchStatus::Failed | LaunchStatus::Terminated)) => {
                    let why = format!("its launch status is {status} in job {}", job.job_id());
                    *outcome = Outcome::Failed { why };
                }
                _ => {}
            }
        }
        if job.status == Some(JobStatus::Completed) {
            self.fail(&format!("job {} was completed without it", job.job_id()));
        }
    }
}
