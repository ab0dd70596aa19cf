//! Removal of entries that equal an absent one, and of expired ids.

use tokio_postgres::types::Type;
use tollgate::{Error, Span};

use crate::gate::Postgres;
use crate::pool::{Parameter, Query};

/// Clean-up interval of a broker.
pub const CLEAN_UP_EVERY: Span = Span::from_mins(10);

/// Rows per clean-up statement of a broker.
pub const CLEAN_UP_ROWS: u32 = 1_000;

impl Postgres {
    /// Cleans up every `every` until it is dropped, which is safe at any time. Several programs may do this on one database.
    pub async fn keep_clean(&self, every: Span) {
        let options = self.pool.options();
        let clock = options.test_clock.as_ref().unwrap_or(&options.timer);
        loop {
            clock.sleep_until(clock.now() + every).await;
            match self.clean_up(CLEAN_UP_ROWS).await {
                Ok(removed) => tracing::info!(removed, "cleaned up postgres"),
                // Decisions do not depend on the removal.
                Err(error) => tracing::warn!(%error, "could not clean up postgres"),
            }
        }
    }

    /// Removes entries that equal an absent one, and expired ids, `rows` per statement. Returns how many were removed. Decisions
    /// continue meanwhile.
    ///
    /// # Errors
    /// As every call.
    pub async fn clean_up(&self, rows: u32) -> Result<u64, Error> {
        let rows = i32::try_from(rows.max(1)).unwrap_or(i32::MAX);
        let entries = ["last_policy", "last_subject"];
        let removed = self.walk(&self.statements.clean_up, entries, rows).await?;
        // Entries of version 3 contain their ids.
        if self.version.is_still_old(&self.pool, &self.schema).await? {
            return Ok(removed);
        }
        let ids = ["last_policy", "last_subject", "last_id"];
        Ok(removed + self.walk(&self.statements.clean_up_ids, ids, rows).await?)
    }

    /// Runs `query` on pages of `rows` rows, in the order of `key`.
    async fn walk<const COLUMNS: usize>(
        &self,
        query: &Query,
        key: [&str; COLUMNS],
        rows: i32,
    ) -> Result<u64, Error> {
        let mut after = [const { String::new() }; COLUMNS];
        let mut removed = 0;
        loop {
            let now = self.test_now();
            let mut parameters: Vec<Parameter<'_>> = Vec::new();
            parameters.extend(after.iter().map(|column| -> Parameter<'_> { (column, Type::TEXT) }));
            parameters.push((&rows, Type::INT4));
            parameters.push((&now, Type::INT8));
            let row = self.pool.ask(query, &parameters).await?;
            removed += u64::try_from(row.get::<_, i64>("removed")).unwrap_or(0);
            let last: Option<Vec<String>> = key.iter().map(|column| row.get(*column)).collect();
            match last.and_then(|last| last.try_into().ok()) {
                Some(last) => after = last,
                None => return Ok(removed),
            }
        }
    }
}
