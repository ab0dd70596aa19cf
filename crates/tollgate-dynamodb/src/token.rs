//! Writes that may be sent again without being applied twice.
//!
//! The service has no request token for `UpdateItem`, so each write brings an attribute with a name of its own and the
//! condition that it is not there yet. Whoever finds it in the item knows that the write was applied, whatever the
//! reply said or whether there was one.

use tollgate::{Span, Timestamp};

use crate::item::Item;

/// How long the attribute of a write stays in the item. Every resend ends long before.
pub(crate) const TOKEN_TTL: Span = Span::from_secs(60);

/// The writes that were sent for one operation, oldest first. Each has the time it decided at in its name, so that the
/// one that was applied says when.
#[derive(Debug)]
pub(crate) struct Tokens {
    secret: String,
    sent: Vec<(String, Timestamp)>,
}

impl Tokens {
    pub(crate) fn new(random: impl Fn() -> u32) -> Self {
        Self { secret: format!("{:08x}{:08x}", random(), random()), sent: Vec::new() }
    }

    /// Gives the next write a name of its own even if it decides at the time of one before, whose reply was not awaited.
    pub(crate) fn renew(&mut self, random: impl Fn() -> u32) {
        self.secret = format!("{:08x}{:08x}", random(), random());
    }

    /// The name for a write that decides at `at`.
    pub(crate) fn next(&mut self, at: Timestamp) -> String {
        let name = format!("o{:x}.{}", at.as_micros(), self.secret);
        if self.sent.last().is_none_or(|(last, _)| *last != name) {
            self.sent.push((name.clone(), at));
        }
        name
    }

    /// Every name so far.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.sent.iter().map(|(name, _)| name.as_str())
    }

    /// The write that `item` shows to be applied: its place, its time and the stamp it wrote.
    pub(crate) fn applied_in(&self, item: &Item) -> Option<(usize, Timestamp, u64)> {
        self.sent
            .iter()
            .enumerate()
            .find_map(|(place, (name, at))| Some((place, *at, item.small(name)?)))
    }
}

/// Whether `name` is the attribute of a write.
pub(crate) fn is_token(name: &str) -> bool {
    name.starts_with('o')
}

/// Whether `name` is the attribute of a write that nobody sends again at `now`.
pub(crate) fn is_dead(name: &str, now: Timestamp) -> bool {
    let time = name.strip_prefix('o').and_then(|rest| rest.split_once('.'));
    let time = time.and_then(|(time, _)| u64::from_str_radix(time, 16).ok());
    time.is_some_and(|time| Timestamp::from_micros(time) + TOKEN_TTL <= now)
}
