//! Jobs of other runners of the same campaign, and of other callers.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_drs::types::{InitiatedBy, Job, JobStatus, JobType, LaunchStatus};
use tollgate::Timestamp;

use super::{Campaign, Outcome, Stage};
use crate::client::REQUEST_TAG;

/// The tag of every job of a campaign: its value is the id of the campaign.
pub const CAMPAIGN_TAG: &str = "tollgate-campaign";

/// Launches of other callers during a campaign.
#[derive(Debug, Default)]
pub(super) struct OtherCallers {
    /// Jobs that ran at one of the polls. The creation time is not enough, because the clocks of the service and of this
    /// machine may differ.
    seen: BTreeSet<String>,
}

impl OtherCallers {
    /// Adopts `jobs` of others for waves that are not running: the job that another runner of the same campaign started for a
    /// wave becomes its job, and a server that another caller launched for the same purpose counts as launched. A drill does
    /// not count for a recovery, nor a recovery for a drill.
    pub(super) fn adopt(&mut self, campaign: &mut Campaign, jobs: &[Job]) {
        for number in 0..campaign.waves.len() {
            let id = campaign.request_id(number);
            let wave = &mut campaign.waves[number];
            if is_open(&wave.stage)
                && let Some(job) = jobs.iter().find(|job| tag(job, REQUEST_TAG) == Some(&id))
            {
                wave.stage = Stage::Running { job: job.job_id().to_owned() };
                wave.update(job);
            }
        }
        let launched = self.launched(campaign, jobs);
        for wave in campaign.waves.iter_mut().filter(|wave| is_open(&wave.stage)) {
            for (id, outcome) in &mut wave.servers {
                if *outcome == Outcome::Open
                    && let Some(instance) = launched.get(id.as_str())
                {
                    *outcome = Outcome::Launched { instance: instance.map(str::to_owned) };
                }
            }
            if wave.open().next().is_none() {
                wave.stage = Stage::Ended { job: None };
            }
        }
    }

    /// Returns the servers that other callers launched since the campaign began, with their instances.
    fn launched<'a>(
        &mut self,
        campaign: &Campaign,
        jobs: &'a [Job],
    ) -> BTreeMap<&'a str, Option<&'a str>> {
        let purpose =
            if campaign.is_drill { InitiatedBy::StartDrill } else { InitiatedBy::StartRecovery };
        let since = campaign.since.map(Timestamp::from_micros);
        let mut launched = BTreeMap::new();
        for job in jobs {
            if job.r#type() != Some(&JobType::Launch)
                || job.initiated_by() != Some(&purpose)
                || tag(job, CAMPAIGN_TAG) == Some(&campaign.id)
            {
                continue;
            }
            if job.status() != Some(&JobStatus::Completed) {
                self.seen.insert(job.job_id().to_owned());
            }
            let created = job.creation_date_time().and_then(|at| at.parse::<Timestamp>().ok());
            let is_later = created.zip(since).is_some_and(|(created, since)| since <= created);
            if is_later || self.seen.contains(job.job_id()) {
                let servers = job.participating_servers().iter();
                launched.extend(
                    servers
                        .filter(|one| one.launch_status() == Some(&LaunchStatus::Launched))
                        .filter_map(|one| {
                            Some((one.source_server_id()?, one.recovery_instance_id()))
                        }),
                );
            }
        }
        launched
    }
}

pub(super) const fn is_open(stage: &Stage) -> bool {
    matches!(stage, Stage::Waiting | Stage::Starting { .. })
}

fn tag<'a>(job: &'a Job, name: &str) -> Option<&'a String> {
    job.tags().and_then(|tags| tags.get(name))
}
