//! Any change of an entry as one write, under the condition that the item is still the one that was seen.
//!
//! Everything that is not an absolute number goes this way: exact logs, slots, settling, renewing, closing, numbers that
//! changed. Every write adds one to the version, so a swap that comes too late is refused and returns the new item.

use tollgate::core::{Entry, Span, Timestamp, bounds::PERMIT_TTL, standings};

use crate::expression::{Expression, to_number};
use crate::fast::{PRUNE_SLACK, is_dead, ttl_of};
use crate::format::Format;
use crate::item::{Attributes, Item, KEY, TTL, VERSION};
use crate::layout::Layout;
use crate::old_ids::IdChanges;
use crate::token;
use crate::write::attributes_of;

/// The most attributes that one expression changes; beyond it the whole item is written at once.
const CHANGES_MAX: usize = 150;

/// A swap, in both of the ways in which it can be written.
#[derive(Debug)]
pub(crate) struct Swap {
    /// What differs, if that is little enough for one expression.
    pub(crate) update: Option<Expression>,
    /// The whole item, but for its key.
    pub(crate) item: Attributes,
    /// The condition under which the whole item is written.
    pub(crate) condition: Expression,
}

/// What a swap writes beside the entry.
#[derive(Debug, Default)]
pub(crate) struct Marks<'a> {
    /// The marks of writes that must not be there yet; the last is that of this one.
    pub(crate) tokens: &'a [String],
    /// The marks that can go.
    pub(crate) finished: &'a [String],
    /// What changes about ids, where the item has them.
    pub(crate) ids: IdChanges,
}

/// The write that turns `seen` into `entry` in `format`.
pub(crate) fn swap(entry: &Entry, seen: Option<&Item>, format: Format, marks: &Marks<'_>) -> Swap {
    let Marks { tokens, finished, ids } = marks;
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

/// Keeps attributes of `seen` that the entry does not speak of: writes that may be sent again, and counters of windows that
/// are over for us but perhaps not for an instance whose clock is behind.
fn keep_what_others_need(
    wanted: &mut Attributes,
    seen: &Item,
    entry: &Entry,
    format: Format,
    finished: &[String],
) {
    let layout = Layout::of(entry.policy());
    let same_layout = seen.has_layout_of(entry.policy(), format);
    let at = entry.at();
    for (name, value) in &seen.attributes {
        let kept = if token::is_token(name) {
            !token::is_dead(name, at) && !finished.contains(name)
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
