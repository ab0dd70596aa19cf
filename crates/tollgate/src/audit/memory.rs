//! A log in memory, a ring that ends with the process.

use std::collections::VecDeque;

use tollgate_core::Timestamp;

use super::{AuditLog, Page, Query, Record, Retention};
use crate::error::Error;
use crate::gate::BoxFuture;
use crate::sync::{Mutex, lock};

/// The newest records, in memory.
#[derive(Debug)]
pub struct MemoryLog {
    entries_max: usize,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    last: u64,
    records: VecDeque<Record>,
}

impl MemoryLog {
    /// A log of the newest `entries_max` records, at least one.
    #[must_use]
    pub fn new(entries_max: usize) -> Self {
        Self { entries_max: entries_max.max(1), ring: Mutex::new(Ring::default()) }
    }

    /// Synchronous [`AuditLog::append`].
    pub fn append_now(&self, records: &[Record]) {
        let mut ring = lock(&self.ring);
        for record in records {
            ring.last += 1;
            let number = ring.last;
            ring.records.push_back(Record { number, ..record.clone() });
            if self.entries_max < ring.records.len() {
                ring.records.pop_front();
            }
        }
    }

    /// Synchronous [`AuditLog::find`].
    #[must_use]
    pub fn find_now(&self, query: &Query) -> Page {
        let ring = lock(&self.ring);
        let wanted = ring.records.iter().rev().filter(|record| query.matches(record));
        query.page(wanted.take(query.rows() + 1).cloned().collect())
    }

    /// Synchronous [`AuditLog::trim`].
    pub fn trim_now(&self, keep: Retention, now: Timestamp) -> u64 {
        let mut ring = lock(&self.ring);
        let is_old = |record: &Record| keep.age_max < now.since(record.at);
        let beyond = ring.records.len().saturating_sub(keep.entries_max);
        let old = ring.records.iter().take_while(|record| is_old(record)).count();
        let count = beyond.max(old);
        ring.records.drain(..count);
        count as u64
    }
}

impl AuditLog for MemoryLog {
    fn append<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), Error>> {
        self.append_now(records);
        Box::pin(std::future::ready(Ok(())))
    }

    fn find<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Page, Error>> {
        Box::pin(std::future::ready(Ok(self.find_now(query))))
    }

    fn trim(&self, keep: Retention, now: Timestamp) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(std::future::ready(Ok(self.trim_now(keep, now))))
    }
}
