//! The audit of this server: decisions go into a bounded queue, and one task writes them down.
//!
//! ```text
//! decision ──try──▶ queue ──batches──▶ top limited subjects, recent records, log
//!              └─▶ full: counted as dropped
//! ```
//! A decision never waits: if the queue is full its record is dropped, and if the log cannot be written the batch is; both
//! are counted. A question waits until what was queued before it is written, so whoever was just refused finds it.

mod top;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};
use tollgate::audit::{AuditLog, Binding, Keep, MemoryLog, Outcome, Page, Query, Record};
use tollgate::{Ask, Clock, Decision, Error, Policy, Span, Timestamp};

use crate::bounds::{AUDIT_QUEUE_MAX, AUDIT_RECENT_MAX, AUDIT_WAIT_MAX};
use top::Tops;

pub(crate) use top::Limited;

/// Which decisions are written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recording {
    /// None.
    Nothing,
    /// Denials, what shadow mode let through, and what was decided without the store.
    #[default]
    Limited,
    /// Every one.
    Everything,
}

/// What is written down, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditSettings {
    /// Which decisions.
    pub recording: Recording,
    /// How many and how old.
    pub keep: Keep,
}

/// What became of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Those that are in the log, or were.
    pub(crate) recorded: u64,
    /// Those that found the queue full, or the log out of order.
    pub(crate) dropped: u64,
}

/// The audit of one server.
#[derive(Debug)]
pub(crate) struct Auditor {
    settings: AuditSettings,
    queue: mpsc::Sender<Message>,
    /// The other end, until the writer takes it.
    unread: Mutex<Option<mpsc::Receiver<Message>>>,
    /// Where records go; without one the memory is all there is.
    log: Option<Arc<dyn AuditLog>>,
    recent: MemoryLog,
    tops: Mutex<Tops>,
    recorded: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug)]
enum Message {
    Record(Record),
    /// Answer when everything before this is written.
    Flush(oneshot::Sender<()>),
}

/// The answer to a question.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) page: Page,
    /// Whether the log could not be read, so that these are only the newest records of this server.
    pub(crate) is_partial: bool,
}

impl Auditor {
    pub(crate) fn new(
        settings: AuditSettings,
        log: Option<Arc<dyn AuditLog>>,
        now: Timestamp,
    ) -> Self {
        let (queue, unread) = mpsc::channel(AUDIT_QUEUE_MAX);
        let in_memory = settings.keep.entries_max;
        let recent = if log.is_some() { AUDIT_RECENT_MAX.min(in_memory) } else { in_memory };
        Self {
            settings,
            queue,
            unread: Mutex::new(Some(unread)),
            log,
            recent: MemoryLog::new(recent),
            tops: Mutex::new(Tops::new(now)),
            recorded: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Writes down `decision` on `ask`, if it is one that is written down.
    pub(crate) fn decided(&self, ask: &Ask<'_>, decision: &Decision, clock: &dyn Clock) {
        let is_wanted = match (self.settings.recording, decision) {
            (Recording::Nothing, _) => false,
            (Recording::Everything, _) | (Recording::Limited, Decision::Denied(_)) => true,
            (Recording::Limited, Decision::Admitted(permit)) => {
                permit.degraded || permit.shadow_denied.is_some()
            }
        };
        if is_wanted {
            self.queue_with(|| Record::of(ask, decision, clock.now()));
        }
    }

    /// Writes down what somebody did apart from asking.
    pub(crate) fn acted(&self, record: Record) {
        if self.settings.recording != Recording::Nothing {
            self.queue_with(|| record);
        }
    }

    /// Writes down that a provider refused what was admitted, as the key `by` reported.
    pub(crate) fn violated(
        &self,
        ask: &Ask<'_>,
        limit: &str,
        retry_after: Span,
        by: &str,
        now: Timestamp,
    ) {
        let unit_of = |policy: &Policy| {
            policy.limits().find(|known| known.name() == limit).map(|known| known.unit().into())
        };
        let binding = Binding {
            limit: limit.into(),
            unit: unit_of(ask.policy()).unwrap_or_default(),
            asked: 0,
            retry_after: Some(retry_after),
        };
        self.queue_with(|| Record {
            binding: Some(binding),
            ..Record::action(Outcome::Violated, ask.policy().name(), ask.subject(), by, now)
        });
    }

    /// A record is made only if there is room for it.
    fn queue_with(&self, record: impl FnOnce() -> Record) {
        match self.queue.try_reserve() {
            Ok(place) => place.send(Message::Record(record())),
            Err(_) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The records that `query` wants, those included that were queued before.
    pub(crate) async fn find(&self, query: &Query, clock: &dyn Clock) -> Result<Found, Error> {
        self.flush(clock).await;
        let Some(log) = &self.log else {
            return Ok(Found { page: self.recent.find_now(query), is_partial: false });
        };
        match log.find(query).await {
            Ok(page) => Ok(Found { page, is_partial: false }),
            // The numbers of one log mean nothing to the other, so there is no next page and no question for one.
            Err(error) if query.before.is_some() => Err(error),
            Err(error) => {
                tracing::warn!(%error, "the audit log cannot be read");
                let page = Page { next: None, ..self.recent.find_now(query) };
                Ok(Found { page, is_partial: true })
            }
        }
    }

    /// Up to `limit` subjects that were limited most often, those included that were queued before, and since when.
    pub(crate) async fn top(&self, limit: usize, clock: &dyn Clock) -> (Vec<Limited>, Timestamp) {
        self.flush(clock).await;
        let mut tops = self.tops.lock().unwrap_or_else(PoisonError::into_inner);
        tops.turn(clock.now());
        tops.read(limit)
    }

    pub(crate) fn written(&self) -> Written {
        Written {
            recorded: self.recorded.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }

    /// Waits until what is queued now is written, or for as long as a log may take.
    pub(crate) async fn flush(&self, clock: &dyn Clock) {
        let (done, written) = oneshot::channel();
        let flushed = async {
            // An error says that nobody writes any more, so there is nothing to wait for.
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
