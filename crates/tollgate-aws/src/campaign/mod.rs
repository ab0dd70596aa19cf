//! The recovery of many servers, as waves that fit into the quotas of the service, and where each of them is.
//!
//! A campaign is a value that can be written down: whoever keeps it before each step can be interrupted at any moment and go
//! on. [`Runner`] takes the steps.

mod others;
mod run;

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_drs::types::{Job, JobStatus, LaunchStatus};
use serde::{Deserialize, Serialize};
use tollgate::Timestamp;

use crate::drs::{Recovery, SERVERS_PER_JOB_MAX};
use crate::error::Error;

pub use others::CAMPAIGN_TAG;
pub use run::{CONFLICTS_MAX, Keep, Runner, Waiting};

/// The most servers of one campaign: the quota of source servers of an account, five times over.
pub const SERVERS_MAX: usize = 20_000;

/// The recovery of many servers.
///
/// ```
/// use tollgate_aws::campaign::Campaign;
///
/// let servers = (0..250).map(|number| format!("s-{number:017x}"));
/// let campaign = Campaign::plan("night-drill", servers, true)?;
/// assert_eq!(campaign.waves.iter().map(|wave| wave.servers.len()).collect::<Vec<_>>(), [100, 100, 50]);
/// # Ok::<(), tollgate_aws::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Campaign {
    /// Makes its jobs recognisable: it is part of the tag that each carries.
    pub id: String,
    /// Whether it is a drill.
    pub is_drill: bool,
    /// When it was planned, in microseconds since 1970; the first run sets it if it is missing. A server that somebody
    /// else launches from then on is not launched again.
    #[serde(default)]
    pub since: Option<u64>,
    /// Its waves, each one job.
    pub waves: Vec<Wave>,
}

/// Servers that are recovered by one job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wave {
    /// How far it is.
    pub stage: Stage,
    /// Its servers, and what became of them.
    pub servers: BTreeMap<String, Outcome>,
}

/// How far a wave is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Nothing was sent.
    Waiting,
    /// It is being sent, or was when the campaign was interrupted.
    Starting {
        /// When, in microseconds since 1970.
        since: u64,
    },
    /// Its job is under way.
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

/// What became of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is not there yet.
    Open,
    /// It runs.
    Launched {
        /// The recovery instance, where the service named it.
        instance: Option<String>,
    },
    /// It does not.
    Failed {
        /// Why, as far as is known.
        why: String,
    },
}

/// How many servers are how far.
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
    /// A campaign over `servers`, of which each counts once, in waves as large as one job may be.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there are none or more than [`SERVERS_MAX`], or the id is no short word.
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

    /// How many servers are how far.
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

    /// Whether nothing more will happen.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.waves.iter().all(|wave| matches!(wave.stage, Stage::Ended { .. }))
    }

    /// Its servers, in the order of its waves.
    pub fn servers(&self) -> impl Iterator<Item = (&str, &Outcome)> {
        self.waves.iter().flat_map(|wave| &wave.servers).map(|(id, outcome)| (id.as_str(), outcome))
    }

    /// What wave `number` asks for, under an id that stays the same however often it is sent.
    fn recovery(&self, number: usize) -> Recovery {
        Recovery::of(self.waves[number].open())
            .drill(self.is_drill)
            .tag(CAMPAIGN_TAG, &self.id)
            .request_id(self.request_id(number))
    }

    fn request_id(&self, number: usize) -> String {
        format!("{}-{number}", self.id)
    }
}

impl Wave {
    /// Its job, if it has one.
    #[must_use]
    pub fn job(&self) -> Option<&str> {
        match &self.stage {
            Stage::Running { job } => Some(job),
            Stage::Ended { job } => job.as_deref(),
            Stage::Waiting | Stage::Starting { .. } => None,
        }
    }

    /// The servers that are neither launched nor failed.
    fn open(&self) -> impl Iterator<Item = &String> {
        self.servers.iter().filter(|(_, outcome)| **outcome == Outcome::Open).map(|(id, _)| id)
    }

    /// It is being sent, since `now` unless it was before.
    fn starting(&mut self, now: Timestamp) {
        if self.stage == Stage::Waiting {
            self.stage = Stage::Starting { since: now.as_micros() };
        }
    }

    /// Nothing of it will run, because of `why`.
    fn fail(&mut self, why: &str) {
        for outcome in self.servers.values_mut().filter(|outcome| **outcome == Outcome::Open) {
            *outcome = Outcome::Failed { why: why.to_owned() };
        }
        self.stage = Stage::Ended { job: self.job().map(str::to_owned) };
    }

    /// Takes over what `job`, which is its own, says.
    fn learn(&mut self, job: &Job) {
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
