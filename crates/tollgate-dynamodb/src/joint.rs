//! Asks with several charges, as one transaction over the items of all of them.
//!
//! ```text
//! TransactWriteItems   each charged item: the expression of a single acquire, or a compare-and-swap on the version
//!                      the item of the id, if there is one: as for a single ask, and what every charge got
//! BatchGetItem         the stamps that expressions assigned, and the standings
//! ```
//! A charge is an expression where that of a single acquire would be one, so that writers commute. It is a swap if the ask has
//! an id, since the item of the id holds the stamps. If all charges are swaps, everything is known and nothing is read.
//!
//! The core decides by what was last seen. Only an admission is written without a read before; its conditions fail if an item
//! is not as expected. Then, and before any other answer, the items are read and the core decides again.
//!
//! Transactions on one item exclude each other. Those of one process take turns, by the locks of the
//! [swap queues](crate::swap_queue), which are taken in the order of keys.

use std::sync::Arc;

use aws_sdk_dynamodb::types::TransactWriteItem;
use tokio::sync::MutexGuard;
use tollgate::core::{
    ChargeRecord, Entry, Grant, IdChange, Joint, JointDecision, Known, Remembered, standings,
};
use tollgate::gate::{Operation, Outcome};
use tollgate::internal::edge::random;
use tollgate::internal::run_parts;
use tollgate::observe::AttemptResult;
use tollgate::{Ask, Decision, Error, ErrorKind, Permit, Timestamp};

use crate::attempts::Attempts;
use crate::change::{GUESSES_MAX, SWAPS_MAX, TRYING_MAX, contended, nothing_returned};
use crate::client::pause;
use crate::conditional_update;
use crate::format::Format;
use crate::id::{self, IdWrite};
use crate::item::Item;
use crate::layout::Layout;
use crate::run::{Seen, too_many_in_flight};
use crate::store::DynamoDb;
use crate::swap::{SwapExtras, swap};
use crate::swap_queue::{Batch, QueueHandle};
use crate::write_token::Tokens;

impl DynamoDb {
    /// Runs an operation with several charges.
    pub(crate) async fn answer_joint(
        &self,
        attempts: &mut Attempts<'_>,
        operation: &Operation<'_>,
    ) -> Result<Outcome, Error> {
        match operation {
            Operation::Acquire(ask) | Operation::Charge(ask) => {
                self.charge_all(attempts, operation, ask).await
            }
            _ => {
                if let Operation::Release(permit) = operation
                    && !permit.is_charged()
                    && let Some(key) = id::key_of(operation)
                {
                    // The first charge is in shadow mode, so no swap of its item forgets the id.
                    let Grant { at, stamp, .. } = *permit.grant();
                    let write = IdWrite::forget_charge(key, ChargeRecord { at, stamp });
                    let writes = vec![self.table.id_write(&write)?];
                    let sent = self.table.transact_all(attempts, write.action(), writes).await?;
                    attempts.ended(sent.took, AttemptResult::Answered);
                }
                run_parts(self, *operation).await
            }
        }
    }

