//! A store of one entry.

use tollgate::internal::Ids;
use tollgate_core::{Change, Entry, Error, Operation, Outcome, Timestamp};

/// One entry and its ids, changed by the core.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SingleEntry {
    /// The entry, if there is one.
    pub entry: Option<Entry>,
    ids: Ids,
}

impl SingleEntry {
    /// This store as a function, for [`Player::play`](super::Player::play).
    pub fn runner(
        &mut self,
    ) -> impl FnMut(Timestamp, &Operation<'_>) -> Result<Outcome, Error> + '_ {
        |now, operation: &Operation<'_>| self.run(now, operation)
    }

    /// Runs `operation` at `now` on the entry.
    pub fn run(&mut self, now: Timestamp, operation: &Operation<'_>) -> Result<Outcome, Error> {
        if let Some(entry) = &mut self.entry {
            return Ok(self.ids.apply(operation, entry, now)?.0);
        }
        let mut entry = Entry::fresh(operation.policy(), now);
        let (outcome, change) = self.ids.apply(operation, &mut entry, now)?;
        if change == Change::Entry {
            self.entry = Some(entry);
        }
        Ok(outcome)
    }
}
