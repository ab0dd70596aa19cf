//! Idempotency tokens of writes.
//!
//! `UpdateItem` has no request token, so each write sets an attribute with a unique name, under the condition that it is
//! missing. Its presence in the item proves that the write was applied.

use tollgate::{Span, Timestamp};

use crate::item::Item;

/// How long a token stays in the item, longer than any retry.
pub(crate) const TOKEN_TTL: Span = Span::from_secs(60);

/// The writes sent for one operation, oldest first. Each token contains the time of its decision.
#[derive(Debug)]
pub(crate) struct Tokens {
    secret: String,
    sent: Vec<(String, Timestamp)>,
}

impl Tokens {
    pub(crate) fn new(random: impl Fn() -> u32) -> Self {
        Self { secret: format!("{:08x}{:08x}", random(), random()), sent: Vec::new() }
    }

    /// Makes the next token unique even if it has the time of an earlier write without a reply.
    pub(crate) fn renew(&mut self, random: impl Fn() -> u32) {
        self.secret = format!("{:08x}{:08x}", random(), random());
    }

    /// Returns the token of a write that decides at `at`.
    pub(crate) fn next(&mut self, at: Timestamp) -> String {
        let name = format!("o{:x}.{}", at.as_micros(), self.secret);
        if self.sent.last().is_none_or(|(last, _)| *last != name) {
            self.sent.push((name.clone(), at));
        }
        name
    }

    /// Returns every token so far.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.sent.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the write that was applied to `item`: its index, its time and its stamp.
    pub(crate) fn applied_in(&self, item: &Item) -> Option<(usize, Timestamp, u64)> {
        self.sent
            .iter()
            .enumerate()
            .find_map(|(place, (name, at))| Some((place, *at, item.small(name)?)))
    }
}

/// Whether `name` is a token.
pub(crate) fn is_token(name: &str) -> bool {
    name.starts_with('o')
}

/// Whether `name` is a token whose write is not retried any more at `now`.
pub(crate) fn is_dead(name: &str, now: Timestamp) -> bool {
    let time = name.strip_prefix('o').and_then(|rest| rest.split_once('.'));
    let time = time.and_then(|(time, _)| u64::from_str_radix(time, 16).ok());
    time.is_some_and(|time| Timestamp::from_micros(time) + TOKEN_TTL <= now)
}
