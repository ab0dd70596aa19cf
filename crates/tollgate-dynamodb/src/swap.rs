//! Compare-and-swap of an item.
//!
//! Used for everything that is not an addition: exact logs, slots, settling, renewing, closing, changed numbers. Every write
//! increments the version, so a late swap is refused and returns the new item.

use tollgate::core::{Entry, Span, Timestamp, bounds::PERMIT_TTL, standings};

use crate::conditional_update::{PRUNE_SLACK, is_dead, ttl_of};
use crate::expression::{Expression, to_number};
use crate::format::Format;
use crate::format_1_ids::IdChanges;
use crate::item::{Attributes, Item, KEY, TTL, VERSION};
use crate::layout::Layout;
use crate::write::attributes_of;
use crate::write_token;

/// The most attributes changed by one expression; beyond it the whole item is written.
const CHANGES_MAX: usize = 150;

/// A swap, as an update and as a whole item.
#[derive(Debug)]
pub(crate) struct Swap {
    /// The differences, if one expression can hold them.
    pub(crate) update: Option<Expression>,
    /// The whole item, without its key.
    pub(crate) item: Attributes,
    /// The condition of the whole item.
    pub(crate) condition: Expression,
}

/// What a swap writes besides the entry.
#[derive(Debug, Default)]
pub(crate) struct SwapExtras<'a> {
    /// Tokens that must be missing; the last is that of this write.
    pub(crate) tokens: &'a [String],
    /// Tokens to remove.
    pub(crate) finished: &'a [String],
    /// The changes of ids, if the item has them.
    pub(crate) ids: IdChanges,
}

/// Returns the write from `seen` to `entry` in `format`.
pub(crate) fn swap(
    entry: &Entry,
    seen: Option<&Item>,
    format: Format,
    marks: &SwapExtras<'_>,
) -> Swap {
    let SwapExtras { tokens, finished, ids } = marks;
    let mut wanted = attributes_of(entry, format);
    let version = seen.map_or(entry.at().as_micros().max(1), Item::version);
    wanted.insert(VERSION.to_owned(), to_number(u128::from(version) + 1));
    wanted.insert(TTL.to_owned(), to_number(ttl(entry).into()));
    if let Some(token) = tokens.last() {
        wanted.insert(token.clone(), to_number(0));
    }

    let mut condition = Expression::default();
    match seen {
        Some(_) => condition.only_if_is(VERSION, version.into()),
        None => condition.only_if_missing(KEY),
    }
    for name in *tokens {
        condition.only_if_missing(name);
    }

    let mut update = condition.clone();
    if format == Format::Old {
        ids.apply(&mut wanted, seen, entry.at());
    }
    if let Some(seen) = seen {
        keep_what_others_need(&mut wanted, seen, entry, format, finished);
        for name in seen.attributes.keys().filter(|name| *name != KEY) {
            if !wanted.contains_key(name) {
                update.remove(name);
            }
        }
    }
    for (name, value) in &wanted {
        if seen.and_then(|item| item.attributes.get(name)) != Some(value) {
            update.set(name, value.clone());
        }
    }
    let update = (update.writes() <= CHANGES_MAX).then_some(update);
    Swap { update, item: wanted, condition }
}

/// Keeps attributes of `seen` that are not in the entry: tokens of writes that may be retried, and counters of windows that
/// may not be over for an instance whose clock is behind.
fn keep_what_others_need(
    wanted: &mut Attributes,
    seen: &Item,
    entry: &Entry,
    format: Format,
    finished: &[String],
) {
    let layout = Layout::for_policy(entry.policy());
    let same_layout = seen.has_layout_of(entry.policy(), format);
    let at = entry.at();
    for (name, value) in &seen.attributes {
        let kept = if write_token::is_token(name) {
            !write_token::is_dead(name, at) && !finished.contains(name)
        } else {
            same_layout && is_over(&layout, name, at) && !is_dead(&layout, name, at)
        };
        if kept && !wanted.contains_key(name) {
            wanted.insert(name.clone(), value.clone());
        }
    }
}

/// Whether `name` is a counter whose window is over at `at`.
fn is_over(layout: &Layout, name: &str, at: Timestamp) -> bool {
    is_dead(layout, name, at + PRUNE_SLACK)
}

/// When the item of `entry` may be deleted: not before it says what an absent one says.
fn ttl(entry: &Entry) -> u64 {
    let at = entry.at();
    let standings = standings(entry, at);
    let limits = standings.iter().flat_map(|limit| [limit.full_at, limit.reset_at]).flatten();
    let windows = entry.policy().windows_at(at).flatten().map(|[_, next]| next.end);
    let lives_until = limits.chain(windows).chain([at + PERMIT_TTL]).max().unwrap_or(at);
    ttl_of(at, lives_until + Span::from_secs(1))
}
