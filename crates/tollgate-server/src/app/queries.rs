//! What callers read: counts, queues, the audit and readiness.

use tollgate::internal::{LogLimit, timeout};
use tollgate::{Error, ErrorKind, GateExt as _, Timestamp};

use tollgate_protocol::json::{
    AuditQuery, AuditResponse, KINDS_MAX, QueuesResponse, StatsResponse, TopQuery, TopResponse,
    kind_index,
};

use super::App;
use crate::bounds::{READY_EVERY, READY_WAIT_MAX};

/// The subject that readiness queries. It never asks, so it uses nothing.
const READY_SUBJECT: &str = "tollgate-ready";

impl App {
    pub(crate) fn stats(&self) -> StatsResponse {
        let now = self.clock.now();
        StatsResponse {
            broker: self.broker_id.clone(),
            since: Some(self.stats.began()),
            now: Some(now),
            policies: self.stats.read(&self.policies()),
            latency: self.stats.latency(now),
            store: self.health.as_ref().map(|health| health()).unwrap_or_default(),
            audit: self.audit.stats(),
            gateway: self.gateway.get().map(|read| read()),
        }
    }

    /// Returns the asks that wait.
    pub(crate) fn queues(&self) -> QueuesResponse {
        (&self.gate.snapshot()).into()
    }

    pub(crate) async fn audit_records(&self, query: &AuditQuery) -> Result<AuditResponse, Error> {
        let query = query.resolve(self.clock.now())?;
        let found = self.audit.find(&query, &*self.clock).await?;
        Ok(AuditResponse {
            records: found.page.records.iter().map(Into::into).collect(),
            next: found.page.next,
            partial: found.is_partial,
        })
    }

    pub(crate) async fn top_subjects(&self, query: TopQuery) -> Result<TopResponse, Error> {
        let limit = AuditQuery { limit: query.limit, ..Default::default() };
        let limit = limit.resolve(self.clock.now())?.limit;
        let (subjects, since) = self.audit.top(limit, &*self.clock).await;
        Ok(TopResponse { since: Some(since), subjects })
    }

    /// Checks that the server accepts requests and its store answers. Queries the store at most every [`READY_EVERY`].
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        if *self.stopping.borrow() {
            return Err(Error::new(ErrorKind::Unavailable, "the server is stopping"));
        }
        self.envoy().check_ready()?;
        let mut last = self.readiness.lock().await;
        let now = self.clock.now();
        if let Some((at, answer)) = &*last
            && *at <= now
            && now < *at + READY_EVERY
        {
            return answer.clone();
        }
        let answer = self.check_store().await;
        if let Err(error) = &answer {
            log_not_ready(error, now);
        }
        *last = Some((self.clock.now(), answer.clone()));
        answer
    }

    async fn check_store(&self) -> Result<(), Error> {
        let policies = self.policies();
        if let Some(policy) = policies.iter().next() {
            let standing = self.gate.standing(policy, READY_SUBJECT);
            let standing = timeout(&*self.clock, READY_WAIT_MAX, standing).await;
            let late = || Error::new(ErrorKind::Unavailable, "the store did not answer in time");
            standing.ok_or_else(late)??;
        }
        // A fallback answers without the store.
        if self.health.as_ref().is_some_and(|health| health().misconfigured) {
            let text = "the store does not serve this broker; the broker's log has the cause";
            return Err(Error::new(ErrorKind::Misconfigured, text));
        }
        Ok(())
    }
}

/// Logs why the server is not ready, once per kind in a while: probes repeat every second.
fn log_not_ready(error: &Error, now: Timestamp) {
    static LIMITS: [LogLimit; KINDS_MAX] = [const { LogLimit::new() }; KINDS_MAX];
    if let Some(suppressed) = LIMITS[kind_index(error.kind())].pass(now) {
        tracing::warn!(%error, suppressed, "not ready");
    }
}
