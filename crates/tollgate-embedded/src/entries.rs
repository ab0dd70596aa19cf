//! All entries of a data folder.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::PoisonError;

use tollgate::entries::{EntryStore, PERMIT_KEY_BYTES, Rewrite, Visited, Visitor};
use tollgate::{BoxFuture, Error, Span, Timestamp};

use crate::database;
use crate::embedded::Embedded;
use crate::options::Options;
use crate::row::{self, Key};

/// How many rows are read at once.
const ROWS_MAX: usize = 256;

impl Embedded {
    /// Opens the data folder at `path` although its entries may be ahead of the clock, which is taken as it is.
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

    /// Shows what is in the database: what was durable before the call.
    fn visit<'a>(
        &'a self,
        ahead_min: Option<Span>,
        visitor: &'a mut Visitor<'a>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let mut behind = Vec::new();
            loop {
                let now = self.shared.time.now();
                let after = ahead_min.map(|ahead| now + ahead);
                let read = |connection: &_| database::rows(connection, &behind, after, ROWS_MAX);
                let rows = self.shared.read(0, read)?;
                let Some((last, _)) = rows.last() else { return Ok(()) };
                behind.clone_from(last);
                for (key, value) in rows {
                    let Some(key) = Key::from_bytes(&key) else { continue };
                    let entry = row::decode(&key, &value, None)
                        .map_err(|error| self.shared.damaged_by(error));
                    let (policy, subject) = (key.policy().to_owned(), key.subject().to_owned());
                    if visitor(Visited { policy, subject, entry, now })? == ControlFlow::Break(()) {
                        return Ok(());
                    }
                }
            }
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
                self.shared.pipeline.hurry();
                self.shared.pipeline.durable_through(batch).await?;
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
