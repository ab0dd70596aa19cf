//! Changes of an item: by conditional update, or by compare-and-swap.

use std::slice;
use std::sync::Arc;

use tokio::sync::oneshot::error::TryRecvError;
use tollgate::core::{Change, ChargeRecord, Entry, Grant, IdChange, Known, Remembered, standings};
use tollgate::entries::Rewrite;
use tollgate::gate::{Operation, Outcome};
use tollgate::internal::edge::random;
use tollgate::observe::AttemptResult;
use tollgate::{Ask, Decision, Error, ErrorKind, Permit, Policy, Span, Timestamp, repair};

use crate::attempts::Attempts;
use crate::client::{Written, pause};
use crate::conditional_update;
use crate::format::Format;
use crate::format_1_ids::{self, IdChanges};
use crate::id::{self, IdWrite};
use crate::item::{Item, STAMP};
use crate::layout::Layout;
use crate::run::{Ran, Seen, run, run_all};
use crate::store::DynamoDb;
use crate::swap::{SwapExtras, swap};
use crate::swap_queue::{Batch, Combinable, Outcomes, QueueHandle, Sent};
use crate::write_token::{TOKEN_TTL, Tokens};

/// The most attempts of an acquire whose hint was wrong. Each time one more limit can turn busy or idle.
pub const GUESSES_MAX: u32 = 24;

/// The most attempts of a swap under contention.
pub const SWAPS_MAX: u32 = 100;

/// The longest duration of one operation; tokens live twice as long.
pub const TRYING_MAX: Span = Span::from_secs(30);

const _: () = assert!(2 * TRYING_MAX.as_micros() <= TOKEN_TTL.as_micros());

impl DynamoDb {
    /// Charges `ask` by conditional update, and retries after a wrong hint.
    pub(crate) async fn acquire_by_update(
        &self,
        attempts: &mut Attempts<'_>,
        ask: &Ask<'_>,
        layout: &Layout,
        key: &str,
    ) -> Result<Outcome, Error> {
        let operation = Operation::Acquire(ask);
        let mut seen = self.hints.seen(key);
        if seen.as_ref().is_some_and(|item| !item.has_shape_of(ask.policy())) {
            return self.swap(attempts, &operation, key, None).await;
        }
        let give_up_at = self.clock.now() + TRYING_MAX;
        let mut is_fresh = false;
        let mut tokens = Tokens::new(random);
        for _ in 0..GUESSES_MAX {
            let now = self.clock.now();
            if give_up_at < now {
                break;
            }
            seen = self.repaired(attempts, ask.policy(), key, seen).await?;
            let at = seen.as_ref().map_or(now, |item| item.at().max(now));
            let mut plan = conditional_update::plan(ask, layout, seen.as_deref(), at);
            if plan.needs_swap || (is_fresh && !plan.fits) {
                // The expression cannot decide this, so it is a swap.
                return self.swap(attempts, &operation, key, is_fresh.then_some(seen)).await;
            }
            let token = tokens.next(at);
            plan.stamp_into(&token, at);
            for name in tokens.names() {
                plan.expression.only_if_missing(name);
            }
            let finished = self.hints.take_finished(key);
            for name in &finished {
                plan.expression.remove_once(name);
            }
            let delivered = self.table.update(attempts, key, &plan.expression).await?;
            let item = match delivered.written {
                Written::Applied(item) => {
                    attempts.ended(delivered.took, AttemptResult::Answered);
                    let item = item.ok_or_else(nothing_returned)?;
                    self.hints.see(key, &item);
                    if delivered.is_clean {
                        self.hints.finish(key, token);
                    }
                    let stamp = item.small(STAMP).unwrap_or(1).saturating_sub(1);
                    return admitted(ask, &item, ChargeRecord { at, stamp }, now);
                }
                Written::Refused(item) | Written::IdRefused(item) => item,
            };
            for name in finished {
                self.hints.finish(key, name);
            }
            self.saw(key, item.as_ref());
            if let Some(item) = &item
                && let Some((_, at, stamp)) = tokens.applied_in(item)
            {
                attempts.ended(delivered.took, AttemptResult::Answered);
                return admitted(ask, item, ChargeRecord { at, stamp }, now);
            }
            let item = self.repaired(attempts, ask.policy(), key, item).await?;
            let seen_now = Seen::new(item.as_deref(), self.format);
            let answer = run(&operation, seen_now, Known::New, now);
            if !matches!(&answer, Ok((applied, _)) if applied.change == Change::Entry) {
                attempts.ended(delivered.took, AttemptResult::Answered);
                return answer.map(|(applied, _)| applied.outcome);
            }
            attempts.ended(delivered.took, AttemptResult::Raced);
            (seen, is_fresh) = (item, true);
        }
        Err(contended(key))
    }

