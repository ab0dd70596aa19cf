//! Entries from the future in a data folder.

use std::path::Path;

use tollgate::repair::{FutureEntry, LISTED_MAX, Repair};
use tollgate::{BoxFuture, Error, Span, Timestamp};

use crate::database;
use crate::embedded::Embedded;
use crate::options::Options;
use crate::row::Key;

impl Embedded {
    /// Opens the data folder at `path` although its entries may be ahead of the clock, which is taken as it is.
    ///
    /// # Errors
    /// As [`open`](Self::open), except for entries that are ahead.
    pub fn open_for_repair(path: &Path, options: Options) -> Result<Self, Error> {
        Self::open_with_time(path, options, crate::ENTRIES_CACHED_MAX, true)
    }
}

impl Repair for Embedded {
    fn disputed_time(&self) -> Option<Timestamp> {
        self.disputed_time
    }

    fn list_future(&self, ahead_max: Span) -> BoxFuture<'_, Result<Vec<FutureEntry>, Error>> {
        Box::pin(async move {
            let now = self.shared.time.now();
            let ahead = |connection: &_| database::ahead(connection, now + ahead_max, LISTED_MAX);
            let rows = self.shared.read(0, ahead)?;
            let listed = rows.into_iter().filter_map(|(key, at)| {
                let key = Key::from_bytes(&key)?;
                let (policy, subject) = (key.policy().to_owned(), key.subject().to_owned());
                Some(FutureEntry { policy, subject, at, ahead: at.since(now) })
            });
            Ok(listed.collect())
        })
    }

    fn mend<'a>(
        &'a self,
        entry: &'a FutureEntry,
        ahead_max: Span,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(async move {
            let batch = self.shared.mend_key(&entry.policy, &entry.subject, ahead_max)?;
            if let Some(batch) = batch {
                self.shared.pipeline.hurry();
                self.shared.pipeline.durable_through(batch).await?;
            }
            Ok(batch.is_some())
        })
    }
}
