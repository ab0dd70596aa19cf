//! All entries of a store, one after the other: what a repair, an export and an import need beside a gate.

use std::fmt::Debug;
use std::ops::ControlFlow;

use tollgate_core::{Entry, Policy, Span, Timestamp};

use crate::error::Error;
use crate::gate::BoxFuture;

/// The length of the key that authenticates permits.
pub const PERMIT_KEY_BYTES: usize = 32;

/// An entry as [`EntryStore::visit`] finds it.
#[derive(Clone, Debug)]
pub struct Visited {
    /// The name of its policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
    /// The entry, in the numbers it was written with, or why it does not decode.
    pub entry: Result<Entry, Error>,
    /// The store's time when it was read.
    pub now: Timestamp,
}

/// A page of [`EntryStore::page`].
#[derive(Debug, Default)]
pub struct EntryPage {
    /// The entries, in no particular order.
    pub entries: Vec<Visited>,
    /// The cursor of the next page; `None` after the last.
    pub next: Option<Vec<u8>>,
}

/// Receives each entry, and says whether to go on.
pub type Visitor<'a> = dyn FnMut(Visited) -> Result<ControlFlow<()>, Error> + Send + 'a;

/// Makes of the entry that is stored, if there is one, and the store's time the entry to write in its place; `None` leaves it
/// as it is. Called again if another write came first, so it must be pure.
pub type Rewrite<'a> = dyn Fn(Option<&Entry>, Timestamp) -> Option<Entry> + Send + Sync + 'a;

/// A store whose entries can be listed and rewritten.
pub trait EntryStore: Debug + Send + Sync + 'static {
    /// The earliest time it can be by what the store last saw, where the clock that decides is far behind that. One of the
    /// two is wrong; if it is the clock, entries that seem to be from the future are healthy.
    fn disputed_time(&self) -> Option<Timestamp> {
        None
    }

    /// The store's time.
    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>>;

    /// Reports a policy whose entries the store cannot keep.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) with what would be right.
    fn check(&self, policy: &Policy) -> Result<(), Error> {
        let _ = policy;
        Ok(())
    }

    /// Returns the entries after `cursor`, which is empty for the first page; with `ahead_min` only those that are more than
    /// that ahead of the store's time. An entry that is written meanwhile may be shown before or after the write, or twice.
    fn page<'a>(
        &'a self,
        cursor: &'a [u8],
        ahead_min: Option<Span>,
    ) -> BoxFuture<'a, Result<EntryPage, Error>>;

    /// Shows every entry to `visitor`, page by page.
    fn visit<'a>(
        &'a self,
        ahead_min: Option<Span>,
        visitor: &'a mut Visitor<'a>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let mut cursor = Vec::new();
            loop {
                let page = self.page(&cursor, ahead_min).await?;
                for visited in page.entries {
                    if visitor(visited)? == ControlFlow::Break(()) {
                        return Ok(());
                    }
                }
                let Some(next) = page.next else { return Ok(()) };
                cursor = next;
            }
        })
    }

    /// Replaces the entry of `policy` and `subject` by what `rewrite` makes of it, by compare-and-swap. Returns whether
    /// anything was written; it is durable then.
    fn rewrite<'a>(
        &'a self,
        policy: &'a str,
        subject: &'a str,
        rewrite: &'a Rewrite<'a>,
    ) -> BoxFuture<'a, Result<bool, Error>>;

    /// The key that authenticates the permits of this store; `None` if it has none yet.
    fn permit_key(&self) -> BoxFuture<'_, Result<Option<[u8; PERMIT_KEY_BYTES]>, Error>>;

    /// Makes `key` the key of this store if it has none, or only one that no entry depends on yet. Returns whether `key` is
    /// the store's key afterwards.
    fn adopt_permit_key(&self, key: [u8; PERMIT_KEY_BYTES]) -> BoxFuture<'_, Result<bool, Error>>;
}
