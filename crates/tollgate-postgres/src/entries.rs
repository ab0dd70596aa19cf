//! The server's time, repair of rows from the future, and listing of rows.

use std::sync::atomic::Ordering;

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use tollgate::core::{Entry, IdChange, Operation, Outcome, apply, apply_older};
use tollgate::entries::{EntryPage, EntryStore, PERMIT_KEY_BYTES, Rewrite, Visited};
use tollgate::gate::BoxFuture;
use tollgate::internal::steps::{SERVER_AHEAD_MAX, from_future};
use tollgate::observe::Event;
use tollgate::repair::repaired;
use tollgate::{Error, ErrorKind, Policy, Span, Timestamp};

use crate::gate::{Postgres, SWAPS_MAX, contended};
use crate::pool::Parameter;
use crate::quote;
use crate::reply::Reply;
use crate::row::{Stored, integer, natural};

/// Rows per page.
const ROWS_MAX: i64 = 256;

impl Postgres {
    /// Learns the server's time from `answer`. Fails if its clock jumped ahead, or if the row is from the future, which is then
    /// rewritten.
    pub(crate) async fn learn(
        &self,
        policy: &Policy,
        subject: &str,
        answer: Reply,
    ) -> Result<Reply, Error> {
        let Some(ahead) = self.learn_time(&answer)? else { return Ok(answer) };
        let repair = |entry: Option<&Entry>, now| repaired(entry, now, SERVER_AHEAD_MAX);
        if Box::pin(self.rewrite_row(policy.name(), subject, &repair)).await? {
            let name = policy.name();
            tracing::warn!(
                policy = name,
                subject,
                ahead = ahead.humanize(),
                "entry from the future is rewritten as used up"
            );
            if let Some(observer) = &self.pool.options().observer {
                observer.observe(&Event::Repaired { policy, subject, ahead });
            }
        }
        Err(Error::new(
            ErrorKind::Contended,
            format!(
                "postgres: the entry of subject {subject:?} under policy {:?} was {} ahead of the server's clock and is rewritten \
                 as used up; ask again",
                policy.name(),
                ahead.humanize()
            ),
        ))
    }

    /// Runs a read-only `operation`. A row from the future is shown as the next write will replace it.
    pub(crate) async fn show(&self, operation: &Operation<'_>) -> Result<Outcome, Error> {
        let (policy, subject) = (operation.policy(), operation.subject());
        let answer = self.read(policy.name(), subject, operation.id()).await?;
        let mut entry = answer.entry(policy)?;
        if let Some(ahead) = self.learn_time(&answer)? {
            let name = policy.name();
            tracing::warn!(
                policy = name,
                subject,
                ahead = ahead.humanize(),
                "entry from the future is shown as used up"
            );
            entry = entry.repaired(answer.now);
        }
        let apply = if answer.ids.is_some() { apply_older } else { apply };
        Ok(apply(operation, &mut entry, answer.known, answer.now)?.outcome)
    }

    /// Learns the server's time from `answer`, and returns how far its row is ahead if a wrong clock wrote it. Fails if the
    /// server's clock jumped ahead.
    fn learn_time(&self, answer: &Reply) -> Result<Option<Span>, Error> {
        let options = self.pool.options();
        let ours = options.test_clock.as_ref().unwrap_or(&options.timer);
        let is_steady = self.time.check("postgres", answer.now, ours.boot_time())?;
        let local = options.timer.now();
        let ahead = integer(answer.now.as_micros()) - integer(local.as_micros());
        self.ahead.store(ahead, Ordering::Relaxed);
        let Some(stored) = &answer.stored else { return Ok(None) };
        // Neither a stepping clock nor a test clock is evidence against a row.
        if !is_steady || options.test_clock.is_some() {
            return Ok(None);
        }
        Ok(from_future(Timestamp::from_micros(natural(stored.at)), answer.now, local))
    }

    /// Replaces the row of `policy` and `subject` by the result of `rewrite`. Returns whether it did.
    async fn rewrite_row(
        &self,
        policy: &str,
        subject: &str,
        rewrite: &Rewrite<'_>,
    ) -> Result<bool, Error> {
        for _ in 0..SWAPS_MAX {
            let answer = self.read(policy, subject, None).await?;
            let entry = answer.stored.as_ref().map(|stored| stored_entry(policy, stored));
            let Some(entry) = rewrite(entry.transpose()?.as_ref(), answer.now) else {
                return Ok(false);
            };
            if self.swap((policy, subject), &entry, (None, IdChange::Nothing), answer).await? {
                return Ok(true);
            }
        }
        Err(contended(policy, subject))
    }