    /// Charges every part of `ask`, or none.
    async fn charge_all(
        &self,
        attempts: &mut Attempts<'_>,
        operation: &Operation<'_>,
        ask: &Ask<'_>,
    ) -> Result<Outcome, Error> {
        ask.check()?;
        if self.format == Format::Old {
            return Err(Error::new(
                ErrorKind::Invalid,
                "dynamodb: an ask with several charges needs format 2; remove the setting format = 1 once no older \
                 program is left",
            ));
        }
        let mut parts = (0..ask.charges().len())
            .filter_map(|index| ask.part(index))
            .map(|ask| self.part(ask))
            .collect::<Result<Vec<_>, _>>()?;
        let mut id = IdState { key: id::key_of(operation), read: None };
        let turn = Turn::new(self, &parts);
        let (mut locks, mut sent) = (Vec::new(), Vec::<Sent>::new());
        let mut give_up_at = self.clock.now() + TRYING_MAX;
        // Whether the items are the current ones, and the time of a write that one of them refused.
        let (mut is_fresh, mut refused) = (false, None);
        for attempt in 0..SWAPS_MAX {
            let now = self.clock.now();
            if give_up_at < now {
                break;
            }
            for part in &mut parts {
                let (policy, seen) = (part.ask.policy(), part.seen.take());
                part.seen = self.repaired(attempts, policy, &part.key, seen).await?;
            }
            let decided = self.decide(operation, &parts, &id, now);
            // Only the conditions of a write replace a read.
            let is_write = decided.as_ref().is_ok_and(Decided::is_certain_if_written);
            if !(is_write || is_fresh && id.is_read()) {
                self.read_parts(attempts, &mut parts, Some(&mut id)).await?;
                is_fresh = true;
                continue;
            }
            let is_answer = !decided.as_ref().is_ok_and(Decided::is_written);
            if let Some(took) = refused.take() {
                let result = if is_answer { AttemptResult::Answered } else { AttemptResult::Raced };
                attempts.ended(took, result);
            }
            let decided = decided?;
            if is_answer {
                if decided.is_denied() && self.was_just_remembered(attempts, &mut id).await? {
                    continue;
                }
                return Ok(decided.outcome);
            }
            if locks.is_empty() {
                locks = turn.wait().await;
                give_up_at = self.clock.now() + TRYING_MAX;
                let hints = parts.iter().map(|part| self.hints.seen(&part.key));
                let hints: Vec<_> = hints.collect();
                let is_same = |(part, hint): (&Part<'_>, &Option<Arc<Item>>)| {
                    part.seen.as_ref().map(|item| item.version())
                        == hint.as_ref().map(|item| item.version())
                };
                if !parts.iter().zip(&hints).all(is_same) {
                    parts.iter_mut().zip(hints).for_each(|(part, hint)| part.seen = hint);
                    is_fresh = false;
                    continue;
                }
            }
            let may_guess = matches!(operation, Operation::Acquire(_))
                && id.key.is_none()
                && attempt < GUESSES_MAX;
            let mut writes = Vec::with_capacity(parts.len() + 1);
            let mut charged = Vec::with_capacity(parts.len());
            for (part, entry) in parts.iter_mut().zip(&decided.entries) {
                let Some(entry) = entry else {
                    charged.push(None);
                    continue;
                };
                let (write, sent) = self.write_of(part, entry, may_guess, is_fresh, now)?;
                writes.push(write);
                charged.push(Some(sent));
            }
            let mut action = "UpdateItem";
            if let Some(write) = id.write(decided.id, &decided.others) {
                action = write.action();
                writes.push(self.table.id_write(&write)?);
            }
            sent.push(Sent { outcome: decided.outcome, charged });
            let delivered = self.table.transact_all(attempts, action, writes).await?;
            let applied = if delivered.written.is_ok() {
                attempts.ended(delivered.took, AttemptResult::Answered);
                sent.pop()
            } else {
                for (part, write) in sent.iter().last().into_iter().flat_map(|sent| sent.of(&parts))
                {
                    for token in &write.finished {
                        self.hints.finish(&part.key, token.clone());
                    }
                }
                self.read_parts(attempts, &mut parts, Some(&mut id)).await?;
                (is_fresh, refused) = (true, Some(delivered.took));
                let place = sent.iter().rposition(|sent| sent.is_applied_in(&parts));
                place.map(|place| sent.swap_remove(place))
            };
            let Some(applied) = applied else {
                // Retries at once first, then with backoff.
                if 1 < attempt {
                    pause(attempt.min(3)).await;
                }
                continue;
            };
            if let Some(took) = refused {
                attempts.ended(took, AttemptResult::Answered);
            } else {
                for (part, write) in applied.of(&parts) {
                    if let Some(item) = &write.item {
                        self.hints.see(&part.key, item);
                    }
                }
                drop(locks);
                if applied.has_guesses() {
                    self.read_parts(attempts, &mut parts, None).await?;
                }
            }
            if delivered.is_clean {
                for (part, write) in applied.of(&parts) {
                    self.hints.finish(&part.key, write.token.clone());
                }
            }
            return applied.into_outcome(&parts, now);
        }
        Err(contended(&parts[0].key))
    }

