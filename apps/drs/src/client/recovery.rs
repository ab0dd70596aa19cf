//! Starts and terminates machines idempotently.
//!
//! The service has no idempotency token, so every job carries a unique tag. After a lost response, the jobs are searched for
//! that tag (or, to terminate, for the same instances) after the delay of the retry, and the call is sent again only if there
//! is none. An attempt that arrives late meets a busy server, and the conflict leads to another search.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use aws_sdk_drs::types::{Job, JobType, StartRecoveryRequestSourceServer};
use tollgate::{Span, Timestamp};

use super::call::AttemptError;
use super::{DrsClient, JobFilter, SERVERS_PER_JOB_MAX, TERMINATE_MAX};
use crate::error::{Ambiguous, Context, Error};
use crate::failure::Failure;
use crate::monitor::Event;
use crate::retry::RetryOptions;

/// The tag by which jobs are found again.
pub const REQUEST_TAG: &str = "rl-request-id";

/// The clock skew between the service and this machine that a search for a job allows.
pub const LOOKUP_MARGIN: Span = Span::from_mins(5);

/// Which servers to recover, and how.
///
/// ```
/// use tollgate_drs::Recovery;
///
/// let drill = Recovery::new(["s-00000000000000001"]).drill(true).tag("wave", "1");
/// assert_eq!(drill.servers().count(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Each with the snapshot to start from, if not the latest.
    servers: BTreeMap<String, Option<String>>,
    is_drill: bool,
    tags: BTreeMap<String, String>,
    request_id: Option<String>,
}

impl Recovery {
    /// Returns a recovery of `servers` from their latest snapshots.
    #[must_use]
    pub fn new(servers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let servers = servers.into_iter().map(|server| (server.into(), None)).collect();
        Self { servers, ..Self::default() }
    }

    /// Starts `server` from `snapshot`.
    #[must_use]
    pub fn snapshot(mut self, server: impl Into<String>, snapshot: impl Into<String>) -> Self {
        self.servers.insert(server.into(), Some(snapshot.into()));
        self
    }

    /// Sets whether it is a drill.
    #[must_use]
    pub const fn drill(mut self, is_drill: bool) -> Self {
        self.is_drill = is_drill;
        self
    }

    /// Adds a tag to its job.
    #[must_use]
    pub fn tag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.insert(name.into(), value.into());
        self
    }

    /// Sets the request id, by which the caller can find the job after a crash; see
    /// [`find_recovery`](DrsClient::find_recovery).
    #[must_use]
    pub fn request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }

    /// Returns the servers.
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
    /// Starts a job that recovers servers. Idempotent: one job is started, even if responses are lost.
    ///
    /// # Errors
    /// Besides those of every call, [`Error::Ambiguous`] if the response was lost and the jobs could not be searched.
    pub async fn start_recovery(&self, recovery: &Recovery) -> Result<Job, Error> {
        self.start(recovery, self.retry()).await
    }

    pub(crate) async fn start(
        &self,
        recovery: &Recovery,
        retry: &RetryOptions,
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
            started.job.ok_or_else(|| no_job("StartRecovery"))
        };
        self.once(context, retry, Some(id), send, || self.find_recovery(id, since)).await
    }

    /// Finds the job that was started with `request_id` at `since` or later.
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

    /// Starts a job that terminates recovery instances. Idempotent: one job is started, even if responses are lost.
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
            started.job.ok_or_else(|| no_job("TerminateRecoveryInstances"))
        };
        self.once(context, self.retry(), None, send, || self.find(since, ends_these)).await
    }

    /// Finds the newest job since `since`, less [`LOOKUP_MARGIN`], that matches.
    async fn find(
        &self,
        since: Timestamp,
        matches: impl Fn(&Job) -> bool,
    ) -> Result<Option<Job>, Error> {
        let filter = JobFilter { from: Some(since - LOOKUP_MARGIN), ..JobFilter::default() };
        let mut pages = self.describe_jobs(&filter);
        while let Some(page) = pages.next_page().await {
            if let Some(job) = page?.into_iter().find(&matches) {
                return Ok(Some(job));
            }
        }
        Ok(None)
    }

    /// Sends with retries, and looks the job up before a call is sent again whose response was lost.
    async fn once<S, L>(
        &self,
        context: &Context,
        retry: &RetryOptions,
        request_id: Option<&str>,
        send: impl Fn(u32) -> S,
        look: impl Fn() -> L,
    ) -> Result<Job, Error>
    where
        S: Future<Output = Result<Job, AttemptError>>,
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
                    && let Some(job) = look_for(failure).await.map_err(AttemptError::Stop)?
                {
                    return Ok(job);
                }
                let failure = match sending.await {
                    Err(AttemptError::Failed(failure)) => failure,
                    other => return other,
                };
                let is_taken = matches!(failure.status, Some(404 | 409));
                if let Some(earlier) = before.filter(|_| is_taken)
                    && let Some(job) = look_for(earlier).await.map_err(AttemptError::Stop)?
                {
                    return Ok(job);
                }
                if failure.is_ambiguous() {
                    *lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure.clone());
                }
                Err(AttemptError::Failed(failure))
            }
        };
        let mut answer = self.run(context, retry, attempt).await;
        // Whatever the error: it must not claim that no job was started if there is one.
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

fn no_job(operation: &str) -> AttemptError {
    AttemptError::Stop(Error::Invalid(format!(
        "{operation} got a response without a job, which the service never sends"
    )))
}