    /// Lists up to [`ROWS_MAX`] rows after this key in the order of the primary key.
    async fn rows(
        &self,
        (policy, subject): (&str, &str),
        ahead_min: Option<Span>,
    ) -> Result<Vec<Row>, Error> {
        let beside = if self.version.is_old() {
            "e.settled, e.ids, e.id_numbers".to_owned()
        } else {
            format!(
                "NULL::bigint[] AS given,
                 (SELECT array_agg(u.number ORDER BY s.first, u.k)
                    FROM {}.settled s, unnest(ARRAY[s.first, s.last, s.admitted_us]) WITH ORDINALITY u(number, k)
                   WHERE s.policy = e.policy AND s.subject = e.subject) AS settled",
                self.schema
            )
        };
        let sql = format!(
            "SELECT e.policy, e.subject, e.revision, e.shape, e.at_us, e.next_stamp, e.states, e.settled_floor, e.closed,
                    e.changed, c.now_us, 'read' AS did, NULL::bigint AS stamp, {beside}
               FROM (SELECT coalesce($1, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) AS now_us) c,
                    {schema}.entries e
              WHERE (e.policy, e.subject) > ($3, $4) AND ($2::bigint IS NULL OR c.now_us + $2 < e.at_us)
              ORDER BY e.policy, e.subject LIMIT $5",
            schema = self.schema
        );
        let ahead_min = ahead_min.map(|ahead| integer(ahead.as_micros()));
        let parameters: [Parameter<'_>; 5] = [
            (&self.test_now(), Type::INT8),
            (&ahead_min, Type::INT8),
            (&policy, Type::TEXT),
            (&subject, Type::TEXT),
            (&ROWS_MAX, Type::INT8),
        ];
        self.pool.query(&sql, &parameters, "could not list rows").await
    }
}

fn stored_entry(policy: &str, stored: &Stored) -> Result<Entry, Error> {
    stored.to_entry(&Policy::from_shape_bytes(policy, &stored.shape)?)
}

impl EntryStore for Postgres {
    fn now(&self) -> BoxFuture<'_, Result<Timestamp, Error>> {
        Box::pin(async move {
            // No policy has an empty name, so this only reads the time.
            let read = self.across_upgrade(|| self.read("", "", None));
            Ok(read.await?.now)
        })
    }

    fn page<'a>(
        &'a self,
        cursor: &'a [u8],
        ahead_min: Option<Span>,
    ) -> BoxFuture<'a, Result<EntryPage, Error>> {
        Box::pin(async move {
            // Neither the name of a policy nor a stored subject has a zero byte.
            let cursor = String::from_utf8_lossy(cursor);
            let last = cursor.split_once('\0').unwrap_or_default();
            let mut page = EntryPage::default();
            for row in self.across_upgrade(|| self.rows(last, ahead_min)).await? {
                let (reply, policy) = (Reply::read(&row)?, row.get::<_, String>("policy"));
                let subject: &str = row.get("subject");
                page.next = Some(format!("{policy}\0{subject}").into_bytes());
                let (subject, now) = (quote::restore(subject), reply.now);
                if let Some(stored) = &reply.stored {
                    let entry = stored_entry(&policy, stored);
                    page.entries.push(Visited { policy, subject, entry, now });
                }
            }
            Ok(page)
        })
    }

    fn rewrite<'a>(
        &'a self,
        policy: &'a str,
        subject: &'a str,
        rewrite: &'a Rewrite<'a>,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        Box::pin(
            async move { self.across_upgrade(|| self.rewrite_row(policy, subject, rewrite)).await },
        )
    }

    fn permit_key(&self) -> BoxFuture<'_, Result<Option<[u8; PERMIT_KEY_BYTES]>, Error>> {
        Box::pin(async move { Self::permit_key(self).await.map(Some) })
    }

    fn adopt_permit_key(&self, key: [u8; PERMIT_KEY_BYTES]) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let sql = format!(
                "UPDATE {schema}.secrets SET permit_key = $1 WHERE NOT EXISTS (SELECT FROM {schema}.entries)",
                schema = self.schema
            );
            let adopted = key.as_slice();
            let parameters: [Parameter<'_>; 1] = [(&adopted, Type::BYTEA)];
            self.pool.query(&sql, &parameters, "could not replace the key of permits").await?;
            Ok(Self::permit_key(self).await? == key)
        })
    }
}
