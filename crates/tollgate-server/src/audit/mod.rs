//! The audit: decisions go into a bounded queue, and one task writes them to the log.
//!
//! ```text
//! decision ──try──▶ queue ──batches──▶ top limited subjects, recent records, log
//!              └─▶ full: counted as dropped
//! ```
//! A decision never waits: its record is dropped if the queue is full, or if the log cannot be written; both are counted.
//! A query first flushes the queue, so that it sees every earlier decision.

mod top_subjects;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};
use tollgate::audit::{
    AuditLog, Binding, MemoryLog, Outcome, Page, Query, Record, RecordedCharge, Retention,
};
use tollgate::incident::Incident;
use tollgate::{Ask, Clock, Costs, Decision, Error, Span, Timestamp};
use tollgate_protocol::json::{AuditStats, LimitedSubject};
use tollgate_protocol::permit_token::charges_of;

use crate::bounds::{AUDIT_QUEUE_MAX, AUDIT_RECENT_MAX, AUDIT_WAIT_MAX};
use top_subjects::TopSubjects;

/// Which decisions are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recording {
    /// None.
    Nothing,
    /// Denials, admissions by shadow mode, and decisions without the store.
    #[default]
    Limited,
    /// All.
    Everything,
}

/// The options of the audit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditOptions {
    /// Which decisions.
    pub recording: Recording,
    /// How many records are kept, and for how long.
    pub keep: Retention,
}

/// The audit of one server.
#[derive(Debug)]
pub(crate) struct Auditor {
    options: AuditOptions,
    queue: mpsc::Sender<Message>,
    /// The receiver of the queue, until the writer takes it.
    receiver: Mutex<Option<mpsc::Receiver<Message>>>,
    /// The log; without one, records are only kept in memory.
    log: Option<Arc<dyn AuditLog>>,
    recent: MemoryLog,
    top_subjects: Mutex<TopSubjects>,
    recorded: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug)]
enum Message {
    Record(Record),
    /// Signals when everything before it is written.
    Flush(oneshot::Sender<()>),
}

/// The result of a query.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) page: Page,
    /// Whether the log could not be read, so that these are only this server's newest records.
    pub(crate) is_partial: bool,
}