    /// Runs `operation` on the entry and swaps the item, in a batch with other operations on it unless they have ids. `fresh`
    /// is the item if it was just read.
    pub(crate) async fn swap(
        &self,
        attempts: &mut Attempts<'_>,
        operation: &Operation<'_>,
        key: &str,
        fresh: Option<Option<Arc<Item>>>,
    ) -> Result<Outcome, Error> {
        let queue = self.queues.join(key);
        if let Some(operation) = Combinable::from_operation(operation) {
            return self.swap_combined(attempts, operation, &queue, key, fresh).await;
        }
        let _lock = queue.lock().await;
        let mut id = IdState::new(operation);
        let mut sent = Sent::default();
        let operations = slice::from_ref(operation);
        let mut answers =
            self.swap_all(attempts, operations, &mut id, &mut sent, key, fresh).await?;
        answers.pop().unwrap_or_else(|| Err(nothing_returned()))
    }

    /// Queues `operation`. When it gets the lock, it is either done already or it leads the next batch.
    async fn swap_combined(
        &self,
        attempts: &mut Attempts<'_>,
        operation: Combinable,
        queue: &QueueHandle<'_>,
        key: &str,
        mut fresh: Option<Option<Arc<Item>>>,
    ) -> Result<Outcome, Error> {
        let mut answer = queue.join(operation);
        let mut batch = queue.lock().await;
        loop {
            match answer.try_recv() {
                Ok(answer) => return answer,
                Err(TryRecvError::Closed) => return Err(nothing_returned()),
                Err(TryRecvError::Empty) => {}
            }
            queue.fill(&mut batch);
            let Batch { waiting, sent } = &mut *batch;
            let operations: Vec<Operation<'_>> =
                waiting.iter().map(|waiting| waiting.operation.as_operation()).collect();
            // An item that was read before other operations were queued cannot decide them.
            let fresh = fresh.take().filter(|_| operations.len() == 1);
            let mut id = IdState::none();
            let answers = self.swap_all(attempts, &operations, &mut id, sent, key, fresh).await;
            batch.answer(answers);
        }
    }

