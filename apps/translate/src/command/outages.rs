//! Outages while a job runs: of the store of the quota, and of the job store.

use std::sync::Arc;

use crate::job::Outage;
use tokio::sync::watch;
use tollgate::observe::{Event, Observer};
use tollgate::policy::OnStoreFailure;
use tollgate::{Clock, Policy, Timestamp};

/// Forwards events to the sinks, and tracks outages of the store.
#[derive(Debug)]
pub(super) struct StoreWatch {
    inner: Arc<dyn Observer>,
    clock: Arc<dyn Clock>,
    away: watch::Sender<Option<Outage>>,
}

impl StoreWatch {
    pub(super) fn new(inner: Arc<dyn Observer>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { inner, clock, away: watch::Sender::new(None) })
    }

    pub(super) fn outage(&self) -> watch::Receiver<Option<Outage>> {
        self.away.subscribe()
    }
}

impl Observer for StoreWatch {
    fn observe(&self, event: &Event<'_>) {
        self.inner.observe(event);
        match event {
            Event::DegradedBegan { error } | Event::Misconfigured { error } => {
                let (now, error) = (self.clock.now(), error.to_string());
                self.away.send_modify(|away| {
                    let since = away.as_ref().map_or(now, |away| away.since);
                    *away = Some(Outage { since, error });
                });
            }
            Event::DegradedEnded { .. } => {
                self.away.send_replace(None);
            }
            _ => {}
        }
    }
}

/// The current outages.
#[derive(Clone, Debug)]
pub(super) struct Outages {
    store: Tracked,
    jobs: Tracked,
}

/// One server, and its last reported outage.
#[derive(Clone, Debug)]
struct Tracked {
    away: watch::Receiver<Option<Outage>>,
    reported: Option<Outage>,
}

/// An outage that began or ended.
enum OutageChange {
    Began(Outage),
    Ended(Outage),
}

impl Tracked {
    const fn new(away: watch::Receiver<Option<Outage>>) -> Self {
        Self { away, reported: None }
    }

    /// Resolves with the next change.
    async fn changed(&mut self) {
        if self.away.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn now(&self) -> Option<Outage> {
        self.away.borrow().clone()
    }

    /// Returns what changed since the last call.
    fn news(&mut self) -> Option<OutageChange> {
        let (now, before) = (self.now(), self.reported.take());
        self.reported.clone_from(&now);
        match (before, now) {
            (before, Some(now)) if before.as_ref() != Some(&now) => Some(OutageChange::Began(now)),
            (Some(before), None) => Some(OutageChange::Ended(before)),
            _ => None,
        }
    }
}

impl Outages {
    pub(super) const fn new(
        store: watch::Receiver<Option<Outage>>,
        jobs: watch::Receiver<Option<Outage>>,
    ) -> Self {
        Self { store: Tracked::new(store), jobs: Tracked::new(jobs) }
    }

    /// Resolves when an outage begins or ends.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            () = self.store.changed() => {}
            () = self.jobs.changed() => {}
        }
    }

    /// Returns whether the store is unavailable.
    pub(super) fn is_store_away(&self) -> bool {
        self.store.now().is_some()
    }

    /// Returns a line for each outage that began or ended since the last call. `policy` is that of the quota, if there is only one.
    pub(super) fn news(&mut self, policy: Option<&Policy>, now: Timestamp) -> Vec<String> {
        let mut lines = Vec::new();
        lines.extend(self.store.news().map(|news| match news {
            OutageChange::Began(away) => store_line(&away, policy),
            OutageChange::Ended(away) => format!(
                "the store of the quota is available after {}, with what was spent without it",
                now.since(away.since).humanize()
            ),
        }));
        lines.extend(self.jobs.news().map(|news| match news {
            OutageChange::Began(away) => jobs_line(&away),
            OutageChange::Ended(away) => {
                format!("the job store is available after {}", now.since(away.since).humanize())
            }
        }));
        lines
    }

    /// Returns a line for each current outage.
    pub(super) fn lasting(&self, policy: &Policy, now: Timestamp) -> Vec<String> {
        let for_long = |away: &Outage| now.since(away.since).humanize();
        let store = self.store.now();
        let store = store.map(|away| {
            format!("store     {}, for {}", store_line(&away, Some(policy)), for_long(&away))
        });
        let jobs = self.jobs.now();
        let jobs =
            jobs.map(|away| format!("jobs      {}, for {}", jobs_line(&away), for_long(&away)));
        store.into_iter().chain(jobs).collect()
    }
}

fn store_line(away: &Outage, policy: Option<&Policy>) -> String {
    let meanwhile = match policy.map(Policy::on_store_failure) {
        None => "each policy applies its on_store_failure until it is back",
        Some(OnStoreFailure::Closed) => {
            "no call is made until it is back (on_store_failure = \"closed\")"
        }
        Some(OnStoreFailure::Open) => {
            "calls continue without a limit until it is back (on_store_failure = \"open\")"
        }
        Some(OnStoreFailure::Fallback) => {
            "calls continue within this process's share until it is back (on_store_failure = \"fallback\")"
        }
    };
    format!("the store of the quota is unavailable ({}); {meanwhile}", away.error)
}

fn jobs_line(away: &Outage) -> String {
    format!("the job store is unavailable ({}); it is retried", away.error)
}
