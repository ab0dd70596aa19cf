//! What one instance believes of an entry that others change too.
//!
//! The store's answer has the standing of every limit. From it this module builds an entry that the core can decide on: never
//! with more room than the store had, and never ageing faster, so that what an instance admits beyond the rule comes from
//! what others did since, which `unposted_max` bounds. Times in the answer are the store's and count from the store's
//! now, so a clock that is ahead or behind makes the view stricter, not looser.

use tollgate_core::bounds::NUMBER_MAX;
use tollgate_core::{
    Ask, Derived, Entry, Known, Part, Parts, Policy, Span, Standing, Timestamp, charge, standings,
};

use super::account::Sums;

/// A store's answer about one entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    /// The numbers that it was decided by.
    pub(super) policy: &'a Policy,
    /// Where every limit stands, in the order of the policy.
    pub(super) limits: &'a [Standing],
    /// The store's time of the answer; nothing if the answer does not tell.
    pub(super) at: Option<Timestamp>,
}

/// The entry that `seen` describes, as of `now` here; nothing if a limit is missing or cannot be decided here.
pub(super) fn entry(seen: Seen<'_>, now: Timestamp) -> Option<Entry> {
    let policy = seen.policy;
    if seen.limits.len() != policy.limits().len() {
        return None;
    }
    let at = seen.at.map_or(now, |store| store.max(now));
    // Counted from the store's now; without one, everything was charged just now.
    let from_now = |time: Option<Timestamp>| Some(time?.since(seen.at?));
    let numbers = policy.derived().zip(policy.effective()).zip(policy.windows_at(at));
    let mut parts = Parts { at, next_stamp: 1, ..Parts::default() };
    for (place, (((derived, most), borders), stands)) in numbers.zip(seen.limits).enumerate() {
        let (used, full) = (stands.used, from_now(stands.full_at));
        let grows = from_now(stands.reset_at);
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
        if stands.remaining == 0 && used < most {
            let until = grows.map_or(at + Span::from_secs(1), |span| at + span);
            parts.closed.push((place, until));
        }
    }
    parts.into_entry(policy).ok()
}

/// Log entries that leave the window in so long from `at`.
fn log(at: Timestamp, window: Span, leaving: [(Option<Span>, u64); 2]) -> Vec<(Timestamp, u64)> {
    let filed = leaving.into_iter().filter(|(_, amount)| 0 < *amount);
    filed.filter_map(|(left, amount)| Some((at + left? - window, amount))).collect()
}

/// An ask for exactly `sums` of the units of `policy`.
pub(super) fn ask_for<'a>(policy: &'a Policy, subject: &'a str, sums: &Sums) -> Ask<'a> {
    let costs = policy.units().zip(sums);
    costs.fold(Ask::new(policy, subject), |ask, (unit, sum)| ask.cost(unit, (*sum).min(NUMBER_MAX)))
}

/// Raises `view` to what `other` says is used, and lowers nothing: for answers that came out of order.
pub(super) fn raise(view: &mut Entry, other: &Entry, subject: &str, now: Timestamp) {
    let policy = view.policy().clone();
    let mut more = Sums::default();
    let both = standings(view, now).into_iter().zip(standings(other, now));
    for (place, (ours, theirs)) in policy.places().zip(both) {
        more[place] = more[place].max(theirs.used.saturating_sub(ours.used));
    }
    if more.iter().any(|sum| 0 < *sum) {
        let _ = charge(view, now, &ask_for(&policy, subject, &more), Known::New);
    }
}
