//! Removing entries that say what an absent one says, and expired ids, a few at a time.

use tokio_postgres::types::Type;
use tollgate::{Error, Span};

use crate::gate::Postgres;
use crate::pool::{Parameter, Question};

/// How often a broker looks for rows that are over.
pub const CLEAN_UP_EVERY: Span = Span::from_mins(10);

/// How many rows a broker looks at in one statement.
pub const CLEAN_UP_ROWS: u32 = 1_000;

impl Postgres {
    /// Cleans up now and then, [`CLEAN_UP_ROWS`] at a time, until it is dropped. It may be dropped at any time: a
    /// statement that is under way removes its rows or none. Several programs may do this on one database.
    pub async fn keep_clean(&self, every: Span) {
        let options = self.pool.options();
        let clock = options.decides_by.as_ref().unwrap_or(&options.timer);
        loop {
            clock.sleep_until(clock.now() + every).await;
            match self.clean_up(CLEAN_UP_ROWS).await {
                Ok(removed) => tracing::info!(removed, "cleaned up postgres"),
                // The rows stay until the next time; decisions do not need them gone.
                Err(error) => tracing::warn!(%error, "could not clean up postgres"),
            }
        }
    }

    /// Removes entries that say what an absent one says, and expired ids, `rows` of a table at a time; returns how many
    /// there were of both. Decisions go on meanwhile.
    ///
    /// # Errors
    /// As every call.
    pub async fn clean_up(&self, rows: u32) -> Result<u64, Error> {
        let rows = i32::try_from(rows.max(1)).unwrap_or(i32::MAX);
        let entries = ["last_policy", "last_subject"];
        let removed = self.walk(&self.questions.clean_up, entries, rows).await?;
        // The entries of version 3 hold their ids.
        if self.version.is_still_old(&self.pool, &self.schema).await? {
            return Ok(removed);
        }
        let ids = ["last_policy", "last_subject", "last_id"];
        Ok(removed + self.walk(&self.questions.clean_up_ids, ids, rows).await?)
    }

    /// Asks `question` about the next `rows` rows after the last `key`, from the first key to the last.
    async fn walk<const COLUMNS: usize>(
        &self,
        question: &Question,
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
            let row = self.pool.ask(question, &parameters).await?;
            removed += u64::try_from(row.get::<_, i64>("removed")).unwrap_or(0);
            let last: Option<Vec<String>> = key.iter().map(|column| row.get(*column)).collect();
            match last.and_then(|last| last.try_into().ok()) {
                Some(last) => after = last,
                None => return Ok(removed),
            }
        }
    }
}
