//! The slot of a job, held until the job appears in the list.

use aws_sdk_drs::types::Job;
use tollgate::{Guard, Span};

use super::ThrottleStatus;
use crate::client::{DrsClient, JobFilter};

/// The slot of one job. It is released on drop.
#[derive(Debug)]
pub struct JobSlot {
    client: DrsClient,
    slot: Option<Guard>,
    status: Option<ThrottleStatus>,
    waited: Span,
}

impl JobSlot {
    pub(super) const fn new(
        client: DrsClient,
        slot: Option<Guard>,
        status: Option<ThrottleStatus>,
        waited: Span,
    ) -> Self {
        Self { client, slot, status, waited }
    }

    /// Returns the count of jobs when the slot was taken; `None` if they could not be counted.
    #[must_use]
    pub const fn status(&self) -> Option<&ThrottleStatus> {
        self.status.as_ref()
    }

    /// Returns how long the caller waited for it.
    #[must_use]
    pub const fn waited(&self) -> Span {
        self.waited
    }

    /// Releases the slot if `job`, which was started in it, appears in the list, so that all callers count it; otherwise holds
    /// it until it expires.
    pub async fn started(self, job: &Job) {
        let filter = JobFilter { ids: vec![job.job_id.clone()], ..JobFilter::default() };
        let shows = match self.slot {
            Some(_) => {
                self.client.describe_jobs(&filter).all().await.is_ok_and(|jobs| !jobs.is_empty())
            }
            None => false,
        };
        if shows { self.release().await } else { self.keep() }
    }

    /// Releases the slot, because no job was started.
    pub async fn release(self) {
        if let Some(slot) = self.slot {
            release(slot).await;
        }
    }

    /// Holds the slot until it expires, because a job may have been started.
    pub fn keep(self) {
        drop(self.slot.and_then(Guard::into_permit));
    }
}

pub(super) async fn release(slot: Guard) {
    if let Err(error) = slot.release().await {
        tracing::warn!(%error, "a slot was not released and will expire");
    }
}
