//! Jobs that have servers of a plan: a launch that is under way, and one that ended a short time ago.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tollgate::{Span, Timestamp};
use tollgate_aws::JobFilter;
use tollgate_aws::campaign::Campaign;
use tollgate_aws::sdk::types::{Job, JobStatus, JobType, LaunchStatus};
use tollgate_aws::throttle::LOOK_BACK;

use super::{Desk, invalid};
use crate::failure::Failure;

/// How long ago a launch may have ended to be worth a warning.
const RECENT: Span = Span::from_hours(1);

/// What the jobs of the account mean for a plan.
#[derive(Debug, Default)]
pub(super) struct Overlap {
    /// By launch job that is not over: how many of the servers it has.
    under_way: BTreeMap<String, usize>,
    /// The servers that were launched within the last hour.
    recent: usize,
    /// When the last of those launches ended, and its job.
    last: Option<(Span, String)>,
}

impl Overlap {
    pub(super) async fn find(desk: &Desk, campaign: &Campaign) -> Result<Self, Failure> {
        let now = desk.client.clock().now();
        let filter = JobFilter { from: Some(now - LOOK_BACK), ..JobFilter::default() };
        let jobs = desk.client.describe_jobs(&filter).all().await?;
        let servers = campaign.servers().map(|(id, _)| id).collect();
        Ok(Self::between(&jobs, &servers, now))
    }

    fn between(jobs: &[Job], servers: &std::collections::BTreeSet<&str>, now: Timestamp) -> Self {
        let mut overlap = Self::default();
        let mut recent = std::collections::BTreeSet::new();
        for job in jobs.iter().filter(|job| job.r#type() == Some(&JobType::Launch)) {
            let of_plan = job
                .participating_servers()
                .iter()
                .filter(|one| one.source_server_id().is_some_and(|id| servers.contains(id)));
            if job.status() != Some(&JobStatus::Completed) {
                let count = of_plan.count();
                if 0 < count {
                    overlap.under_way.insert(job.job_id().to_owned(), count);
                }
                continue;
            }
            let ended = job.end_date_time().and_then(|at| at.parse::<Timestamp>().ok());
            let Some(ago) = ended.map(|at| now.since(at)).filter(|ago| *ago < RECENT) else {
                continue;
            };
            let before = recent.len();
            recent.extend(
                of_plan
                    .filter(|one| one.launch_status() == Some(&LaunchStatus::Launched))
                    .filter_map(|one| one.source_server_id()),
            );
            let is_later = overlap.last.as_ref().is_none_or(|(last, _)| ago < *last);
            if before < recent.len() && is_later {
                overlap.last = Some((ago, job.job_id().to_owned()));
            }
        }
        overlap.recent = recent.len();
        overlap
    }

    /// What to say before anything is started, a line each.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .under_way
            .iter()
            .map(|(job, servers)| {
                format!("warning: {servers} of these servers are being launched by {job}")
            })
            .collect();
        if let Some((ago, job)) = &self.last {
            lines.push(format!(
                "warning: {} of these servers were recovered within the last hour, the last {} ago by {job}; they would be recovered again",
                self.recent,
                Span::from_secs(ago.as_secs_ceil().max(1)).for_people()
            ));
        }
        lines
    }

    pub(super) fn to_json(&self) -> Value {
        json!({ "under_way": self.under_way, "recovered_recently": self.recent })
    }

    /// Refuses a plan with servers that are being launched: they would be launched twice.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let Some(first) = self.under_way.keys().next() else { return Ok(()) };
        let servers: usize = self.under_way.values().sum();
        let jobs: Vec<&str> = self.under_way.keys().map(String::as_str).collect();
        Err(invalid(format!(
            "{servers} of these servers are being launched by {}; nothing was started. Wait until it is over (tollgate drs jobs {first}), \
             or leave these servers out",
            jobs.join(", ")
        )))
    }
}