    fn part<'a>(&self, ask: Ask<'a>) -> Result<Part<'a>, Error> {
        let layout = Layout::for_policy(ask.policy());
        layout.check(ask.policy())?;
        let key = format!("{}/{}", ask.policy().name(), ask.subject());
        let seen = self.hints.seen(&key);
        Ok(Part { ask, layout, key, seen, tokens: Tokens::new(random) })
    }

    /// Reads the items of `parts`, and that of the id if it is given.
    async fn read_parts(
        &self,
        attempts: &mut Attempts<'_>,
        parts: &mut [Part<'_>],
        id: Option<&mut IdState>,
    ) -> Result<(), Error> {
        let id = id.filter(|id| id.key.is_some());
        let id_key = id.as_ref().and_then(|id| id.key.as_deref());
        let keys: Vec<&str> = parts.iter().map(|part| part.key.as_str()).chain(id_key).collect();
        let mut items = self.table.read_all(attempts, &keys).await?.into_iter();
        for part in parts {
            part.seen = items.next().flatten();
            self.saw(&part.key, part.seen.as_ref());
        }
        match id {
            Some(id) => id.see(items.next().flatten().as_deref()),
            None => Ok(()),
        }
    }

    /// Returns whether the id of a denied ask is known now and was not before: items that are read together are no snapshot,
    /// and the charge of the same ask may be what leaves no room.
    async fn was_just_remembered(
        &self,
        attempts: &mut Attempts<'_>,
        id: &mut IdState,
    ) -> Result<bool, Error> {
        let Some(key) = id.key.as_deref().filter(|_| id.record().is_none()) else {
            return Ok(false);
        };
        let item = self.table.read(attempts, key).await?;
        id.see(item.as_deref())?;
        Ok(item.is_some())
    }

    /// Decides by what was last seen.
    fn decide(
        &self,
        operation: &Operation<'_>,
        parts: &[Part<'_>],
        id: &IdState,
        now: Timestamp,
    ) -> Result<Decided, Error> {
        let (known, others) = match id.record() {
            Some((given, others)) => (Known::Before(*given), others.as_slice()),
            None => (Known::New, [].as_slice()),
        };
        let mut decision = JointDecision::new(operation, known, others, now)?;
        let entries = parts.iter().map(|part| {
            let observations = self.hints.observations(&part.key);
            let seen = Seen::new(part.seen.as_deref(), self.format);
            let seen = Seen { observations: &observations, ..seen };
            let entry = seen.entry(&Operation::Acquire(&part.ask), now)?;
            decision.judge(&entry)?;
            Ok(entry)
        });
        let mut entries = entries.collect::<Result<Vec<_>, Error>>()?;
        let is_charged = decision.conclude()?;
        let is_full = |(index, part): (usize, &Part<'_>)| {
            decision.is_charged(index)
                && part.ask.is_refundable()
                && part.seen.as_ref().is_some_and(|item| item.is_full_at(now))
        };
        if matches!(operation, Operation::Acquire(_)) && parts.iter().enumerate().any(is_full) {
            return Err(too_many_in_flight());
        }
        entries.iter_mut().for_each(|entry| decision.complete(entry));
        let entries = entries.into_iter().enumerate();
        let entries = entries.map(|(index, entry)| decision.is_charged(index).then_some(entry));
        let entries = entries.collect();
        let Joint { outcome, id, others } = decision.finish();
        Ok(Decided { is_charged, outcome, entries, id, others })
    }

    /// Returns the write that charges `part`, after which its entry is `entry` if it was seen as it is.
    fn write_of(
        &self,
        part: &mut Part<'_>,
        entry: &Entry,
        may_guess: bool,
        is_fresh: bool,
        now: Timestamp,
    ) -> Result<(TransactWriteItem, SentCharge), Error> {
        let seen = part.seen.as_deref();
        let at = seen.map_or(now, |item| item.at().max(now));
        let may_guess = may_guess
            && conditional_update::is_additive(&part.layout, &part.ask)
            && seen.is_none_or(|item| item.has_shape_of(part.ask.policy()));
        let plan = may_guess.then(|| conditional_update::plan(&part.ask, &part.layout, seen, at));
        // As for a single acquire, what the expression cannot decide is a swap.
        let plan = plan.filter(|plan| !plan.needs_swap && (plan.fits || !is_fresh));
        let finished = self.hints.take_finished(&part.key);
        let token = part.tokens.next(if plan.is_some() { at } else { entry.at() });
        if let Some(mut plan) = plan {
            plan.stamp_into(&token, at);
            for name in part.tokens.names() {
                plan.expression.only_if_missing(name);
            }
            for name in &finished {
                plan.expression.remove_once(name);
            }
            let write = self.table.update_write(&part.key, &plan.expression)?;
            return Ok((write, SentCharge { token, at, item: None, finished }));
        }
        let names: Vec<String> = part.tokens.names().map(str::to_owned).collect();
        let extras = SwapExtras { tokens: &names, finished: &finished, ..SwapExtras::default() };
        let swap = swap(entry, seen, Format::New, &extras);
        let write = match &swap.update {
            Some(update) => self.table.update_write(&part.key, update)?,
            None => self.table.put_write(&part.key, swap.item.clone(), &swap.condition)?,
        };
        let item = Some(Arc::new(Item { attributes: swap.item }));
        Ok((write, SentCharge { token, at: entry.at(), item, finished }))
    }
}

/// A charge of the ask, and the item that it changes.
struct Part<'a> {
    ask: Ask<'a>,
    layout: Layout,
    key: String,
    /// The item as it was last seen.
    seen: Option<Arc<Item>>,
    tokens: Tokens,
}

/// The queues of the items of an ask, in the order of keys.
struct Turn<'a>(Vec<QueueHandle<'a>>);

impl<'a> Turn<'a> {
    fn new(store: &'a DynamoDb, parts: &[Part<'_>]) -> Self {
        let mut keys: Vec<&str> = parts.iter().map(|part| part.key.as_str()).collect();
        keys.sort_unstable();
        Self(keys.into_iter().map(|key| store.queues.join(key)).collect())
    }

    async fn wait(&self) -> Vec<MutexGuard<'_, Batch>> {
        let mut locks = Vec::with_capacity(self.0.len());
        for queue in &self.0 {
            locks.push(queue.lock().await);
        }
        locks
    }
}

