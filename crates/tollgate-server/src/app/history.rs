//! The history of decisions and of watched subjects: sampling and reading.

use std::future::pending;

use futures_util::future::join_all;
use tollgate::internal::timeout;
use tollgate::{Error, ErrorKind, GateExt as _};
use tollgate_protocol::json::{
    HistoryQuery, HistoryResponse, StandingQuery, SubjectHistoryResponse,
};

use super::App;
use crate::access::Caller;
use crate::bounds::WATCH_WAIT_MAX;
use crate::history::{History, PolicyTotals};

impl App {
    /// Samples the history when a bucket starts. Never returns.
    pub(crate) async fn keep_history(&self) {
        if !self.keeps_history {
            return pending().await;
        }
        loop {
            self.clock.sleep_until(History::next_sample(self.now())).await;
            self.sample_history();
            // A store that does not answer leaves a gap in the history of the subjects, and does not delay that of the policies.
            let _ = timeout(&*self.clock, WATCH_WAIT_MAX, self.sample_watched()).await;
        }
    }

    fn sample_history(&self) {
        self.history.sample(self.now(), || {
            let mut totals = self.stats.totals();
            for (policy, waiting) in self.gate.waiting_by_policy() {
                let waiting = waiting as u64;
                match totals.iter_mut().find(|totals| *totals.name == *policy) {
                    Some(totals) => totals.waiting = waiting,
                    // All of its asks wait still, so none of them is counted.
                    None => totals.push(PolicyTotals {
                        name: policy.into(),
                        waiting,
                        ..Default::default()
                    }),
                }
            }
            totals
        });
    }

    async fn sample_watched(&self) {
        let policies = self.policies();
        let samples = self.watched.due(self.now()).into_iter().map(|who| {
            let policy = policies.get(&who.0).ok().cloned();
            async move {
                let Some(policy) = policy else { return };
                if let Ok(standings) = self.gate.standing(&policy, &who.1).await {
                    self.watched.record(&who, self.now(), &standings);
                }
            }
        });
        join_all(samples).await;
    }

    /// Returns the history of decisions, up to now.
    pub(crate) fn history_response(&self, query: &HistoryQuery) -> Result<HistoryResponse, Error> {
        let (since, step) = query.resolve(self.now())?;
        self.sample_history();
        let policy = query.policy.as_deref();
        Ok(self.history.read(&self.broker_id, policy, since, step, self.now()))
    }

    /// Returns the history of a subject, up to now, and watches the subject from now on.
    pub(crate) async fn subject_history(
        &self,
        caller: &Caller,
        query: &StandingQuery,
    ) -> Result<SubjectHistoryResponse, Error> {
        // The lookup comes first, so that a mistake is not watched.
        let standings = self.standing(caller, query).await?;
        let who = (query.policy.clone(), query.subject.clone());
        self.watched.look_at(&who, self.now());
        self.watched.record(&who, self.now(), &standings);
        let displaced =
            || Error::new(ErrorKind::Contended, "too many subjects are looked up at once; retry");
        self.watched.read(&self.broker_id, &who, self.now()).ok_or_else(displaced)
    }
}
