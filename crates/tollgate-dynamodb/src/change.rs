//! The two ways to change an item: an expression over absolute numbers, and a swap of what was seen.

use std::sync::Arc;

use tollgate::core::{Change, Charge, Entry, Grant, apply, standings};
use tollgate::edge::random;
use tollgate::{
    Ask, Decision, Error, ErrorKind, Operation, Outcome, Permit, Policy, Span, Timestamp, Tried,
};

use crate::fast;
use crate::item::{Item, STAMP};
use crate::layout::Layout;
use crate::send::{Written, pause};
use crate::store::DynamoDb;
use crate::swap::{Swap, swap};
use crate::token::{TOKEN_TTL, Tokens};
use crate::tries::Tries;

/// How often an acquire is written anew because its guess was wrong. Each time one more limit can turn busy or idle.
pub const GUESSES_MAX: u32 = 24;

/// How often a swap is tried anew because somebody else was faster.
pub const SWAPS_MAX: u32 = 100;

/// How long one operation is tried at most: a write that may be sent again is known for twice as long.
pub const TRYING_MAX: Span = Span::from_secs(30);

const _: () = assert!(2 * TRYING_MAX.as_micros() <= TOKEN_TTL.as_micros());

impl DynamoDb {
    /// Charges `ask` by expression, as often as the guess was wrong.
    pub(crate) async fn acquire_fast(
        &self,
        tries: &mut Tries<'_>,
        ask: &Ask<'_>,
        layout: &Layout,
        key: &str,
    ) -> Result<Outcome, Error> {
        let operation = Operation::Acquire(ask);
        let mut seen = self.hints.seen(key);
        let needs_swap = |item: &Arc<Item>| {
            !item.has_shape_of(ask.policy()) || (ask.id_text().is_some() && !item.has_room_for_id())
        };
        if seen.as_ref().is_some_and(needs_swap) {
            return self.swap(tries, &operation, key, None).await;
        }
        let give_up_at = self.clock.now() + TRYING_MAX;
        let mut is_fresh = false;
        let mut tokens = Tokens::new(random);
        for _ in 0..GUESSES_MAX {
            let now = self.clock.now();
            if give_up_at < now {
                break;
            }
            seen = self.mended(tries, ask.policy(), key, seen).await?;
            let at = seen.as_ref().map_or(now, |item| item.at().max(now));
            let mut plan = fast::plan(ask, layout, seen.as_deref(), at);
            if is_fresh && !plan.fits {
                // The core admits what the expression cannot say, so it takes a swap.
                return self.swap(tries, &operation, key, seen).await;
            }
            // An id is no mark of the write: a release forgets it, perhaps before a late resend arrives.
            let token = tokens.next(at);
            plan.stamp_into(&token, at);
            for name in tokens.names() {
                plan.expression.only_if_missing(name);
            }
            let finished = self.hints.take_finished(key);
            for name in &finished {
                plan.expression.remove_once(name);
            }
            let delivered = self.wire.update(tries, key, &plan.expression).await?;
            let item = match delivered.written {
                Written::Applied(item) => {
                    tries.ended(delivered.took, Tried::Answered);
                    let item = item.ok_or_else(nothing_returned)?;
                    self.hints.see(key, &item);
                    if delivered.is_clean {
                        self.hints.finish(key, token);
                    }
                    let stamp = item.small(STAMP).unwrap_or(1).saturating_sub(1);
                    return admitted(ask, &item, Charge { at, stamp }, now);
                }
                Written::Refused(item) => item,
            };
            for name in finished {
                self.hints.finish(key, name);
            }
            self.saw(key, item.as_ref());
            if let Some(item) = &item
                && let Some((_, at, stamp)) = tokens.applied_in(item)
            {
                tries.ended(delivered.took, Tried::Answered);
                return admitted(ask, item, Charge { at, stamp }, now);
            }
            let item = self.mended(tries, ask.policy(), key, item).await?;
            let answer = entry_of(item.as_deref(), ask.policy(), now)
                .and_then(|mut entry| Ok(apply(&operation, &mut entry, now)?));
            if !matches!(answer, Ok((_, Change::Entry))) {
                tries.ended(delivered.took, Tried::Answered);
                return answer.map(|(outcome, _)| outcome);
            }
            tries.ended(delivered.took, Tried::Raced);
            (seen, is_fresh) = (item, true);
        }
        Err(contended(key))
    }