    /// Runs `operations` in sequence on the entry and swaps the item, with retries under contention. Returns their outcomes.
    /// `id` is that of the first. A cancelled swap continues with what it `sent`.
    async fn swap_all(
        &self,
        attempts: &mut Attempts<'_>,
        operations: &[Operation<'_>],
        id: &mut IdState,
        sent: &mut Sent,
        key: &str,
        fresh: Option<Option<Arc<Item>>>,
    ) -> Result<Outcomes, Error> {
        let Some(first) = operations.first() else { return Ok(Outcomes::new()) };
        let mut is_fresh = fresh.is_some();
        let mut seen = fresh.unwrap_or_else(|| self.hints.seen(key));
        let give_up_at = self.clock.now() + TRYING_MAX;
        for attempt in 0..SWAPS_MAX {
            let now = self.clock.now();
            if give_up_at < now {
                break;
            }
            seen = self.repaired(attempts, first.policy(), key, seen).await?;
            let observations = self.hints.observations(key);
            let found =
                Seen { observations: &observations, ..Seen::new(seen.as_deref(), self.format) };
            let known = match found.format {
                Format::Old => format_1_ids::known(first, found.item, now)?,
                Format::New => id.known(),
            };
            let ran = run_all(operations, found, known, now);
            // An outcome without a write needs a fresh item.
            let is_known = is_fresh && (found.format == Format::Old || id.is_read());
            let (ran, entry) = match ran {
                Ok(Ran { entry: Some(entry), answers, id }) => ((answers, id), entry),
                Ok(Ran { answers, .. }) if is_known => return Ok(answers),
                Err(error) if is_known => return Err(error),
                _ => {
                    if let (Format::New, Some(key)) = (found.format, id.unread_key()) {
                        id.see(self.table.read(attempts, key).await?.as_deref())?;
                    }
                    if !is_fresh {
                        seen = self.read(attempts, key).await?;
                        is_fresh = true;
                    }
                    continue;
                }
            };
            let (answers, id_change) = ran;
            let ids = IdChanges::from_outcomes(operations, &answers, id_change);
            let token = sent.push(entry.at(), answers);
            let names: Vec<String> = sent.tokens.names().map(str::to_owned).collect();
            let finished = self.hints.take_finished(key);
            let marks = SwapExtras { tokens: &names, finished: &finished, ids };
            let swap = swap(&entry, found.item, found.format, &marks);
            let id_write = match found.format {
                Format::Old => None,
                Format::New => id.write(id_change, entry.at()),
            };
            let delivered = match (id_write, &swap.update) {
                (Some(id), _) => {
                    self.table.transact(attempts, key, swap.item, &swap.condition, &id).await?
                }
                (None, Some(update)) => self.table.update(attempts, key, update).await?,
                (None, None) => self.table.put(attempts, key, swap.item, &swap.condition).await?,
            };
            if !matches!(delivered.written, Written::Applied(_)) {
                for name in finished {
                    self.hints.finish(key, name);
                }
            }
            match delivered.written {
                Written::Applied(item) => {
                    attempts.ended(delivered.took, AttemptResult::Answered);
                    self.saw(key, item.as_ref());
                    if delivered.is_clean {
                        self.hints.finish(key, token);
                    }
                    return sent.answers.pop().ok_or_else(nothing_returned);
                }
                Written::Refused(item) => {
                    self.saw(key, item.as_ref());
                    if let Some(item) = &item
                        && let Some((place, ..)) = sent.tokens.applied_in(item)
                    {
                        attempts.ended(delivered.took, AttemptResult::Answered);
                        return Ok(sent.answers.swap_remove(place));
                    }
                    attempts.ended(delivered.took, AttemptResult::Raced);
                    (seen, is_fresh) = (item, true);
                }
                Written::IdRefused(item) => {
                    attempts.ended(delivered.took, AttemptResult::Raced);
                    let item = match (item, &id.key) {
                        (None, Some(key)) => self.table.read(attempts, key).await?,
                        (item, _) => item,
                    };
                    id.see(item.as_deref())?;
                }
            }
            // Retries at once first, then with backoff.
            if 1 < attempt {
                pause(attempt.min(3)).await;
            }
        }
        Err(contended(key))
    }
}

impl DynamoDb {
    /// Replaces an item from the future, which a wrong clock wrote: deciding at its time would lock the subject until then.
    /// Returns the current item.
    pub(crate) async fn repaired(
        &self,
        attempts: &mut Attempts<'_>,
        policy: &Policy,
        key: &str,
        item: Option<Arc<Item>>,
    ) -> Result<Option<Arc<Item>>, Error> {
        let Some(ahead_max) = self.clock.apart_max() else { return Ok(item) };
        let Some(ahead) = item.as_ref().map(|item| item.at().since(self.clock.now())) else {
            return Ok(item);
        };
        if ahead <= ahead_max {
            return Ok(item);
        }
        let repair = |entry: Option<&Entry>, now| repair::repaired(entry, now, ahead_max);
        let (item, is_repaired) =
            self.rewritten(attempts, policy.name(), key, item, &repair).await?;
        if is_repaired {
            let subject = key.split_once('/').map_or(key, |(_, subject)| subject);
            attempts.repaired(subject, ahead);
        }
        Ok(item)
    }

