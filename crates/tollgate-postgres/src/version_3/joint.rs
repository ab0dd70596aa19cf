//! Asks of several charges in a schema of version 3.
//!
//! The rows are locked one after the other, in the order of their keys; a missing one is inserted as a fresh entry. An id is
//! kept in the row of the first charge under its own name, as programs of version 3 expect it. A second name, which no id
//! can have, marks it in the row of every charge and holds what that charge got.

use tokio_postgres::types::Type;
use tollgate::core::{Entry, IdChange, JointDecision, Known};
use tollgate::gate::{Operation, Outcome};
use tollgate::{Ask, Error};

use crate::call;
use crate::gate::{Postgres, SWAPS_MAX, contended};
use crate::pool::{Parameter, Transaction};
use crate::reply::Reply;

use super::{Ids, Swap};

impl Postgres {
    /// Runs `operation`, an acquire or charge of `ask`. Returns `None`, without side effects, if the schema was upgraded.
    pub(crate) async fn run_joint_3(
        &self,
        operation: &Operation<'_>,
        ask: &Ask<'_>,
    ) -> Option<Result<Outcome, Error>> {
        let exact = with_exact_logs(ask);
        let operation = match operation {
            Operation::Acquire(_) => Operation::Acquire(&exact),
            _ => Operation::Charge(&exact),
        };
        match self.exchange_joint_3(&operation, &exact).await {
            Err(error) if self.was_upgraded(&error).await => None,
            answer => answer.transpose(),
        }
    }

    async fn exchange_joint_3(
        &self,
        operation: &Operation<'_>,
        ask: &Ask<'_>,
    ) -> Result<Option<Outcome>, Error> {
        let mut replies = Vec::new();
        for charge in ask.charges() {
            let reply = self.read(charge.policy().name(), charge.subject(), None).await?;
            replies.push(self.learn(charge.policy(), charge.subject(), reply).await?);
        }
        let Some(decided) = Decided::new(operation, ask, &replies)? else { return Ok(None) };
        if !decided.writes() {
            return Ok(Some(decided.outcome));
        }
        let subjects: Vec<_> = ask.charges().map(|charge| call::stored(charge.subject())).collect();
        let names = ask.charges().map(|charge| charge.policy().name());
        let keys: Vec<(&str, &str)> = names.zip(subjects.iter().map(|text| &**text)).collect();
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|index| keys[*index]);
        let mut transaction = self.pool.begin(self.lock_timeout.as_deref()).await?;
        for index in order {
            let Some(part) = ask.part(index) else { continue };
            replies[index] = self.lock_3(&mut transaction, keys[index], &part).await?;
        }
        let decided = match Decided::new(operation, ask, &replies) {
            Ok(Some(decided)) if decided.writes() => decided,
            answer => {
                transaction.roll_back().await?;
                return Ok(answer?.map(|decided| decided.outcome));
            }
        };
        for (((key, reply), entry), ids) in
            keys.iter().zip(&replies).zip(&decided.entries).zip(&decided.ids)
        {
            let revision = reply.stored.as_ref().map(|stored| stored.revision);
            let swap = Swap::new(*key, revision, entry, ids, &self.lock_timeout);
            let row = transaction.ask(&self.statements.swap_3, &swap.parameters()).await?;
            if !row.get::<_, bool>(0) {
                return Err(contended(key.0, key.1));
            }
        }
        transaction.commit().await?;
        Ok(Some(decided.outcome))
    }

    /// Locks the row of `key`, or inserts it.
    async fn lock_3(
        &self,
        transaction: &mut Transaction<'_>,
        key: (&str, &str),
        part: &Ask<'_>,
    ) -> Result<Reply, Error> {
        let parameters: [Parameter<'_>; 3] =
            [(&key.0, Type::TEXT), (&key.1, Type::TEXT), (&self.test_now(), Type::INT8)];
        for _ in 0..SWAPS_MAX {
            let row = transaction.ask(&self.statements.look_locked_3, &parameters).await?;
            let reply = Reply::read(&row)?;
            if reply.stored.is_some() {
                return Ok(reply);
            }
            let (entry, ids) = (Entry::fresh(part.policy(), reply.now), Ids::default());
            let swap = Swap::new(key, None, &entry, &ids, &self.lock_timeout);
            transaction.ask(&self.statements.swap_3, &swap.parameters()).await?;
        }
        Err(contended(key.0, key.1))
    }
}

