//! Jobs of other callers with servers of a plan: launches that run, and recent ones.

use std::collections::BTreeMap;

use crate::JobFilter;
use crate::campaign::Campaign;
use crate::throttle::LOOK_BACK;
use aws_sdk_drs::types::{Job, JobStatus, JobType, LaunchStatus};
use serde_json::{Value, json};
use tollgate::{Span, Timestamp};

use super::{Session, invalid};
use tollgate_terminal::Failure;

/// The age of a launch that causes a warning.
const RECENT: Span = Span::from_hours(1);

/// The jobs of the account that have servers of a plan.
#[derive(Debug, Default)]
pub(super) struct Overlap {
    /// The number of servers in each launch job that runs.
    under_way: BTreeMap<String, usize>,
    /// The number of servers that were launched within the last hour.
    recent: usize,
    /// When the last of those launches ended, and its job.
    last: Option<(Span, String)>,
}

impl Overlap {
    pub(super) async fn find(session: &Session, campaign: &Campaign) -> Result<Self, Failure> {
        let now = session.client.clock().now();
        let filter = JobFilter { from: Some(now - LOOK_BACK), ..JobFilter::default() };
        let jobs = session.client.describe_jobs(&filter).all().await?;
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

    /// Returns the warnings before the start.
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
                Span::from_secs(ago.as_secs_ceil().max(1)).humanize()
            ));
        }
        lines
    }

    pub(super) fn to_json(&self) -> Value {
        json!({ "under_way": self.under_way, "recovered_recently": self.recent })
    }

    /// Returns an error if servers are being launched: they would be launched twice.
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
