//! A place for a job: held from the look until the job shows.

use aws_sdk_drs::types::Job;
use tollgate::{Guard, Span};

use super::ThrottleStatus;
use crate::drs::{DrsClient, JobFilter};

/// A place for one job. Dropping it gives it back.
#[derive(Debug)]
pub struct Place {
    client: DrsClient,
    slot: Option<Guard>,
    status: Option<ThrottleStatus>,
    waited: Span,
}

impl Place {
    pub(super) const fn new(
        client: DrsClient,
        slot: Option<Guard>,
        status: Option<ThrottleStatus>,
        waited: Span,
    ) -> Self {
        Self { client, slot, status, waited }
    }

    /// How the jobs stood when it was given; nothing if they could not be counted.
    #[must_use]
    pub const fn status(&self) -> Option<&ThrottleStatus> {
        self.status.as_ref()
    }

    /// How long it was waited for.
    #[must_use]
    pub const fn waited(&self) -> Span {
        self.waited
    }

    /// `job` was started in it. The place is given back once the job shows in the list, so that everybody counts it; if
    /// it does not show yet, the slot stays taken until it expires.
    pub async fn started(self, job: &Job) {
        let filter = JobFilter { ids: vec![job.job_id.clone()], ..JobFilter::default() };
        let shows = match self.slot {
            Some(_) => {
                self.client.describe_jobs(&filter).all().await.is_ok_and(|jobs| !jobs.is_empty())
            }
            None => false,
        };
        if shows { self.give_back().await } else { self.keep() }
    }

    /// No job was started in it.
    pub async fn give_back(self) {
        if let Some(slot) = self.slot {
            give_back(slot).await;
        }
    }

    /// Perhaps a job was started in it: the slot stays taken until it expires.
    pub fn keep(self) {
        drop(self.slot.and_then(Guard::into_permit));
    }
}

pub(super) async fn give_back(slot: Guard) {
    if let Err(error) = slot.release().await {
        tracing::warn!(%error, "a slot was not given back and expires by itself");
    }
}
