//! A client of AWS Elastic Disaster Recovery. Every attempt takes a token, there is one layer of retries, and calls that start
//! or terminate machines are idempotent.

mod builder;
mod call;
mod options;
mod pages;
mod recovery;
mod role;

use std::sync::Arc;

use aws_sdk_drs::Client;
use aws_sdk_drs::operation::get_launch_configuration::GetLaunchConfigurationOutput;
use aws_sdk_drs::types::{
    DescribeJobsRequestFilters, DescribeRecoveryInstancesRequestFilters,
    DescribeSourceServersRequestFilters, Job, JobLog, RecoveryInstance, SourceServer,
};
use tollgate::strategy::RandomSource;
use tollgate::{Clock, Span, Timestamp};

use crate::error::Error;
use crate::escalation::Escalate;
use crate::monitor::Monitor;
use crate::retry::RetryOptions;
use tollgate_aws::Bucket;
use tollgate_aws::ServiceBuckets;

pub use builder::{ATTEMPT_DEFAULT, Builder};
pub use options::{
    BASE_DELAY_VARIABLE, BURST_VARIABLE, ClientOptions, EXTERNAL_ID_VARIABLE, LOG_LEVEL_VARIABLE,
    MAX_DELAY_VARIABLE, MAX_RETRIES_VARIABLE, RATE_VARIABLE, ROLE_VARIABLE, VARIABLES,
};
pub use pages::{Items, Pages};
pub use recovery::{LOOKUP_MARGIN, REQUEST_TAG, Recovery};
pub use role::Role;

/// The most servers of one job, by quota. The interface takes 200.
pub const SERVERS_PER_JOB_MAX: usize = 100;

/// The most servers of all jobs that are not completed, by quota.
pub const SERVERS_IN_JOBS_MAX: usize = 500;

/// The most instances that one call terminates.
pub const TERMINATE_MAX: usize = 200;

/// A guarded client. Clones are cheap and share everything.
///
/// ```no_run
/// # async fn list() -> Result<(), tollgate_drs::Error> {
/// use tollgate_drs::DrsClient;
///
/// let drs = DrsClient::builder("eu-central-1").open().await?;
/// let mut servers = drs.describe_source_servers(&[]);
/// while let Some(page) = servers.next_page().await {
///     println!("{} servers", page?.len());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct DrsClient(Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    client: Client,
    buckets: ServiceBuckets,
    account: Arc<str>,
    region: Arc<str>,
    retry: RetryOptions,
    wait_max: Span,
    attempt_max: Span,
    clock: Arc<dyn Clock>,
    chance: RandomSource,
    monitor: Arc<dyn Monitor>,
    escalate: Option<Arc<dyn Escalate>>,
}

/// Lists the pages of a request builder of the SDK; the builders have no trait in common.
macro_rules! list_pages {
    ($client:expr, $operation:literal, $call:expr) => {{
        let call = $call;
        $client.pages($operation, move |token| {
            let call = call.clone().set_next_token(token);
            async move {
                call.send().await.map(|page| (page.items.unwrap_or_default(), page.next_token))
            }
        })
    }};
}

/// Which jobs to describe; all of them, if nothing is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Only these.
    pub ids: Vec<String>,
    /// Only those created at this time or later.
    pub from: Option<Timestamp>,
    /// Only those created until this time.
    pub to: Option<Timestamp>,
}

impl DrsClient {
    /// Returns a builder of a client in `region`.
    #[must_use]
    pub fn builder(region: impl Into<Arc<str>>) -> Builder {
        Builder::new(region.into())
    }

    /// Returns the region.
    #[must_use]
    pub fn region(&self) -> &str {
        &self.0.region
    }

    /// Returns the account, as it was configured.
    #[must_use]
    pub fn account(&self) -> &str {
        &self.0.account
    }

    /// Returns the clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.clock
    }

    /// Returns the bucket that calls of `operation` take tokens from.
    #[must_use]
    pub fn bucket(&self, operation: &str) -> &Arc<Bucket> {
        self.0.buckets.for_operation(Some(operation))
    }

    /// Lists the source servers with these ids, or all of them.
    #[must_use]
    pub fn describe_source_servers(&self, ids: &[String]) -> Pages<SourceServer> {
        let filters =
            DescribeSourceServersRequestFilters::builder().set_source_server_ids(some(ids)).build();
        let call = self.0.client.describe_source_servers().filters(filters);
        list_pages!(self, "DescribeSourceServers", call)
    }

    /// Lists the jobs that `filter` selects.
    #[must_use]
    pub fn describe_jobs(&self, filter: &JobFilter) -> Pages<Job> {
        let date = |at: Option<Timestamp>| at.map(|at| at.to_string());
        let filters = DescribeJobsRequestFilters::builder().set_job_ids(some(&filter.ids));
        let filters = filters.set_from_date(date(filter.from)).set_to_date(date(filter.to)).build();
        let call = self.0.client.describe_jobs().filters(filters);
        list_pages!(self, "DescribeJobs", call)
    }

    /// Lists the log of the job `id`.
    #[must_use]
    pub fn describe_job_log_items(&self, id: &str) -> Pages<JobLog> {
        let call = self.0.client.describe_job_log_items().job_id(id);
        list_pages!(self, "DescribeJobLogItems", call)
    }

    /// Lists the recovery instances with these ids, or of these source servers, or all of them.
    #[must_use]
    pub fn describe_recovery_instances(
        &self,
        ids: &[String],
        servers: &[String],
    ) -> Pages<RecoveryInstance> {
        let filters =
            DescribeRecoveryInstancesRequestFilters::builder().set_recovery_instance_ids(some(ids));
        let filters = filters.set_source_server_ids(some(servers)).build();
        let call = self.0.client.describe_recovery_instances().filters(filters);
        list_pages!(self, "DescribeRecoveryInstances", call)
    }

    /// Returns the launch configuration of the source server `id`.
    ///
    /// # Errors
    /// [`Error::Refused`] with `ResourceNotFoundException` if there is no such server, and those of every call.
    pub async fn get_launch_configuration(
        &self,
        id: &str,
    ) -> Result<GetLaunchConfigurationOutput, Error> {
        let context = self.context("GetLaunchConfiguration");
        let call = self.0.client.get_launch_configuration().source_server_id(id);
        let attempt = |number| self.attempt(&context, number, call.clone().send());
        self.call(&context, self.retry(), attempt).await
    }

    /// Returns the launch configurations of the source servers `ids`, in their order. The API has no batch call, so each
    /// server takes a call, with its own token and retries.
    ///
    /// # Errors
    /// The first that [`get_launch_configuration`](Self::get_launch_configuration) returns.
    pub async fn get_launch_configurations(
        &self,
        ids: &[String],
    ) -> Result<Vec<GetLaunchConfigurationOutput>, Error> {
        let mut all = Vec::with_capacity(ids.len());
        for id in ids {
            all.push(self.get_launch_configuration(id).await?);
        }
        Ok(all)
    }
}

/// Returns `ids` unless it is empty.
fn some(ids: &[String]) -> Option<Vec<String>> {
    (!ids.is_empty()).then(|| ids.to_vec())
}
