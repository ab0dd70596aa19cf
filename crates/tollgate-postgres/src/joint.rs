//! Asks of several charges: all of them are charged, or none.
//!
//! ```text
//! ask ──▶ spend_joint() ──┬─ charged: permit and standings from the new rows
//!                         ├─ refused: the core derives the denial from the rows
//!                         └─ known id, other numbers ──▶ look() at every row ──┬─ the core writes nothing
//! ask with a policy in shadow mode ────────────────────────▲                   └─ hold() the rows, look(), core, swap()
//! ```
//! Every statement that locks several rows locks them in the order of their keys, so that no two deadlock. The record of the
//! ask's id belongs to the first charge, and includes what the other charges got.

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use tollgate::core::{
    ChargeRecord, Entry, Grant, IdChange, Joint, JointDecision, Known, standings,
};
use tollgate::gate::{Operation, Outcome};
use tollgate::internal::run_parts;
use tollgate::{Ask, Decision, Error, Permit};

use crate::call::{self, Spend};
use crate::gate::{Postgres, contended, too_many_in_flight};
use crate::pool::{Parameter, Transaction};
use crate::reply::{Effect, Reply};
use crate::row::{corrupt, integer, micros};
use crate::statements::Swap;

/// A joint decision on rows that were read.
struct Decided {
    joint: Joint,
    /// Of each charge, its entry if it is charged.
    charged: Vec<Option<Entry>>,
}

impl Postgres {
    /// Runs an operation on several charges.
    pub(crate) async fn run_joint(&self, operation: Operation<'_>) -> Result<Outcome, Error> {
        let (Operation::Acquire(ask) | Operation::Charge(ask)) = operation else {
            if let Operation::Release(permit) = operation {
                self.forget_uncharged(permit).await?;
            }
            return run_parts(self, operation).await;
        };
        ask.check()?;
        if self.version.is_old()
            && let Some(answer) = self.run_joint_3(&operation, ask).await
        {
            return answer;
        }
        let is_in_shadow = ask.charges().any(|charge| charge.policy().is_shadow());
        if !is_in_shadow && let Some(outcome) = self.spend_joint(&operation, ask).await? {
            return Ok(outcome);
        }
        self.exchange_joint(&operation, ask).await
    }

    /// Removes the id of a permit whose first charge was not made, because its policy is in shadow mode: the release of that
    /// charge does nothing.
    async fn forget_uncharged(&self, permit: &Permit) -> Result<(), Error> {
        let Some(id) = permit.id().filter(|_| permit.grant().stamp == 0) else { return Ok(()) };
        if self.version.is_old() {
            return Ok(());
        }
        let (policy, subject) = (permit.policy().name(), call::stored(permit.subject()));
        let sql = format!(
            "DELETE FROM {}.ids WHERE policy = $1 AND subject = $2 AND id = $3 AND stamp = 0 AND at_us = $4",
            self.schema
        );
        let parameters: [Parameter<'_>; 4] = [
            (&policy, Type::TEXT),
            (&subject, Type::TEXT),
            (&call::stored(id), Type::TEXT),
            (&micros(permit.grant().at), Type::INT8),
        ];
        self.pool.query(&sql, &parameters, "could not forget an id").await.map(drop)
    }

    /// Decides in one statement. Returns `None`, without side effects, if the decision needs more than that.
    async fn spend_joint(
        &self,
        operation: &Operation<'_>,
        ask: &Ask<'_>,
    ) -> Result<Option<Outcome>, Error> {
        let decide = matches!(operation, Operation::Acquire(_));
        let (at, now) = (self.now(), self.test_now());
        let others = (1..ask.charges().len()).filter_map(|index| ask.part(index));
        let others = others.map(|part| Spend::new(&part, decide, at, now));
        let charges = std::iter::once(Spend::new(ask, decide, at, now)).chain(others).collect();
        let mut replies = Vec::new();
        for (charge, numbers) in ask.charges().zip(self.batcher.spend(charges).await?) {
            let reply = Reply::from_spend(&numbers)?;
            replies.push(self.learn(charge.policy(), charge.subject(), reply).await?);
        }
        match replies.first().map(|reply| reply.effect) {
            Some(Effect::Wrote) => charged(ask, &replies, decide).map(Some),
            Some(Effect::Read) => {
                let decided = decide_on(operation, ask, &replies)?;
                let is_charged = decided.charged.iter().any(Option::is_some);
                Ok((!is_charged).then_some(decided.joint.outcome))
            }
            _ => Ok(None),
        }
    }

