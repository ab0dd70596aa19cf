//! The local view of an entry that other instances change, too.
//!
//! The store's answer has the standing of every limit. From it this module builds an entry that the core can decide on: never
//! with more room than the store had, and never ageing faster, so that what an instance admits beyond the rule comes from
//! what others did since, which `unposted_max` bounds. Times in the answer are the store's and count from the store's
//! now, so a clock that is ahead or behind makes the view stricter, not looser.

use tollgate_core::bounds::{NUMBER_MAX, UNITS_MAX};
use tollgate_core::{
    Amounts, Ask, Derived, Entry, Known, Part, Parts, Policy, Span, Standing, Timestamp, charge,
    standings,
};

/// A reply of the store about one entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreReply<'a> {
    /// The policy that it was decided by.
    pub(super) policy: &'a Policy,
    /// The standing on every limit, in the order of the policy.
    pub(super) limits: &'a [Standing],
    /// The store's time of the reply, if the reply has one.
    pub(super) at: Option<Timestamp>,
}

/// Builds the entry that `reply` describes, as of `now` here. `None` if a limit is missing or cannot be decided here.
pub(super) fn entry(reply: StoreReply<'_>, now: Timestamp) -> Option<Entry> {
    let policy = reply.policy;
    if reply.limits.len() != policy.limits().len() {
        return None;
    }
    let at = reply.at.map_or(now, |store| store.max(now));
    // Counted from the store's now; without one, everything was charged just now.
    let from_now = |time: Option<Timestamp>| Some(time?.since(reply.at?));
    let numbers = policy.derived().zip(policy.effective()).zip(policy.windows_at(at));
    let mut parts = Parts { at, next_stamp: 1, ..Parts::default() };
    for (index, (((derived, most), borders), standing)) in numbers.zip(reply.limits).enumerate() {
        let (used, full) = (standing.used, from_now(standing.full_at));
        let grows = from_now(standing.reset_at);
        parts.states.push(match derived {
            Derived::Continuous { token, rate, .. } => {
                let by_tokens = used.saturating_mul(token);
                let by_time = full.map(|span| span.as_micros().saturating_mul(rate));
                let used = by_time.map_or(by_tokens, |level| level.min(by_tokens));
                Part::Bucket { used, lows: Vec::new() }
            }
            Derived::Interval { .. } => Part::Bucket { used, lows: Vec::new() },
            Derived::Window { window, slot, .. } => {
                // What makes room first leaves first; the rest is taken to leave with the youngest.
                let last = full.unwrap_or(window.plus(slot));
                let first = grows.filter(|first| *first < last && used > 0);
                let early = first.map_or(0, |_| (used + 1).saturating_sub(most).max(1).min(used));
                Part::Window(log(at, window, [(first, early), (Some(last), used - early)]))
            }
            Derived::Calendar { margin, .. } => {
                let end = borders.map_or(at, |[open, _]| open.end);
                Part::Calendar { end, used, late: if end - margin <= at { used } else { 0 } }
            }
            _ => return None,
        });
        if standing.remaining == 0 && used < most {
            let until = grows.map_or(at + Span::from_secs(1), |span| at + span);
            parts.closed.push((index, until));
        }
    }
    parts.into_entry(policy).ok()
}

/// Returns log entries that leave the window in the given times from `at`.
fn log(at: Timestamp, window: Span, leaving: [(Option<Span>, u64); 2]) -> Vec<(Timestamp, u64)> {
    let filed = leaving.into_iter().filter(|(_, amount)| 0 < *amount);
    filed.filter_map(|(left, amount)| Some((at + left? - window, amount))).collect()
}

/// Makes an ask for exactly `amounts`.
pub(super) fn ask_for<'a>(policy: &'a Policy, subject: &'a str, amounts: &Amounts) -> Ask<'a> {
    policy.units().enumerate().fold(Ask::new(policy, subject), |ask, (index, unit)| {
        ask.cost(unit, amounts.at(index).min(NUMBER_MAX))
    })
}

/// Raises the usage of `view` to that of `other`, and lowers nothing: for replies that came out of order.
pub(super) fn raise(view: &mut Entry, other: &Entry, subject: &str, now: Timestamp) {
    let policy = view.policy().clone();
    let mut more = [0; UNITS_MAX];
    let both = standings(view, now).into_iter().zip(standings(other, now));
    for (index, (ours, theirs)) in policy.unit_indexes().zip(both) {
        more[index] = more[index].max(theirs.used.saturating_sub(ours.used));
    }
    let more = Amounts::from_fn(|unit| more[unit]);
    if !more.is_zero() {
        let _ = charge(view, now, &ask_for(&policy, subject, &more), Known::New);
    }
}
