//! Starting and ending machines: never sent again before a look at what became of the first attempt.
//!
//! The service has no idempotency token. So every start carries a tag that nobody else has. When an answer is lost, jobs
//! are looked through for that tag (or, for an end, for the same instances) after the pause before the next attempt; only
//! where there is none is it sent again. An attempt that arrives late after all meets a server that is busy, and the
//! conflict leads to another look.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use aws_sdk_drs::types::{Job, JobType, StartRecoveryRequestSourceServer};
use tollgate::{Span, Timestamp};

use super::call::Trouble;
use super::{DrsClient, JobFilter, SERVERS_PER_JOB_MAX, TERMINATE_MAX};
use crate::error::{Ambiguous, Context, Error};
use crate::failure::Failure;
use crate::monitor::Event;
use crate::retry::RetryConfig;

/// The tag of every job that is started here: by it a job is found again.
pub const REQUEST_TAG: &str = "rl-request-id";

/// How far the clocks of the service and of this machine may differ when a job is looked for.
pub const LOOKUP_MARGIN: Span = Span::from_mins(5);

/// Which servers to recover, and how.
///
/// ```
/// use tollgate_aws::Recovery;
///
/// let drill = Recovery::of(["s-00000000000000001"]).drill(true).tag("wave", "1");
/// assert_eq!(drill.servers().count(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// With the snapshot to start from, if not the latest.
    servers: BTreeMap<String, Option<String>>,
    is_drill: bool,
    tags: BTreeMap<String, String>,
    request_id: Option<String>,
}

impl Recovery {
    /// A recovery of `servers` from their latest snapshots.
    #[must_use]
    pub fn of(servers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let servers = servers.into_iter().map(|server| (server.into(), None)).collect();
        Self { servers, ..Self::default() }
    }

    /// The same, with `server` started from `snapshot`.
    #[must_use]
    pub fn snapshot(mut self, server: impl Into<String>, snapshot: impl Into<String>) -> Self {
        self.servers.insert(server.into(), Some(snapshot.into()));
        self
    }

    /// Whether it is a drill.
    #[must_use]
    pub const fn drill(mut self, is_drill: bool) -> Self {
        self.is_drill = is_drill;
        self
    }

    /// The same, with a tag on its job.
    #[must_use]
    pub fn tag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.insert(name.into(), value.into());
        self
    }

    /// The same under an id of the caller's, who can find its job by it after a crash; see
    /// [`find_recovery`](DrsClient::find_recovery).
    #[must_use]
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }

    /// Its servers.
    pub fn servers(&self) -> impl ExactSizeIterator<Item = &str> {
        self.servers.keys().map(String::as_str)
    }

    fn check(&self) -> Result<(), Error> {
        let count = self.servers.len();
        if count == 0 || SERVERS_PER_JOB_MAX < count {
            return Err(Error::Invalid(format!(
                "a job recovers 1 to {SERVERS_PER_JOB_MAX} servers, not {count}; make several jobs of them"
            )));
        }
        match &self.request_id {
            Some(id) if id.is_empty() || 256 < id.len() => Err(Error::Invalid(format!(
                "a request id must be 1 to 256 bytes long, not {}",
                id.len()
            ))),
            _ => Ok(()),
        }
    }
}

impl DrsClient {
    /// Starts a job that recovers servers. However often the answer is lost, one job is started.
    ///
    /// # Errors
    /// Besides those of every call, [`Error::Ambiguous`] if the answer was lost and the jobs could not be looked through.
    pub async fn start_recovery(&self, recovery: &Recovery) -> Result<Job, Error> {
        self.start(recovery, self.retry()).await
    }

    pub(crate) async fn start(
        &self,
        recovery: &Recovery,
        retry: &RetryConfig,
    ) -> Result<Job, Error> {
        recovery.check()?;
        let context = self.context("StartRecovery");
        let request_id =
            recovery.request_id.clone().unwrap_or_else(|| context.correlation_id.to_string());
        let mut call = self
            .0
            .client
            .start_recovery()
            .is_drill(recovery.is_drill)
            .tags(REQUEST_TAG, &request_id);
        for (name, value) in &recovery.tags {
            call = call.tags(name, value);
        }
        for (server, snapshot) in &recovery.servers {
            let server = StartRecoveryRequestSourceServer::builder().source_server_id(server);
            let server = server.set_recovery_snapshot_id(snapshot.clone()).build();
            call = call.source_servers(server.map_err(|error| Error::Invalid(error.to_string()))?);
        }
        let since = self.clock().now();
        let (context, call, id) = (&context, &call, &request_id);
        let send = |number| async move {
            let started = self.attempt(context, number, call.clone().send()).await?;
            started.job.ok_or_else(|| nothing("StartRecovery"))
        };
        self.once(context, retry, Some(id), send, || self.find_recovery(id, since)).await
    }

