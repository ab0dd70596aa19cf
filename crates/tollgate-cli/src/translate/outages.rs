//! Outages while a job runs: of the store of the quota, and of the database of the jobs.

use std::sync::Arc;

use tokio::sync::watch;
use tollgate::{Clock, Event, Observer, OnStoreFailure, Policy, Timestamp};
use tollgate_translate::job::Away;

/// Passes events on to the sinks, and remembers whether the store is away.
#[derive(Debug)]
pub(super) struct StoreWatch {
    inner: Arc<dyn Observer>,
    clock: Arc<dyn Clock>,
    away: watch::Sender<Option<Away>>,
}

impl StoreWatch {
    pub(super) fn new(inner: Arc<dyn Observer>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { inner, clock, away: watch::Sender::new(None) })
    }

    pub(super) fn away(&self) -> watch::Receiver<Option<Away>> {
        self.away.subscribe()
    }
}

impl Observer for StoreWatch {
    fn observe(&self, event: &Event<'_>) {
        self.inner.observe(event);
        match event {
            Event::DegradedBegan { error } | Event::Misconfigured { error } => {
                let (now, why) = (self.clock.now(), error.to_string());
                self.away.send_modify(|away| {
                    let since = away.as_ref().map_or(now, |away| away.since);
                    *away = Some(Away { since, why });
                });
            }
            Event::DegradedEnded { .. } => {
                self.away.send_replace(None);
            }
            _ => {}
        }
    }
}

/// What is away, as it changes.
#[derive(Clone, Debug)]
pub(super) struct Outages {
    store: Outage,
    jobs: Outage,
}

/// One server, and whether its last outage was reported.
#[derive(Clone, Debug)]
struct Outage {
    away: watch::Receiver<Option<Away>>,
    reported: Option<Away>,
}

impl Outage {
    const fn new(away: watch::Receiver<Option<Away>>) -> Self {
        Self { away, reported: None }
    }

    /// Resolves with the next change; never if there will be none.
    async fn changed(&mut self) {
        if self.away.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn now(&self) -> Option<Away> {
        self.away.borrow().clone()
    }

    /// What changed since this was last called: the outage that began, or the one that ended.
    fn news(&mut self) -> Option<Result<Away, Away>> {
        let (now, before) = (self.now(), self.reported.take());
        self.reported.clone_from(&now);
        match (before, now) {
            (before, Some(now)) if before.as_ref() != Some(&now) => Some(Ok(now)),
            (Some(before), None) => Some(Err(before)),
            _ => None,
        }
    }
}

impl Outages {
    pub(super) const fn new(
        store: watch::Receiver<Option<Away>>,
        jobs: watch::Receiver<Option<Away>>,
    ) -> Self {
        Self { store: Outage::new(store), jobs: Outage::new(jobs) }
    }

    /// Resolves when something went away or came back.
    pub(super) async fn changed(&mut self) {
        tokio::select! {
            () = self.store.changed() => {}
            () = self.jobs.changed() => {}
        }
    }

    /// Whether the store is away.
    pub(super) fn is_store_away(&self) -> bool {
        self.store.now().is_some()
    }

    /// A line for each outage that began or ended since this was last called. `policy` is what the quota is decided by, if
    /// there is only one.
    pub(super) fn news(&mut self, policy: Option<&Policy>, now: Timestamp) -> Vec<String> {
        let mut lines = Vec::new();
        lines.extend(self.store.news().map(|news| match news {
            Ok(away) => store_line(&away, policy),
            Err(away) => format!(
                "the store of the quota is back after {}, and knows what was spent without it",
                now.since(away.since).for_people()
            ),
        }));
        lines.extend(self.jobs.news().map(|news| match news {
            Ok(away) => jobs_line(&away),
            Err(away) => format!(
                "the database of the jobs is back after {}",
                now.since(away.since).for_people()
            ),
        }));
        lines
    }

    /// A line for each outage that lasts.
    pub(super) fn lasting(&self, policy: &Policy, now: Timestamp) -> Vec<String> {
        let for_long = |away: &Away| now.since(away.since).for_people();
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

fn store_line(away: &Away, policy: Option<&Policy>) -> String {
    let meanwhile = match policy.map(Policy::on_store_failure) {
        None => "each policy decides by its on_store_failure until it is back",
        Some(OnStoreFailure::Closed) => {
            "nothing is called until it is back (on_store_failure = \"closed\")"
        }
        Some(OnStoreFailure::Open) => {
            "calls go on without a bound until it is back (on_store_failure = \"open\")"
        }
        Some(OnStoreFailure::Fallback) => {
            "calls go on within this process's share until it is back (on_store_failure = \"fallback\")"
        }
    };
    format!("the store of the quota is away ({}); {meanwhile}", away.why)
}

fn jobs_line(away: &Away) -> String {
    format!("the database of the jobs is away ({}); it is tried again", away.why)
}
