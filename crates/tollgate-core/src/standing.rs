//! The standing of a subject on each limit. Reading it consumes nothing.

use std::sync::Arc;

use crate::entry::Entry;
use crate::time::Timestamp;

/// The standing of a subject on one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The name of the limit.
    pub name: Arc<str>,
    /// The unit it counts.
    pub unit: Arc<str>,
    /// The limit, as configured.
    pub limit: u64,
    /// The usage now.
    pub used: u64,
    /// The most that could be asked for now, without headroom.
    pub remaining: u64,
    /// The instant at which `remaining` next grows; nothing if it cannot grow.
    pub reset_at: Option<Timestamp>,
    /// The instant at which nothing is used any more; nothing if nothing is used now.
    pub full_at: Option<Timestamp>,
    /// When a bucket was last refilled; nothing for the other rules.
    pub refilled_at: Option<Timestamp>,
}

/// Returns the standing of `entry` at `now` on every limit of its policy, in order.
#[must_use]
pub fn standings(entry: &Entry, now: Timestamp) -> Vec<Standing> {
    let now = entry.effective(now);
    entry
        .limits()
        .enumerate()
        .map(|(index, (limit, state))| {
            let gauge = &limit.gauge;
            let ready = |cost| gauge.ready_at(state, entry.at(), now, cost);
            let used = gauge.used(state, entry.at(), now);
            let closed = entry.closed_until(index, now);
            let room = gauge.most().saturating_sub(used);
            let grows_at = match closed {
                Some(until) => Some(until.max(if room == 0 { ready(1) } else { now })),
                None => (room < gauge.most()).then(|| ready(room + 1)),
            };
            Standing {
                name: Arc::clone(&limit.name),
                unit: Arc::clone(&limit.unit),
                limit: limit.limit.rule.limit(),
                used,
                remaining: if closed.is_some() { 0 } else { room },
                reset_at: grows_at,
                full_at: (0 < used).then(|| ready(gauge.most())),
                refilled_at: gauge.refilled_at(now),
            }
        })
        .collect()
}