/// A joint decision on rows of version 3.
struct Decided {
    outcome: Outcome,
    is_charged: bool,
    /// The entry of each charge, and the ids in its row, as they are to be written.
    entries: Vec<Entry>,
    ids: Vec<Ids>,
}

impl Decided {
    /// Returns `None` if the rows are not of version 3.
    fn new(
        operation: &Operation<'_>,
        ask: &Ask<'_>,
        replies: &[Reply],
    ) -> Result<Option<Self>, Error> {
        let now = replies.iter().map(|reply| reply.now).max().unwrap_or_default();
        let (mut entries, mut before) = (Vec::new(), Vec::new());
        for (charge, reply) in ask.charges().zip(replies) {
            let Some(ids) = &reply.ids else { return Ok(None) };
            before.push(ids.clone());
            entries.push(reply.entry(charge.policy())?);
        }
        let mark = mark(ask);
        let (mut known, mut others) = (Known::New, Vec::new());
        if let Some(mark) = &mark {
            known = before[0].known_joint(operation, mark).unless_settled(operation, &entries[0]);
            match before[1..].iter().map(|ids| ids.charge(mark)).collect() {
                Some(all) => others = all,
                // A row was reset, or its charge released, so the ask is a new one. Another ask is a conflict.
                None if before[0].charge(mark).is_some() => known = Known::New,
                None => {}
            }
        }
        let mut decision = JointDecision::new(operation, known, &others, now)?;
        entries.iter().try_for_each(|entry| decision.judge(entry))?;
        let is_charged = decision.conclude()?;
        let policies: Vec<_> = entries.iter().map(|entry| entry.policy().clone()).collect();
        entries.iter_mut().for_each(|entry| decision.complete(entry));
        let joint = decision.finish();
        let mut ids = Vec::new();
        for (index, before) in before.into_iter().enumerate() {
            let (operation, change) = match index {
                0 => (Some(operation), joint.id),
                _ => (None, IdChange::Nothing),
            };
            let after = before.after(&policies[index], &entries[index], operation, change)?;
            ids.push(match (joint.id, &mark, ask.part(index)) {
                (IdChange::Remember(given), Some(mark), Some(part)) => {
                    let other = index.checked_sub(1).and_then(|place| joint.others.get(place));
                    let charge = other.copied().unwrap_or(given.charge);
                    after.with_mark(mark, charge, given.expires_at, &part)?
                }
                _ => after,
            });
        }
        Ok(Some(Self { outcome: joint.outcome, is_charged, entries, ids }))
    }

    fn writes(&self) -> bool {
        self.is_charged
    }
}

/// Returns the name that marks the id of `ask`, if it has one. A name of an id has `\` only before `\` and `0`.
fn mark(ask: &Ask<'_>) -> Option<String> {
    let (subject, id) = (call::stored(ask.subject()), call::stored(ask.id_text()?));
    Some(format!("\\j{}\\j{}\\j{subject}\\j{id}", ask.digest(), ask.policy().name()))
}

/// Returns `ask` under policies that programs of version 3 have, too.
fn with_exact_logs<'a>(ask: &'a Ask<'_>) -> Ask<'a> {
    let mut exact: Option<Ask<'a>> = None;
    let mut shared = tollgate::Costs::new();
    for (index, charge) in ask.charges().enumerate() {
        let (policy, subject) = (charge.policy().with_exact_logs(), charge.subject());
        let (costs, is_own) = (policy.costs(charge.amounts()), ask.has_own_costs(index));
        exact = Some(match (exact, is_own) {
            (None, true) => Ask::new_costing(policy, subject, &costs),
            (None, false) => Ask::new(policy, subject),
            (Some(exact), true) => exact.and_costing(policy, subject, &costs),
            (Some(exact), false) => exact.and(policy, subject),
        });
        if !is_own {
            shared = costs.iter().fold(shared, |shared, (unit, amount)| shared.with(unit, amount));
        }
    }
    let exact = exact.unwrap_or_else(|| ask.clone()).with_costs(&shared);
    let exact = if ask.is_refundable() { exact } else { exact.without_refund() };
    match ask.id_text() {
        Some(id) => exact.id_for(id, ask.id_ttl()),
        None => exact,
    }
}