    /// Decides in the core, on locked rows if it is charged.
    async fn exchange_joint(
        &self,
        operation: &Operation<'_>,
        ask: &Ask<'_>,
    ) -> Result<Outcome, Error> {
        let keys = Keys::new(ask);
        let parameters = (keys.ids(ask), self.test_now());
        let rows = self.pool.rows(&self.statements.look_all, &keys.look(&parameters)).await?;
        let mut replies = Vec::new();
        for (charge, reply) in ask.charges().zip(read(&rows, ask)?) {
            replies.push(self.learn(charge.policy(), charge.subject(), reply).await?);
        }
        let decided = decide_on(operation, ask, &replies)?;
        if !decided.writes() {
            return Ok(decided.joint.outcome);
        }
        let order = keys.order();
        let mut turns = Vec::new();
        for index in &order {
            let turn = async { Ok(self.turns.take(keys.get(*index)).await) };
            turns.push(self.pool.in_time(turn).await?);
        }
        let mut transaction = self.pool.begin(self.lock_timeout.as_deref()).await?;
        let revisions = self.hold(&mut transaction, &keys, &order).await?;
        let rows = transaction.rows(&self.statements.look_all, &keys.look(&parameters)).await?;
        let mut replies = read(&rows, ask)?;
        for (reply, revision) in replies.iter_mut().zip(&revisions) {
            // The row was inserted by `hold`.
            if *revision < 0 {
                reply.stored = None;
            }
        }
        let decided = match decide_on(operation, ask, &replies) {
            Ok(decided) if decided.writes() => decided,
            answer => {
                transaction.roll_back().await?;
                return answer.map(|decided| decided.joint.outcome);
            }
        };
        for (index, entry) in decided.charged.iter().enumerate() {
            let key = keys.get(index);
            let revision = revisions.get(index).copied().unwrap_or_default();
            let is_written: bool = match entry {
                Some(entry) => {
                    let swap = Swap::new(key, Some(revision.abs()), entry, &self.lock_timeout);
                    let row = transaction.ask(&self.statements.swap, &swap.parameters()).await?;
                    row.get(0)
                }
                None if revision < 0 => {
                    let parameters: [Parameter<'_>; 2] =
                        [(&key.0, Type::TEXT), (&key.1, Type::TEXT)];
                    transaction.rows(&self.statements.remove, &parameters).await?;
                    true
                }
                None => true,
            };
            if !is_written {
                return Err(contended(operation.policy().name(), operation.subject()));
            }
        }
        self.remember(&mut transaction, &keys, ask, &decided.joint, &replies).await?;
        transaction.commit().await?;
        Ok(decided.joint.outcome)
    }

    /// Locks the rows of `keys` in `order`. Returns their revisions, negative for rows that were inserted.
    async fn hold(
        &self,
        transaction: &mut Transaction<'_>,
        keys: &Keys,
        order: &[usize],
    ) -> Result<Vec<i64>, Error> {
        let (policies, subjects): (Vec<&str>, Vec<&str>) =
            order.iter().map(|index| keys.get(*index)).unzip();
        let parameters: [Parameter<'_>; 3] = [
            (&policies, Type::TEXT_ARRAY),
            (&subjects, Type::TEXT_ARRAY),
            (&self.test_now(), Type::INT8),
        ];
        let row = transaction.ask(&self.statements.hold, &parameters).await?;
        let held: Vec<i64> = row.get(0);
        let mut revisions = vec![0; order.len()];
        for (index, revision) in order.iter().zip(held) {
            revisions[*index] = revision;
        }
        Ok(revisions)
    }

    /// Remembers the id of `ask`, if `joint` does.
    async fn remember(
        &self,
        transaction: &mut Transaction<'_>,
        keys: &Keys,
        ask: &Ask<'_>,
        joint: &Joint,
        replies: &[Reply],
    ) -> Result<(), Error> {
        let (IdChange::Remember(given), Some(id)) = (joint.id, ask.id_text()) else {
            return Ok(());
        };
        let (policy, subject) = keys.get(0);
        let known = match replies.first().map(|reply| reply.known) {
            Some(Known::Before(given)) => Some(integer(given.charge.stamp)),
            _ => None,
        };
        let other = |other: &ChargeRecord| [micros(other.at), integer(other.stamp)];
        let others: Vec<i64> = joint.others.iter().flat_map(other).collect();
        let parameters: [Parameter<'_>; 9] = [
            (&policy, Type::TEXT),
            (&subject, Type::TEXT),
            (&call::stored(id), Type::TEXT),
            (&known, Type::INT8),
            (&micros(given.charge.at), Type::INT8),
            (&integer(given.charge.stamp), Type::INT8),
            (&integer(given.digest), Type::INT8),
            (&micros(given.expires_at), Type::INT8),
            (&others, Type::INT8_ARRAY),
        ];
        transaction.ask(&self.statements.remember, &parameters).await.map(drop)
    }
}

impl Decided {
    fn writes(&self) -> bool {
        self.charged.iter().any(Option::is_some) || self.joint.id != IdChange::Nothing
    }
}

/// The keys of the rows of an ask, in its order.
struct Keys {
    policies: Vec<String>,
    subjects: Vec<String>,
}

impl Keys {
    fn new(ask: &Ask<'_>) -> Self {
        Self {
            policies: ask.charges().map(|charge| charge.policy().name().to_owned()).collect(),
            subjects: ask
                .charges()
                .map(|charge| call::stored(charge.subject()).into_owned())
                .collect(),
        }
    }

