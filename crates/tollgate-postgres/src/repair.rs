//! The server's time, and rows from the future.

use std::sync::atomic::Ordering;

use tokio_postgres::types::Type;
use tollgate::core::{IdChange, Operation, Outcome, apply};
use tollgate::repair::{FutureEntry, LISTED_MAX, Repair};
use tollgate::steps::{SERVER_AHEAD_MAX, from_future};
use tollgate::{BoxFuture, Error, ErrorKind, Event, Policy, Span, Timestamp};

use crate::answer::Answer;
use crate::gate::{Postgres, SWAPS_MAX, contended};
use crate::quote;
use crate::row::{integer, natural};

impl Postgres {
    /// Learns the server's time from `answer`. Fails if its clock jumped ahead, or if the row is from the future, which
    /// is rewritten then.
    pub(crate) async fn learn(
        &self,
        policy: &Policy,
        subject: &str,
        answer: Answer,
    ) -> Result<Answer, Error> {
        let Some(ahead) = self.learn_time(&answer)? else { return Ok(answer) };
        if let Some(ahead) = self.mend_row(policy.name(), subject, SERVER_AHEAD_MAX).await? {
            let name = policy.name();
            tracing::warn!(
                policy = name,
                subject,
                ahead = ahead.for_people(),
                "entry from the future is rewritten as used up"
            );
            if let Some(observer) = &self.pool.options().observer {
                observer.observe(&Event::Mended { policy, subject, ahead });
            }
        }
        Err(Error::new(
            ErrorKind::Contended,
            format!(
                "postgres: the entry of subject {subject:?} under policy {:?} was {} ahead of the server's clock and is rewritten \
                 as used up; ask again",
                policy.name(),
                ahead.for_people()
            ),
        ))
    }

    /// Answers `operation`, which only reads, without writing anything: a row from the future is shown as the next write will
    /// replace it.
    pub(crate) async fn show(&self, operation: &Operation<'_>) -> Result<Outcome, Error> {
        let (policy, subject) = (operation.policy(), operation.subject());
        let answer = self.read(policy.name(), subject, operation.id()).await?;
        let mut entry = answer.entry(policy)?;
        if let Some(ahead) = self.learn_time(&answer)? {
            let name = policy.name();
            tracing::warn!(
                policy = name,
                subject,
                ahead = ahead.for_people(),
                "entry from the future is shown as used up"
            );
            entry = entry.mended(answer.now);
        }
        Ok(apply(operation, &mut entry, answer.known, answer.now)?.outcome)
    }

    /// Learns the server's time from `answer`, and says how far its row is ahead if a wrong clock wrote it. Fails if the
    /// server's clock jumped ahead.
    fn learn_time(&self, answer: &Answer) -> Result<Option<Span>, Error> {
        let options = self.pool.options();
        let ours = options.decides_by.as_ref().unwrap_or(&options.timer);
        let is_steady = self.time.check("postgres", answer.now, ours.boot_time())?;
        let local = options.timer.now();
        let ahead = integer(answer.now.as_micros()) - integer(local.as_micros());
        self.ahead.store(ahead, Ordering::Relaxed);
        let Some(stored) = &answer.stored else { return Ok(None) };
        // A clock that steps is no evidence against a row, nor is a test that sets the time.
        if !is_steady || options.decides_by.is_some() {
            return Ok(None);
        }
        Ok(from_future(Timestamp::from_micros(natural(stored.at)), answer.now, local))
    }

    /// Rewrites a row as used up if it is more than `ahead_max` ahead, and says how far it was.
    async fn mend_row(
        &self,
        policy: &str,
        subject: &str,
        ahead_max: Span,
    ) -> Result<Option<Span>, Error> {
        for _ in 0..SWAPS_MAX {
            let answer = self.read(policy, subject, None).await?;
            let Some(stored) = &answer.stored else { return Ok(None) };
            let entry = stored.to_entry(&Policy::from_shape_bytes(policy, &stored.shape)?)?;
            let ahead = entry.at().since(answer.now);
            if ahead <= ahead_max {
                return Ok(None);
            }
            let mended = entry.mended(answer.now);
            if self.swap((policy, subject), &mended, (None, IdChange::Nothing), answer).await? {
                return Ok(Some(ahead));
            }
        }
        Err(contended(policy, subject))
    }
}

impl Repair for Postgres {
    fn list_future(&self, ahead_max: Span) -> BoxFuture<'_, Result<Vec<FutureEntry>, Error>> {
        Box::pin(async move {
            let sql = format!(
                "SELECT e.policy, e.subject, e.at_us, c.now_us
                   FROM (SELECT coalesce($1, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS now_us) c,
                        {}.entries e
                  WHERE c.now_us + $2 < e.at_us ORDER BY 1, 2 LIMIT $3",
                self.schema
            );
            let ahead_max = integer(ahead_max.as_micros());
            let listed_max = i64::try_from(LISTED_MAX).unwrap_or(i64::MAX);
            let parameters: [crate::pool::Parameter<'_>; 3] = [
                (&self.test_now(), Type::INT8),
                (&ahead_max, Type::INT8),
                (&listed_max, Type::INT8),
            ];
            let rows = self.pool.query(&sql, &parameters, "could not list rows").await?;
            let listed = rows.iter().map(|row| {
                let [at, now] = ["at_us", "now_us"].map(|column| row.get::<_, i64>(column));
                let [at, now] = [at, now].map(|micros| Timestamp::from_micros(natural(micros)));
                let subject = quote::restore(row.get("subject"));
                FutureEntry { policy: row.get("policy"), subject, at, ahead: at.since(now) }
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
            let FutureEntry { policy, subject, .. } = entry;
            Ok(self.mend_row(policy, subject, ahead_max).await?.is_some())
        })
    }
}