    /// Runs `operation` on the entry and swaps the item, as often as somebody else is faster. `fresh` is the item if it
    /// was seen just now.
    pub(crate) async fn swap(
        &self,
        tries: &mut Tries<'_>,
        operation: &Operation<'_>,
        key: &str,
        fresh: Option<Arc<Item>>,
    ) -> Result<Outcome, Error> {
        let _turn = self.hints.turn(key).await;
        let mut is_fresh = fresh.is_some();
        let mut seen = fresh.or_else(|| self.hints.seen(key));
        let mut tokens = Tokens::new(random);
        let mut outcomes: Vec<Outcome> = Vec::new();
        let give_up_at = self.clock.now() + TRYING_MAX;
        for attempt in 0..SWAPS_MAX {
            let now = self.clock.now();
            if give_up_at < now {
                break;
            }
            seen = self.mended(tries, operation.policy(), key, seen).await?;
            let answer =
                entry_of(seen.as_deref(), operation.policy(), now).and_then(|mut entry| {
                    let (outcome, change) = apply(operation, &mut entry, now)?;
                    Ok((outcome, change, entry))
                });
            // Only what was just seen may be answered from.
            let (outcome, entry) = match answer {
                Ok((outcome, Change::Entry, entry)) => (outcome, entry),
                Ok((outcome, Change::Nothing, _)) if is_fresh => return Ok(outcome),
                Err(error) if is_fresh => return Err(error),
                _ => {
                    seen = self.read(tries, key).await?;
                    is_fresh = true;
                    continue;
                }
            };
            let token = tokens.next(entry.at());
            outcomes.resize(tokens.names().count() - 1, outcome.clone());
            outcomes.push(outcome);
            let names: Vec<String> = tokens.names().map(str::to_owned).collect();
            let finished = self.hints.take_finished(key);
            let delivered = match swap(&entry, seen.as_deref(), &names, &finished) {
                Swap::Update(expression) => self.wire.update(tries, key, &expression).await?,
                Swap::Put(item, expression) => self.wire.put(tries, key, item, &expression).await?,
            };
            match delivered.written {
                Written::Applied(item) => {
                    tries.ended(delivered.took, Tried::Answered);
                    self.saw(key, item.as_ref());
                    if delivered.is_clean {
                        self.hints.finish(key, token);
                    }
                    return outcomes.pop().ok_or_else(nothing_returned);
                }
                Written::Refused(item) => {
                    for name in finished {
                        self.hints.finish(key, name);
                    }
                    self.saw(key, item.as_ref());
                    if let Some(item) = &item
                        && let Some((place, ..)) = tokens.applied_in(item)
                    {
                        tries.ended(delivered.took, Tried::Answered);
                        return Ok(outcomes.swap_remove(place));
                    }
                    tries.ended(delivered.took, Tried::Raced);
                    (seen, is_fresh) = (item, true);
                }
            }
            // The first loser goes again at once; those who keep losing spread out.
            if 1 < attempt {
                pause(attempt.min(3)).await;
            }
        }
        Err(contended(key))
    }
}

impl DynamoDb {
    /// The item as it is after one from the future was replaced: a wrong clock wrote it, and to decide at its time would
    /// lock the subject until then.
    pub(crate) async fn mended(
        &self,
        tries: &mut Tries<'_>,
        policy: &Policy,
        key: &str,
        item: Option<Arc<Item>>,
    ) -> Result<Option<Arc<Item>>, Error> {
        let Some(ahead_max) = self.clock.apart_max() else { return Ok(item) };
        Ok(self.replaced(tries, policy, key, item, ahead_max).await?.0)
    }

    /// Replaces `item` if it is more than `ahead_max` in the future: every limit counts as used up at the present.
    /// Returns what is there now, and whether it was replaced.
    pub(crate) async fn replaced(
        &self,
        tries: &mut Tries<'_>,
        policy: &Policy,
        key: &str,
        item: Option<Arc<Item>>,
        ahead_max: Span,
    ) -> Result<(Option<Arc<Item>>, bool), Error> {
        let (mut item, mut is_replaced) = (item, false);
        for _ in 0..SWAPS_MAX {
            let now = self.clock.now();
            let Some(found) = &item else { return Ok((item, is_replaced)) };
            let ahead = found.at().since(now);
            if ahead <= ahead_max {
                return Ok((item, is_replaced));
            }
            let entry = found.entry(policy, now)?.mended(now);
            let delivered = match swap(&entry, Some(found), &[], &[]) {
                Swap::Update(expression) => self.wire.update(tries, key, &expression).await?,
                Swap::Put(item, expression) => self.wire.put(tries, key, item, &expression).await?,
            };
            let (written, result) = match delivered.written {
                Written::Applied(written) => (written, Tried::Answered),
                Written::Refused(found) => (found, Tried::Raced),
            };
            tries.ended(delivered.took, result);
            // Of a write that was sent twice, the second is refused.
            if result == Tried::Answered || !delivered.is_clean {
                is_replaced = true;
                let subject = key.split_once('/').map_or(key, |(_, subject)| subject);
                tries.mended(subject, ahead);
            }
            self.saw(key, written.as_ref());
            item = written;
        }
        Err(contended(key))
    }
}

/// The entry that `item` says, or a fresh one.
pub(crate) fn entry_of(
    item: Option<&Item>,
    policy: &Policy,
    now: Timestamp,
) -> Result<Entry, Error> {
    match item {
        Some(item) => item.entry(policy, now),
        None => Ok(Entry::fresh(policy, now)),
    }
}

fn admitted(ask: &Ask<'_>, item: &Item, charge: Charge, now: Timestamp) -> Result<Outcome, Error> {
    let entry = item.entry(ask.policy(), now)?;
    let grant = Grant::of(charge, ask.policy(), ask.amounts());
    let permit = Permit::of(ask, grant, standings(&entry, now));
    Ok(Outcome::Decided(Decision::Admitted(permit)))
}

fn contended(key: &str) -> Error {
    Error::new(
        ErrorKind::Contended,
        format!("dynamodb: {key:?} is changed by too many at once; ask again later"),
    )
}

fn nothing_returned() -> Error {
    Error::new(ErrorKind::Corrupt, "dynamodb: a write returned no item")
}