    /// The job that was started under `request_id` at `since` or later, if there is one.
    ///
    /// # Errors
    /// Those of every call.
    pub async fn find_recovery(
        &self,
        request_id: &str,
        since: Timestamp,
    ) -> Result<Option<Job>, Error> {
        let has_tag = |job: &Job| {
            job.tags
                .as_ref()
                .and_then(|tags| tags.get(REQUEST_TAG))
                .is_some_and(|id| id == request_id)
        };
        self.find(since, has_tag).await
    }

    /// Starts a job that terminates recovery instances. However often the answer is lost, one job is started.
    ///
    /// # Errors
    /// As [`start_recovery`](Self::start_recovery).
    pub async fn terminate_recovery_instances(&self, ids: &[String]) -> Result<Job, Error> {
        if ids.is_empty() || TERMINATE_MAX < ids.len() {
            return Err(Error::Invalid(format!(
                "one call terminates 1 to {TERMINATE_MAX} instances, not {}; make several of it",
                ids.len()
            )));
        }
        let context = &self.context("TerminateRecoveryInstances");
        let call = &self
            .0
            .client
            .terminate_recovery_instances()
            .set_recovery_instance_ids(Some(ids.to_vec()));
        let since = self.clock().now();
        let wanted: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
        let wanted = &wanted;
        let ends_these = move |job: &Job| {
            let servers = job.participating_servers().iter();
            let ended: BTreeSet<&str> =
                servers.filter_map(|server| server.recovery_instance_id()).collect();
            job.r#type == Some(JobType::Terminate) && wanted.is_subset(&ended)
        };
        let send = |number| async move {
            let started = self.attempt(context, number, call.clone().send()).await?;
            started.job.ok_or_else(|| nothing("TerminateRecoveryInstances"))
        };
        self.once(context, self.retry(), None, send, || self.find(since, ends_these)).await
    }

    /// The newest job since `since`, less [`LOOKUP_MARGIN`], that is the one.
    async fn find(
        &self,
        since: Timestamp,
        is_it: impl Fn(&Job) -> bool,
    ) -> Result<Option<Job>, Error> {
        let filter = JobFilter { from: Some(since - LOOKUP_MARGIN), ..JobFilter::default() };
        let mut pages = self.describe_jobs(&filter);
        while let Some(page) = pages.next_page().await {
            if let Some(job) = page?.into_iter().find(&is_it) {
                return Ok(Some(job));
            }
        }
        Ok(None)
    }

    /// Sends until there is an answer, and looks before anything is sent again whose answer was lost.
    async fn once<S, L>(
        &self,
        context: &Context,
        retry: &RetryConfig,
        request_id: Option<&str>,
        send: impl Fn(u32) -> S,
        look: impl Fn() -> L,
    ) -> Result<Job, Error>
    where
        S: Future<Output = Result<Job, Trouble>>,
        L: Future<Output = Result<Option<Job>, Error>>,
    {
        let lost = Mutex::new(None::<Failure>);
        let lost_so_far = || lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let look_for = |failure: Failure| {
            let looking = look();
            async move {
                let found = looking.await.map_err(|lookup| {
                    let request_id = request_id.map(str::to_owned);
                    Error::Ambiguous(
                        Ambiguous { context: context.clone(), failure, lookup, request_id }.into(),
                    )
                })?;
                self.observe(&Event::LookedUp {
                    context,
                    job: found.as_ref().map(|job| job.job_id.as_str()),
                });
                Ok::<_, Error>(found)
            }
        };
        let attempt = |number| {
            let (sending, before) = (send(number), lost_so_far());
            let (lost, look_for) = (&lost, &look_for);
            async move {
                if let Some(failure) = before.clone()
                    && let Some(job) = look_for(failure).await.map_err(Trouble::Stop)?
                {
                    return Ok(job);
                }
                let failure = match sending.await {
                    Err(Trouble::Failed(failure)) => failure,
                    other => return other,
                };
                let is_taken = matches!(failure.status, Some(404 | 409));
                if let Some(earlier) = before.filter(|_| is_taken)
                    && let Some(job) = look_for(earlier).await.map_err(Trouble::Stop)?
                {
                    return Ok(job);
                }
                if failure.is_ambiguous() {
                    *lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.clone());
                }
                Err(Trouble::Failed(failure))
            }
        };
        let mut answer = self.run(context, retry, attempt).await;
        // Whatever ended it: a caller must not be told that nothing was started where something was.
        let is_open = answer.as_ref().is_err_and(|error| !matches!(error, Error::Ambiguous(_)));
        if let Some(failure) = lost_so_far().filter(|_| is_open) {
            match look_for(failure).await {
                Ok(Some(job)) => answer = Ok(job),
                Ok(None) => {}
                Err(error) => answer = Err(error),
            }
        }
        self.conclude(context, answer).await
    }
}

fn nothing(operation: &str) -> Trouble {
    Trouble::Stop(Error::Invalid(format!(
        "{operation} was answered without a job, which the service never does"
    )))
}
