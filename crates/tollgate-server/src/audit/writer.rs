//! The task that writes records. It takes everything in the queue at once, so that batches grow with the latency of the
//! log.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use tollgate::audit::Record;
use tollgate::internal::LogLimit;
use tollgate::{Clock, Timestamp};

use super::{Auditor, Message};
use crate::bounds::{AUDIT_BATCH_MAX, AUDIT_TRIM_EVERY};

static FAILURES: LogLimit = LogLimit::new();

impl Auditor {
    /// Writes queued records until the auditor is dropped.
    pub(crate) async fn write(&self, clock: &dyn Clock) {
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut receiver) = receiver else { return };
        let (mut messages, mut records) = (Vec::new(), Vec::new());
        let mut trimmed_at = clock.now();
        let mut untrimmed = 0;
        loop {
            if receiver.recv_many(&mut messages, AUDIT_BATCH_MAX).await == 0 {
                return;
            }
            let mut flushed = Vec::new();
            for message in messages.drain(..) {
                match message {
                    Message::Record(record) => records.push(record),
                    Message::Flush(done) => flushed.push(done),
                }
            }
            let now = clock.now();
            untrimmed += records.len();
            self.write_batch(&records, now).await;
            records.clear();
            // Trimming in batches of a sixteenth of the bound is cheaper than one by one.
            let is_over = self.options.keep.entries_max / 16 < untrimmed;
            if is_over || AUDIT_TRIM_EVERY <= now.since(trimmed_at) {
                self.trim(now).await;
                (trimmed_at, untrimmed) = (now, 0);
            }
            for done in flushed {
                // The receiver may have timed out.
                let _ = done.send(());
            }
        }
    }

    async fn write_batch(&self, records: &[Record], now: Timestamp) {
        if records.is_empty() {
            return;
        }
        {
            let mut top = self.top_subjects.lock().unwrap_or_else(PoisonError::into_inner);
            top.rotate(now);
            for (policy, subject) in records.iter().flat_map(Record::limited) {
                top.count(policy, subject);
            }
        }
        self.recent.append_now(records);
        let written = match &self.log {
            Some(log) => log.append(records).await,
            None => Ok(()),
        };
        let count = records.len() as u64;
        match written {
            Ok(()) => self.recorded.fetch_add(count, Ordering::Relaxed),
            Err(error) => {
                if let Some(suppressed) = FAILURES.pass(now) {
                    tracing::warn!(%error, records = count, suppressed, "the audit log could not be written");
                }
                self.dropped.fetch_add(count, Ordering::Relaxed)
            }
        };
    }

    async fn trim(&self, now: Timestamp) {
        self.recent.trim_now(self.options.keep, now);
        if let Some(log) = &self.log
            && let Err(error) = log.trim(self.options.keep, now).await
        {
            tracing::warn!(%error, "the audit log could not be trimmed");
        }
    }
}