    /// Replaces `item` by the result of `rewrite`. Returns the current item, and whether it was written.
    pub(crate) async fn rewritten(
        &self,
        attempts: &mut Attempts<'_>,
        policy: &str,
        key: &str,
        item: Option<Arc<Item>>,
        rewrite: &Rewrite<'_>,
    ) -> Result<(Option<Arc<Item>>, bool), Error> {
        let (mut item, mut is_written) = (item, false);
        for _ in 0..SWAPS_MAX {
            let entry = item.as_deref().map(|item| item.any_entry(policy)).transpose()?;
            let Some(entry) = rewrite(entry.as_ref(), self.clock.now()) else {
                return Ok((item, is_written));
            };
            let format = self.format.after(item.as_deref());
            let swap = swap(&entry, item.as_deref(), format, &SwapExtras::default());
            let delivered = match &swap.update {
                Some(update) => self.table.update(attempts, key, update).await?,
                None => self.table.put(attempts, key, swap.item, &swap.condition).await?,
            };
            let (written, result) = match delivered.written {
                Written::Applied(written) => (written, AttemptResult::Answered),
                Written::Refused(found) | Written::IdRefused(found) => {
                    (found, AttemptResult::Raced)
                }
            };
            attempts.ended(delivered.took, result);
            self.saw(key, written.as_ref());
            item = written;
            if result == AttemptResult::Answered {
                return Ok((item, true));
            }
            // The second attempt of an applied write is refused.
            is_written |= !delivered.is_clean;
        }
        Err(contended(key))
    }
}

/// The id of an operation and its record.
#[derive(Debug)]
struct IdState {
    key: Option<String>,
    /// Whether the record affects the outcome. A release only removes it.
    decides: bool,
    /// The stamp of the released permit.
    released: Option<u64>,
    /// What its item says; nothing if it was not read.
    read: Option<Option<Remembered>>,
}

impl IdState {
    fn new(operation: &Operation<'_>) -> Self {
        let released = match operation {
            Operation::Release(permit) => Some(permit.grant().stamp),
            _ => None,
        };
        Self { key: id::key_of(operation), decides: released.is_none(), released, read: None }
    }

    /// The state of operations without an id.
    const fn none() -> Self {
        Self { key: None, decides: false, released: None, read: None }
    }

    fn known(&self) -> Known {
        match (self.read, self.released) {
            // Not read: the write forgets the id only if it still is that of the permit.
            (None, Some(stamp)) => Known::Before(Remembered {
                charge: ChargeRecord { at: Timestamp::EPOCH, stamp },
                digest: 0,
                expires_at: Timestamp::MAX,
            }),
            (read, _) => read.flatten().map_or(Known::New, Known::Before),
        }
    }

    /// Whether an answer may rely on [`known`](Self::known).
    fn is_read(&self) -> bool {
        self.unread_key().is_none()
    }

    fn unread_key(&self) -> Option<&str> {
        self.key.as_deref().filter(|_| self.decides && self.read.is_none())
    }

    fn see(&mut self, item: Option<&Item>) -> Result<(), Error> {
        self.read = Some(item.map(id::remembered).transpose()?);
        Ok(())
    }

    /// What to write for `change`, at `now`.
    fn write(&self, change: IdChange, now: Timestamp) -> Option<IdWrite> {
        let key = self.key.clone()?;
        match (change, self.released) {
            (IdChange::Remember(given), _) => {
                let known = self.read.flatten();
                Some(IdWrite::remember(key, &given, known.as_ref(), now))
            }
            // An id that was given anew since belongs to another permit.
            (IdChange::Forget, Some(stamp))
                if self
                    .read
                    .is_none_or(|read| read.is_some_and(|given| given.charge.stamp == stamp)) =>
            {
                Some(IdWrite::forget(key, stamp))
            }
            _ => None,
        }
    }
}

fn admitted(
    ask: &Ask<'_>,
    item: &Item,
    charge: ChargeRecord,
    now: Timestamp,
) -> Result<Outcome, Error> {
    let entry = item.entry_with(ask.policy(), None, &[])?;
    let grant = Grant::new(charge, ask.policy(), ask.amounts());
    let permit = Permit::for_ask(ask, grant, standings(&entry, now));
    Ok(Outcome::Decided(Decision::Admitted(permit)))
}

pub(crate) fn contended(key: &str) -> Error {
    Error::new(
        ErrorKind::Contended,
        format!("dynamodb: {key:?} is changed by too many at once; ask again later"),
    )
}

pub(crate) fn nothing_returned() -> Error {
    Error::new(ErrorKind::Corrupt, "dynamodb: a write returned no item")
}