/// A decision by what was last seen.
struct Decided {
    /// Whether the ask is admitted, and not a repeat.
    is_charged: bool,
    outcome: Outcome,
    /// The entry of each charge afterwards; `None` for a charge that is not made.
    entries: Vec<Option<Entry>>,
    id: IdChange,
    others: Vec<ChargeRecord>,
}

impl Decided {
    /// Whether something is to be written.
    fn is_written(&self) -> bool {
        self.is_charged
            && (self.entries.iter().any(Option::is_some) || self.id != IdChange::Nothing)
    }

    /// Whether the conditions of its write show that it is right.
    fn is_certain_if_written(&self) -> bool {
        self.is_charged && self.entries.iter().all(Option::is_some)
    }

    const fn is_denied(&self) -> bool {
        matches!(self.outcome, Outcome::Decided(Decision::Denied(_)))
    }
}

/// The id of an ask with several charges.
struct IdState {
    key: Option<String>,
    /// What its item says of all charges; nothing if it was not read.
    read: Option<Option<(Remembered, Vec<ChargeRecord>)>>,
}

impl IdState {
    const fn is_read(&self) -> bool {
        self.key.is_none() || self.read.is_some()
    }

    fn record(&self) -> Option<&(Remembered, Vec<ChargeRecord>)> {
        self.read.as_ref().and_then(Option::as_ref)
    }

    fn see(&mut self, item: Option<&Item>) -> Result<(), Error> {
        let record = |item: &Item| Ok::<_, Error>((id::remembered(item)?, id::others(item)?));
        self.read = Some(item.map(record).transpose()?);
        Ok(())
    }

    fn write(&self, change: IdChange, others: &[ChargeRecord]) -> Option<IdWrite> {
        let (IdChange::Remember(given), Some(key)) = (change, self.key.clone()) else {
            return None;
        };
        let known = self.record();
        let write = IdWrite::remember(key, &given, known.map(|known| &known.0), given.charge.at);
        Some(write.with_others(others, known.map(|known| known.1.as_slice())))
    }
}

/// A transaction that was sent, and the outcome if it was applied.
struct Sent {
    outcome: Outcome,
    charged: Vec<Option<SentCharge>>,
}

/// The write of one charge.
struct SentCharge {
    token: String,
    at: Timestamp,
    /// The new item of a swap; `None` for an expression, whose stamp is in the token.
    item: Option<Arc<Item>>,
    /// Tokens of earlier writes that it removes.
    finished: Vec<String>,
}

impl Sent {
    /// Returns the charges that were made, with their parts.
    fn of<'s, 'p>(
        &'s self,
        parts: &'s [Part<'p>],
    ) -> impl Iterator<Item = (&'s Part<'p>, &'s SentCharge)> {
        let charged = parts.iter().zip(&self.charged);
        charged.filter_map(|(part, sent)| Some((part, sent.as_ref()?)))
    }

    fn has_guesses(&self) -> bool {
        self.charged.iter().flatten().any(|sent| sent.item.is_none())
    }

    /// Whether the items show that it was applied.
    fn is_applied_in(&self, parts: &[Part<'_>]) -> bool {
        self.of(parts).any(|(part, sent)| {
            part.seen.as_ref().is_some_and(|item| item.attributes.contains_key(&sent.token))
        })
    }

    /// Returns the outcome, with the stamps that expressions assigned in the items of `parts`.
    fn into_outcome(self, parts: &[Part<'_>], now: Timestamp) -> Result<Outcome, Error> {
        if !self.has_guesses() {
            return Ok(self.outcome);
        }
        let Outcome::Decided(Decision::Admitted(permit)) = &self.outcome else {
            return Ok(self.outcome);
        };
        let permits = permit.parts().zip(parts).zip(&self.charged).map(|((permit, part), sent)| {
            let permit = permit.into_owned();
            let Some(SentCharge { token, at, item: None, .. }) = sent else { return Ok(permit) };
            let item = part.seen.as_ref().ok_or_else(nothing_returned)?;
            let stamp = item.small(token).ok_or_else(nothing_returned)?;
            let entry = item.entry_with(part.ask.policy(), None, &[])?;
            let charge = ChargeRecord { at: *at, stamp };
            let grant = Grant::new(charge, part.ask.policy(), part.ask.amounts());
            let mut permit = permit.with_grant(grant);
            permit.limits = standings(&entry, now);
            Ok(permit)
        });
        let permits = permits.collect::<Result<Vec<_>, Error>>()?;
        Ok(Outcome::Decided(Decision::Admitted(Permit::joined(permits))))
    }
}
