//! Attributes a failure to one subject or to the store.
//!
//! A subject can be slow alone: its row is locked, its partition is throttled, or it is hot. Counting such failures would cut
//! every other subject off. So a timeout, a throttled call or an unavailable lock counts as a failure of the store only if the
//! store does not serve another subject either.
#![allow(
    clippy::disallowed_types,
    reason = "the lock is held during a probe, so that there is one at a time"
)]

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Ask, Costs, Policy, Timestamp};

use super::Shared;
use crate::error::{Error, ErrorKind};
use crate::gate::{Gate, GateExt};
use crate::internal::timeout;

/// The subject that probes write to. Nothing is charged to it.
const PROBE_SUBJECT: &str = "tollgate-probe";

/// Evidence about a store that fails for one subject.
#[derive(Debug, Default)]
pub(super) struct Suspicion {
    /// When the store last answered any call, in microseconds.
    answered_at: AtomicU64,
    /// The last probe: when it ended and whether the store answered it. Locked while one is under way.
    probed: tokio::sync::Mutex<Option<(Timestamp, bool)>>,
}

/// Returns whether the store may be the cause of `error`.
pub(super) fn may_be_of_store(error: &Error) -> bool {
    error.is_unavailable() || error.may_be_of_subject()
}

impl<G: Gate> Shared<G> {
    /// Records the time of an answer, as evidence that the store serves.
    pub(super) fn note_answer<T>(&self, answer: &Result<T, Error>) {
        if !matches!(answer, Err(error) if may_be_of_store(error)) {
            let now = self.clock.now().as_micros();
            self.suspicion.answered_at.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Returns `Ok` with the store's failure, or `Err` with the error of a subject that fails alone. The call began at `since`.
    pub(super) async fn attribute(
        &self,
        error: Error,
        since: Timestamp,
        policy: &Policy,
    ) -> Result<Error, Error> {
        if !error.may_be_of_subject() {
            return Ok(error);
        }
        if self.is_cut() || !self.serves_others(since, policy).await {
            return Ok(Error::new(ErrorKind::Unavailable, error.to_string()).caused_by(error));
        }
        let text = format!(
            "this subject cannot be served right now, though others are; ask again later: {error}"
        );
        Err(Error::new(ErrorKind::Contended, text).caused_by(error))
    }

    /// Returns whether the store has served any call since the second half of a call that began at `since`. Without evidence, it
    /// is probed, one probe at a time.
    async fn serves_others(&self, since: Timestamp, policy: &Policy) -> bool {
        let now = self.clock.now();
        let half = since.as_micros() + now.since(since).as_micros() / 2;
        if half < self.suspicion.answered_at.load(Ordering::Relaxed) {
            return true;
        }
        let mut probed = self.suspicion.probed.lock().await;
        match *probed {
            Some((ended, is_served)) if now <= ended => return is_served,
            _ => {}
        }
        let span = self.options.probe_timeout.into();
        let answer = timeout(&*self.clock, span, self.touch(policy)).await;
        let is_served = matches!(answer, Some(Ok(())));
        *probed = Some((self.clock.now(), is_served));
        is_served
    }

    /// Writes to another subject. Reading would not do: rows can be read while they are locked, and reads and writes
    /// are throttled apart.
    pub(super) async fn touch(&self, policy: &Policy) -> Result<(), Error> {
        let nothing: Costs = policy.units().map(|unit| (unit, 0)).collect();
        let ask = Ask::new(policy, PROBE_SUBJECT).with_costs(&nothing).without_refund();
        match self.gate.charge(&ask).await {
            // A full store serves the subjects it has.
            Err(error) if may_be_of_store(&error) && error.kind() != ErrorKind::Full => Err(error),
            _ => Ok(()),
        }
    }
}
