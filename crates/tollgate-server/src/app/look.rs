//! What is to be seen of a server: its counts, who was limited, and whether it is ready.

use tollgate::{Error, ErrorKind, Gate as _};

use super::App;
use crate::bounds::{READY_EVERY, READY_WAIT_MAX};
use crate::wire::{
    AuditQuery, AuditResponse, AuditStats, LatencyStats, LimitedSubject, StatsResponse, TopQuery,
    TopResponse,
};
use tollgate::within;

/// The subject that readiness looks up; it never asks, so it never holds anything.
const READY_SUBJECT: &str = "tollgate-ready";

impl App {
    pub(crate) fn stats(&self) -> StatsResponse {
        let now = self.clock.now();
        let latency = self.stats.latency(now);
        let written = self.audit.written();
        StatsResponse {
            since: Some(self.stats.began()),
            now: Some(now),
            policies: self.stats.read(&self.policies()),
            latency: LatencyStats {
                decisions: latency.decisions,
                within_ms: latency.within.as_millis_ceil(),
                p50_us: latency.p50.as_micros(),
                p99_us: latency.p99.as_micros(),
            },
            store: self.health.as_ref().map(|health| health()).unwrap_or_default(),
            audit: AuditStats { recorded: written.recorded, dropped: written.dropped },
        }
    }

    /// Who was limited, when and why.
    pub(crate) async fn audited(&self, query: &AuditQuery) -> Result<AuditResponse, Error> {
        let query = query.resolve(self.clock.now())?;
        let found = self.audit.find(&query, &*self.clock).await?;
        Ok(AuditResponse {
            records: found.page.records.iter().map(Into::into).collect(),
            next: found.page.next,
            partial: found.is_partial,
        })
    }

    /// Who was limited most often.
    pub(crate) async fn top(&self, query: TopQuery) -> Result<TopResponse, Error> {
        let limit = AuditQuery { limit: query.limit, ..Default::default() };
        let limit = limit.resolve(self.clock.now())?.limit;
        let (subjects, since) = self.audit.top(limit, &*self.clock).await;
        let subjects = subjects.into_iter().map(|limited| LimitedSubject {
            policy: limited.policy.to_string(),
            subject: limited.subject.to_string(),
            count: limited.count,
            error: limited.error,
        });
        Ok(TopResponse { since: Some(since), subjects: subjects.collect() })
    }

    /// Whether the server takes requests and its store answers. The store is asked at most every [`READY_EVERY`], however
    /// many ask for this.
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        if *self.stopping.borrow() {
            return Err(Error::new(ErrorKind::Unavailable, "the server is stopping"));
        }
        let mut last = self.readiness.lock().await;
        let now = self.clock.now();
        if let Some((at, answer)) = &*last
            && *at <= now
            && now < *at + READY_EVERY
        {
            return answer.clone();
        }
        let answer = self.ask_store().await;
        if let Err(error) = &answer {
            tracing::warn!(%error, "not ready");
        }
        *last = Some((self.clock.now(), answer.clone()));
        answer
    }

    async fn ask_store(&self) -> Result<(), Error> {
        let policies = self.policies();
        if let Some(policy) = policies.iter().next() {
            let standing = self.gate.standing(policy, READY_SUBJECT);
            let standing = within(&*self.clock, READY_WAIT_MAX, standing).await;
            let late = || Error::new(ErrorKind::Unavailable, "the store did not answer in time");
            standing.ok_or_else(late)??;
        }
        // A policy with a share says where it stands without the store.
        if self.health.as_ref().is_some_and(|health| health().misconfigured) {
            let text = "the store does not serve this broker; the broker's log has the cause";
            return Err(Error::new(ErrorKind::Misconfigured, text));
        }
        Ok(())
    }
}
