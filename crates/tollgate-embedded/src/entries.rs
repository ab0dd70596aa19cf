//! Lists and rewrites the entries of a data folder.

use std::path::Path;
use std::sync::PoisonError;

use tollgate::entries::{EntryPage, EntryStore, PERMIT_KEY_BYTES, Rewrite, Visited};
use tollgate::gate::BoxFuture;
use tollgate::{Error, Span, Timestamp};

use crate::database;
use crate::embedded::Embedded;
use crate::options::Options;
use crate::row::{self, Key};

/// Rows per page.
const ROWS_MAX: usize = 256;

impl Embedded {
    /// Opens the data folder at `path` even if its entries are ahead of the clock, which is trusted.
    ///
    /// # Errors
    /// As [`open`](Self::open), except for entries that are ahead.
    pub fn open_for_repair(path: &Path, options: Options) -> Result<Self, Error> {
        Self::open_with_time(path, options, crate::ENTRIES_CACHED_MAX, true)
    }
}

impl EntryStore for Embedded {
    fn disputed_time(&self) -> Option<Timestamp> {
        self.disputed_time
    }

    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(std::future::ready(Ok(self.shared.time.now())))
    }

    /// Shows the entries that were durable before the call.
    fn page<'a>(
        &'a self,
        cursor: &'a [u8],
        ahead_min: Option<Span>,
    ) -> BoxFuture<'a, Result<EntryPage, Error>> {
        Box::pin(async move {
            let now = self.shared.time.now();
            let after = ahead_min.map(|ahead| now + ahead);
            let read = |connection: &_| database::rows(connection, cursor, after, ROWS_MAX);
            let rows = self.shared.read(0, read)?;
            let entries = rows.iter().filter_map(|(key, value)| {
                let key = Key::from_bytes(key)?;
                let entry =
                    row::decode(&key, value, None).map_err(|error| self.shared.damaged_by(error));
                let (policy, subject) = (key.policy().to_owned(), key.subject().to_owned());
                Some(Visited { policy, subject, entry, now })
            });
            Ok(EntryPage { entries: entries.collect(), next: rows.last().map(|row| row.0.clone()) })
        })
    }

    fn rewrite<'a>(
        &'a self,
        policy: &'a str,
        subject: &'a str,
        rewrite: &'a Rewrite<'a>,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let batch = self.shared.rewrite(policy, subject, rewrite)?;
            if let Some(batch) = batch {
                self.shared.group_commit.hurry();
                self.shared.group_commit.durable_through(batch).await?;
            }
            Ok(batch.is_some())
        })
    }

    fn permit_key(&self) -> BoxFuture<'_, Result<Option<[u8; PERMIT_KEY_BYTES]>, Error>> {
        Box::pin(std::future::ready(Ok(Some(Self::permit_key(self)))))
    }

    fn adopt_permit_key(&self, key: [u8; PERMIT_KEY_BYTES]) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let value = database::key_value(&key);
            let adopt = |connection: &_| database::replace_unused_key(connection, &value);
            if self.shared.read(0, adopt)? {
                *self.permit_key.write().unwrap_or_else(PoisonError::into_inner) = key;
            }
            Ok(Self::permit_key(self) == key)
        })
    }
}
