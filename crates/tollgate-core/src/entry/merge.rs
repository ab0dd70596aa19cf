//! Two entries for one policy and subject made into one, as when state is moved into a store that has some already.

use super::{Changed, Entry};
use crate::rule::State;

impl Entry {
    /// The stricter of this entry and `other`, limit by limit, in the numbers of this one: an ask has room only when it has
    /// room in both. The amounts are not added up, since both may count the same calls.
    ///
    /// Permits of either can still be settled: extra cost is charged and slots are freed. None of them gives anything back,
    /// because the side it was charged to is unknown. An entry merged with itself stays as it is.
    #[must_use]
    pub fn strictest(&self, other: &Self) -> Self {
        let same_shape = self.policy.has_shape_of(&other.policy);
        if same_shape && self.parts() == other.parts() {
            return self.clone();
        }
        let mut merged = self.clone();
        let mut other = if same_shape { other.clone() } else { other.carried_to(&self.policy) };
        let at = self.at.max(other.at);
        merged.advance(at);
        other.advance(at);
        merged.full_mut();
        let states: Vec<State> = other.limits().map(|(_, state)| state.to_state()).collect();
        let mut states = states.iter();
        merged.change_limits(|limit, state| {
            if let Some(other) = states.next() {
                limit.gauge.raise(state, other);
            }
        });
        merged.next_stamp = self.next_stamp.max(other.next_stamp);
        let changed = Changed { stamp: merged.next_stamp, at };
        let theirs = other.extra().cloned().unwrap_or_default();
        let extra = merged.extra_mut();
        extra.settled = extra.settled.union(&theirs.settled);
        extra.changed = Some(changed);
        for (index, until) in theirs.closed {
            match extra.closed.iter_mut().find(|(closed, _)| *closed == index) {
                Some((_, closed)) => *closed = until.max(*closed),
                None => extra.closed.push((index, until)),
            }
        }
        merged
    }
}
