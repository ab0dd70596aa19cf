//! Removing rows that say what an absent one says, a few at a time.

use tokio_postgres::types::Type;
use tollgate::{Error, Span};

use crate::gate::Postgres;

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

    /// Removes rows that say what an absent one says, `rows` at a time, and answers how many there were. Call it now
    /// and then; decisions go on meanwhile.
    ///
    /// # Errors
    /// As every call.
    pub async fn clean_up(&self, rows: u32) -> Result<u64, Error> {
        let rows = i32::try_from(rows.max(1)).unwrap_or(i32::MAX);
        let (mut policy, mut subject, mut all) = (String::new(), String::new(), 0);
        loop {
            let parameters: [crate::pool::Parameter<'_>; 4] = [
                (&policy, Type::TEXT),
                (&subject, Type::TEXT),
                (&rows, Type::INT4),
                (&self.test_now(), Type::INT8),
            ];
            let row = self.pool.ask(&self.questions.clean_up, &parameters).await?;
            all += u64::try_from(row.get::<_, i64>("removed")).unwrap_or(0);
            let last: (Option<String>, Option<String>) =
                (row.get("last_policy"), row.get("last_subject"));
            match last {
                (Some(last_policy), Some(last_subject)) => {
                    (policy, subject) = (last_policy, last_subject);
                }
                _ => return Ok(all),
            }
        }
    }
}
