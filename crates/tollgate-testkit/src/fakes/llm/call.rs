//! Calls that reached the fake: what is kept of each, and of all of them.

use std::collections::BTreeMap;

use tollgate::Timestamp;

use super::request::{Dialect, Endpoint};
use super::{FakeLlm, Fault};
use crate::fakes::quota::{Limit, Window};

/// A call that reached the fake, without its text.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Counted from 1.
    pub number: u64,
    pub at: Timestamp,
    pub dialect: Dialect,
    /// `None` if the path is unknown or the body could not be read.
    pub endpoint: Option<Endpoint>,
    pub model: String,
    pub project: String,
    pub headers: Vec<(String, String)>,
    pub body_bytes: usize,
    /// [`super::hash_of`] the body.
    pub body_hash: u64,
    pub input: u64,
    /// 0 if there was no response.
    pub status: u16,
    /// Tokens that were sent so far.
    pub output: u64,
    /// Whether the answer was sent to its end.
    pub is_complete: bool,
    /// Whether the call has ended.
    pub is_over: bool,
}

impl Arrival {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Counters of the fake.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub calls: u64,
    /// Responses by status; 0 counts calls without a response.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests that broke a quota, by limit and kind of window. One request may break several.
    pub violations: BTreeMap<(Limit, Window), u64>,
    /// The most that any window held, by limit and kind.
    pub peaks: BTreeMap<(Limit, Window), u64>,
    /// Faults that happened.
    pub faults: BTreeMap<Fault, u64>,
    pub at_once: u64,
    /// The most concurrent calls.
    pub at_once_max: u64,
    /// Tokens of the calls that were let through; output as far as it was sent.
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Calls that the client left, or that were cut.
    pub unfinished: u64,
}

impl Tally {
    /// Returns how many calls were answered with `status`.
    pub fn answered(&self, status: u16) -> u64 {
        self.statuses.get(&status).copied().unwrap_or(0)
    }
}

/// A call under way. Dropped before it is complete, it ends with the output that was sent.
pub(super) struct Call {
    pub(super) fake: FakeLlm,
    pub(super) number: u64,
    /// Project and model, and the id in their quota.
    pub(super) slot: Option<((String, String), u64)>,
    pub(super) status: u16,
    sent: u64,
    is_complete: bool,
}

impl Call {
    pub(super) const fn new(fake: FakeLlm, number: u64) -> Self {
        Self { fake, number, slot: None, status: 0, sent: 0, is_complete: false }
    }

    pub(super) const fn sent(&mut self, output: u64) {
        self.sent += output;
    }

    pub(super) fn complete(mut self) {
        self.is_complete = true;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let (arrival, watcher) = {
            let mut state = self.fake.state();
            let state = &mut *state;
            let tally = &mut state.tally;
            *tally.statuses.entry(self.status).or_default() += 1;
            tally.at_once -= 1;
            tally.output_tokens += self.sent;
            tally.unfinished += u64::from(!self.is_complete);
            if let Some((owner, id)) = &self.slot
                && let Some(counts) = state.quotas.get_mut(owner)
            {
                counts.finish(*id, self.sent);
            }
            let arrival = state.arrivals.iter_mut().rfind(|arrival| arrival.number == self.number);
            let arrival = arrival.map(|arrival| {
                arrival.status = self.status;
                arrival.output = self.sent;
                arrival.is_complete = self.is_complete;
                arrival.is_over = true;
                arrival.clone()
            });
            (arrival, state.watcher.clone())
        };
        if let (Some(arrival), Some(watcher)) = (arrival, watcher) {
            watcher(&arrival);
        }
    }
}
