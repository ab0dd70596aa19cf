//! A store of several entries.

use std::collections::BTreeMap;

use tollgate::internal::Ids;
use tollgate_core::{
    Change, Charge, Entry, Error, JoinedOutcome, Joint, JointDecision, Operation, Outcome,
    Timestamp,
};

/// Entries and ids, changed by the core.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    entries: BTreeMap<(String, String), Entry>,
    ids: Ids,
}

impl Entries {
    /// This store as a function, for [`JointPlayer::new`](super::JointPlayer::new).
    pub fn runner(
        &mut self,
    ) -> impl FnMut(Timestamp, &Operation<'_>) -> Result<Outcome, Error> + '_ {
        |now, operation: &Operation<'_>| self.run(now, operation)
    }

    /// Runs `operation` at `now`.
    pub fn run(&mut self, now: Timestamp, operation: &Operation<'_>) -> Result<Outcome, Error> {
        match operation {
            joint if !joint.is_joint() => self.run_single(now, operation),
            Operation::Acquire(ask) | Operation::Charge(ask) => {
                let charges: Vec<&Charge<'_>> = ask.charges().collect();
                self.run_joint(now, operation, &charges)
            }
            of_permit => {
                let mut outcome = JoinedOutcome::default();
                for part in of_permit.parts()? {
                    outcome.add(self.run(now, &part.operation()));
                }
                outcome.finish()
            }
        }
    }

    fn run_single(&mut self, now: Timestamp, operation: &Operation<'_>) -> Result<Outcome, Error> {
        let key = (operation.policy().name().to_owned(), operation.subject().to_owned());
        let found = self.entries.get(&key).cloned();
        let mut entry = found.unwrap_or_else(|| Entry::fresh(operation.policy(), now));
        let (outcome, change) = self.ids.apply(operation, &mut entry, now)?;
        if change == Change::Entry {
            self.entries.insert(key, entry);
        }
        Ok(outcome)
    }

    fn run_joint(
        &mut self,
        now: Timestamp,
        operation: &Operation<'_>,
        charges: &[&Charge<'_>],
    ) -> Result<Outcome, Error> {
        let key =
            |charge: &Charge<'_>| (charge.policy().name().to_owned(), charge.subject().to_owned());
        let entry = |charge: &&Charge<'_>| {
            let found = self.entries.get(&key(charge)).cloned();
            found.unwrap_or_else(|| Entry::fresh(charge.policy(), now))
        };
        let mut entries: Vec<Entry> = charges.iter().map(entry).collect();
        let known = self.ids.known(operation, now);
        let mut decision = JointDecision::new(operation, known, self.ids.others(operation), now)?;
        entries.iter().try_for_each(|entry| decision.judge(entry))?;
        decision.conclude()?;
        for (index, (charge, mut entry)) in charges.iter().zip(entries.drain(..)).enumerate() {
            decision.complete(&mut entry);
            if decision.is_charged(index) {
                self.entries.insert(key(charge), entry);
            }
        }
        let Joint { outcome, id, others } = decision.finish();
        self.ids.carry_out_joint(operation, id, others);
        Ok(outcome)
    }
}
