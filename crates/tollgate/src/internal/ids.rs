//! Ask ids that a store keeps in this process.

use std::collections::HashMap;

use tollgate_core::bounds::IDS_MAX;
use tollgate_core::{
    Change, ChargeRecord, Entry, Error, IdChange, Known, Operation, Outcome, Remembered, Timestamp,
    apply,
};

/// What an id got, and what the charges after the first got under it.
type Given = (Remembered, Box<[ChargeRecord]>);

/// Fewer ids than this are never swept.
const SWEEP_MIN: usize = 1_024;

/// A bounded table of ask ids, each under its policy's name and its subject.
///
/// Expired ids are dropped when the table has doubled since the last sweep, so that remembering one takes constant time on
/// average.
///
/// ```
/// use tollgate::core::{Entry, Outcome};
/// use tollgate::gate::Operation;
/// use tollgate::internal::Ids;
/// use tollgate::{Ask, Limit, Policy, Timestamp, TokenBucket};
///
/// let policy = Policy::new("api", [Limit::new("burst", "requests", TokenBucket::per_second(10))])?;
/// let now = Timestamp::from_secs(1);
/// let (mut ids, mut entry) = (Ids::default(), Entry::fresh(&policy, now));
/// let ask = Ask::new(&policy, "alice").id("order-7");
/// let first = ids.apply(&Operation::Acquire(&ask), &mut entry, now)?.0;
/// let again = ids.apply(&Operation::Acquire(&ask), &mut entry, now)?.0;
/// assert_eq!(first, again, "charged once");
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Ids {
    given: HashMap<Box<[u8]>, Given>,
    most: usize,
    /// The table is swept when it has this many ids.
    sweep_at: usize,
    /// No id that the last sweep left expires before.
    sweep_not_before: Timestamp,
}

impl Default for Ids {
    fn default() -> Self {
        Self::with_max(IDS_MAX)
    }
}

impl Ids {
    /// A table of at most `most` ids.
    #[must_use]
    pub fn with_max(most: usize) -> Self {
        Self {
            given: HashMap::new(),
            most,
            sweep_at: SWEEP_MIN.min(most),
            sweep_not_before: Timestamp::EPOCH,
        }
    }

    /// How many ids there are, expired ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.given.len()
    }

    /// Returns whether there are no ids.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// Returns what is known of the id of `operation` at `now`.
    #[must_use]
    pub fn known(&mut self, operation: &Operation<'_>, now: Timestamp) -> Known {
        let Some(key) = key_of(operation) else { return Known::New };
        if let Some((given, _)) = self.given.get(&key) {
            return Known::Before(*given);
        }
        if self.sweep_at <= self.given.len() && self.sweep_not_before <= now {
            self.sweep(now);
        }
        if self.given.len() < self.most { Known::New } else { Known::Full }
    }

    fn sweep(&mut self, now: Timestamp) {
        self.given.retain(|_, (given, _)| now < given.expires_at);
        self.sweep_at = (2 * self.given.len()).max(SWEEP_MIN).min(self.most);
        let expiries = self.given.values().map(|(given, _)| given.expires_at);
        self.sweep_not_before = expiries.min().unwrap_or(Timestamp::EPOCH);
    }

    /// Carries out what [`apply`](tollgate_core::apply()) said of the id of `operation`.
    pub fn carry_out(&mut self, operation: &Operation<'_>, change: IdChange) {
        self.carry_out_joint(operation, change, Vec::new());
    }

    /// Returns what the charges after the first got under the id of `operation`.
    #[must_use]
    pub fn others(&self, operation: &Operation<'_>) -> &[ChargeRecord] {
        let given = key_of(operation).and_then(|key| self.given.get(&key));
        given.map_or(&[], |(_, others)| others)
    }

    /// Carries out what a [`JointDecision`](tollgate_core::JointDecision) said of the id of `operation`.
    pub fn carry_out_joint(
        &mut self,
        operation: &Operation<'_>,
        change: IdChange,
        others: Vec<ChargeRecord>,
    ) {
        match (change, key_of(operation)) {
            (IdChange::Remember(given), Some(key)) => {
                self.sweep_not_before = self.sweep_not_before.min(given.expires_at);
                self.given.insert(key, (given, others.into_boxed_slice()));
            }
            (IdChange::Forget, Some(key)) => {
                self.given.remove(&key);
            }
            _ => {}
        }
    }

    /// Runs `operation` on `entry` at `now` as [`apply`](tollgate_core::apply()) does, with the ids of this table.
    ///
    /// # Errors
    /// Whatever the operation could not decide; nothing has changed then.
    pub fn apply(
        &mut self,
        operation: &Operation<'_>,
        entry: &mut Entry,
        now: Timestamp,
    ) -> Result<(Outcome, Change), Error> {
        let known = self.known(operation, now);
        let applied = apply(operation, entry, known, now)?;
        self.carry_out(operation, applied.id);
        Ok((applied.outcome, applied.change))
    }
}

/// The id of `operation` with its policy and subject, so that no two of them are the same bytes.
fn key_of(operation: &Operation<'_>) -> Option<Box<[u8]>> {
    let (id, policy, subject) = (operation.id()?, operation.policy().name(), operation.subject());
    let lengths = [policy.len(), subject.len()].map(|length| u32::try_from(length).unwrap_or(0));
    let [first, second] = lengths.map(u32::to_le_bytes);
    let parts = [&first, &second, policy.as_bytes(), subject.as_bytes(), id.as_bytes()];
    Some(parts.concat().into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Ask, Limit, Policy, Span, TokenBucket};

    use super::*;

    #[test]
    fn expired_ids_make_room_and_a_full_table_says_so() {
        let limit = Limit::new("burst", "requests", TokenBucket::per_second(1_000_000));
        let policy = Policy::new("api", [limit]).unwrap();
        let (mut ids, start) = (Ids::with_max(3_000), Timestamp::from_secs(1_000));
        let mut entry = Entry::fresh(&policy, start);
        let mut ask = |ids: &mut Ids, id: u64, now| {
            let ask = Ask::new(&policy, "alice").id_for(id.to_string(), Span::from_secs(10));
            ids.apply(&Operation::Acquire(&ask), &mut entry, now).map(drop)
        };
        for id in 0..3_000 {
            ask(&mut ids, id, start).unwrap();
        }
        assert!(ask(&mut ids, 3_000, start).is_err(), "full");
        assert!(ask(&mut ids, 7, start).is_ok(), "known");
        let later = start + Span::from_secs(10);
        for id in 3_000..20_000 {
            ask(&mut ids, id, later + Span::from_secs(id)).unwrap();
        }
        assert!(ids.len() <= 2 * SWEEP_MIN, "{}", ids.len());
    }
}