    fn get(&self, index: usize) -> (&str, &str) {
        (&self.policies[index], &self.subjects[index])
    }

    /// Returns the indexes in the order of the keys.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.policies.len()).collect();
        order.sort_by_key(|index| self.get(*index));
        order
    }

    /// Returns the id of each charge: the first has that of the ask.
    fn ids(&self, ask: &Ask<'_>) -> Vec<Option<String>> {
        let mut ids = vec![None; self.policies.len()];
        ids[0] = ask.id_text().map(|id| call::stored(id).into_owned());
        ids
    }

    /// Returns the parameters of `look_all`.
    fn look<'a>(
        &'a self,
        (ids, now): &'a (Vec<Option<String>>, Option<i64>),
    ) -> [Parameter<'a>; 4] {
        [
            (&self.policies, Type::TEXT_ARRAY),
            (&self.subjects, Type::TEXT_ARRAY),
            (ids, Type::TEXT_ARRAY),
            (now, Type::INT8),
        ]
    }
}

fn read(rows: &[Row], ask: &Ask<'_>) -> Result<Vec<Reply>, Error> {
    if rows.len() != ask.charges().len() {
        return Err(corrupt("a reply has too few rows"));
    }
    rows.iter().map(Reply::read).collect()
}

/// Decides `operation` in the core, at the latest time of `replies`.
fn decide_on(
    operation: &Operation<'_>,
    ask: &Ask<'_>,
    replies: &[Reply],
) -> Result<Decided, Error> {
    let now = replies.iter().map(|reply| reply.now).max().unwrap_or_default();
    let entry = |(charge, reply): (&tollgate::core::Charge<'_>, &Reply)| match &reply.stored {
        Some(stored) => stored.to_entry(charge.policy()),
        None => Ok(Entry::fresh(charge.policy(), now)),
    };
    let entries = ask.charges().zip(replies).map(entry).collect::<Result<Vec<_>, _>>()?;
    let (known, others) = match replies.first() {
        Some(first) => (first.known, first.others.as_slice()),
        None => (Known::New, [].as_slice()),
    };
    let mut decision = JointDecision::new(operation, known, others, now)?;
    entries.iter().try_for_each(|entry| decision.judge(entry))?;
    let mut charged = Vec::new();
    decision.conclude()?;
    for (index, mut entry) in entries.into_iter().enumerate() {
        let is_charged = decision.is_charged(index);
        let is_full = replies[index].stored.as_ref().is_some_and(|stored| stored.is_full(now));
        if is_charged
            && is_full
            && matches!(operation, Operation::Acquire(_))
            && ask.is_refundable()
        {
            return Err(too_many_in_flight(
                ask.charges().nth(index).map_or("", |one| one.subject()),
            ));
        }
        decision.complete(&mut entry);
        charged.push(is_charged.then_some(entry));
    }
    Ok(Decided { joint: decision.finish(), charged })
}

/// Returns the permit of an ask that the database charged.
fn charged(ask: &Ask<'_>, replies: &[Reply], decided: bool) -> Result<Outcome, Error> {
    let mut permits = Vec::new();
    for (index, reply) in replies.iter().enumerate() {
        let Some(part) = ask.part(index) else { break };
        let entry = reply.entry(part.policy())?;
        let charge = ChargeRecord { at: entry.at(), stamp: reply.stamp };
        let mut grant = Grant::new(charge, part.policy(), part.amounts());
        if !decided {
            grant.expires_at = None;
        }
        let permit = Permit::for_ask(&part, grant, standings(&entry, reply.now));
        permits.push(if ask.has_own_costs(index) { permit.with_own_costs() } else { permit });
    }
    let permit = Permit::joined(permits).with_id(ask.id_text());
    Ok(match decided {
        true => Outcome::Decided(Decision::Admitted(permit)),
        false => Outcome::Permitted(permit),
    })
}