impl Auditor {
    pub(crate) fn new(
        options: AuditOptions,
        log: Option<Arc<dyn AuditLog>>,
        now: Timestamp,
    ) -> Self {
        let (queue, receiver) = mpsc::channel(AUDIT_QUEUE_MAX);
        let in_memory = options.keep.entries_max;
        let recent = if log.is_some() { AUDIT_RECENT_MAX.min(in_memory) } else { in_memory };
        Self {
            options,
            queue,
            receiver: Mutex::new(Some(receiver)),
            log,
            recent: MemoryLog::new(recent),
            top_subjects: Mutex::new(TopSubjects::new(now)),
            recorded: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Records `decision` about `ask` of the key `by`, if the options ask for it.
    pub(crate) fn decided(&self, ask: &Ask<'_>, decision: &Decision, by: &str, clock: &dyn Clock) {
        let is_wanted = match (self.options.recording, decision) {
            (Recording::Nothing, _) => false,
            (Recording::Everything, _) | (Recording::Limited, Decision::Denied(_)) => true,
            (Recording::Limited, Decision::Admitted(permit)) => {
                charges_of(permit).any(|permit| permit.degraded || permit.shadow_denied.is_some())
            }
        };
        if is_wanted {
            self.queue_with(|| Record {
                by: (!by.is_empty()).then(|| by.into()),
                ..Record::for_decision(ask, decision, clock.now())
            });
        }
    }

    /// Records an administrative action.
    pub(crate) fn record_action(&self, record: Record) {
        if self.options.recording != Recording::Nothing {
            self.queue_with(|| record);
        }
    }

    /// Records a violation about `ask` that the key `by` reported: as one record, also if several charges were closed.
    pub(crate) fn violated(
        &self,
        ask: &Ask<'_>,
        incident: &Incident,
        retry_after: Span,
        by: &str,
        now: Timestamp,
    ) {
        if self.options.recording != Recording::Nothing {
            self.queue_with(|| violation(ask, incident, retry_after, by, now));
        }
    }

    /// Queues a record, which is built only if there is room for it.
    fn queue_with(&self, record: impl FnOnce() -> Record) {
        match self.queue.try_reserve() {
            Ok(slot) => slot.send(Message::Record(record())),
            Err(_) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Returns the records that match `query`, those in the queue included.
    pub(crate) async fn find(&self, query: &Query, clock: &dyn Clock) -> Result<Found, Error> {
        self.flush(clock).await;
        let Some(log) = &self.log else {
            return Ok(Found { page: self.recent.find_now(query), is_partial: false });
        };
        match log.find(query).await {
            Ok(page) => Ok(Found { page, is_partial: false }),
            // Record numbers differ between the logs, so another page cannot come from memory.
            Err(error) if query.before.is_some() => Err(error),
            Err(error) => {
                tracing::warn!(%error, "the audit log cannot be read");
                let page = Page { next: None, ..self.recent.find_now(query) };
                Ok(Found { page, is_partial: true })
            }
        }
    }

    /// Returns up to `limit` subjects that were limited most often, and since when they are counted.
    pub(crate) async fn top(
        &self,
        limit: usize,
        clock: &dyn Clock,
    ) -> (Vec<LimitedSubject>, Timestamp) {
        self.flush(clock).await;
        let mut top = self.top_subjects.lock().unwrap_or_else(PoisonError::into_inner);
        top.rotate(clock.now());
        top.read(limit)
    }

    pub(crate) fn stats(&self) -> AuditStats {
        AuditStats {
            recorded: self.recorded.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }

    /// Waits until the queue is written, at most [`AUDIT_WAIT_MAX`].
    pub(crate) async fn flush(&self, clock: &dyn Clock) {
        let (done, written) = oneshot::channel();
        let flushed = async {
            // An error means that the writer is gone, so there is nothing to wait for.
            if self.queue.send(Message::Flush(done)).await.is_ok() {
                let _ = written.await;
            }
        };
        tokio::select! {
            () = flushed => {}
            () = clock.sleep_until(clock.now() + AUDIT_WAIT_MAX) => {}
        }
    }
}

/// Returns the record of `incident` about `ask`. Charges that were closed are marked as refused by the limit.
fn violation(
    ask: &Ask<'_>,
    incident: &Incident,
    retry_after: Span,
    by: &str,
    now: Timestamp,
) -> Record {
    let (policy, subject) = (&*incident.policy, &*incident.subject);
    let record = Record::action(Outcome::Violated, policy, subject, by, now).with_charges(ask);
    let known = ask.charges().find(|it| (it.policy().name(), it.subject()) == (policy, subject));
    let mut limits = known.into_iter().flat_map(|charge| charge.policy().limits());
    let limit = limits.find(|limit| limit.name() == incident.limit);
    let binding = Binding {
        limit: incident.limit.as_str().into(),
        unit: limit.map(|limit| limit.unit().into()).unwrap_or_default(),
        asked: 0,
        retry_after: Some(retry_after),
    };
    let closed = |charge: &RecordedCharge| {
        let mut incidents = std::iter::once(incident).chain(&incident.others);
        incidents.find(|it| *it.policy == *charge.policy && *it.subject == *charge.subject)
    };
    let charges = record.charges.iter().map(|charge| RecordedCharge {
        refused: closed(charge).map(|it| it.limit.as_str().into()).into_iter().collect(),
        // A violation is about limits, not about what was asked.
        costs: Costs::new(),
        ..charge.clone()
    });
    Record { charges: charges.collect(), binding: Some(binding), ..record }
}
