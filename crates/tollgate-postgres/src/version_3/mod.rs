//! A schema of version 3, shared with programs of the version before.
//!
//! Every operation reads the row, changes it in the core, and writes it back in version 3:
//!
//! ```text
//! operation ──▶ look() ──▶ core ──▶ swap() ──┬─ written
//!                 ▲                          └─ concurrent change ──▶ the same in a transaction that locks the row
//!                 └── refused, because the schema was upgraded ──▶ the operation again, in version 4
//! ```
//! Version 3 has at most 1,024 ids in the row, and at most 256 runs of settled permits. It has no lows of buckets and no
//! default grids, so decisions follow [`apply_older`].

mod ids;
mod joint;

pub(crate) use self::ids::Ids;

use tokio_postgres::types::Type;
use tollgate::core::{Change, Entry, IdChange, Part, apply_older};
use tollgate::gate::{Operation, Outcome};
use tollgate::{Error, Permit, Policy};

use crate::call;
use crate::error::refusal;
use crate::gate::{Postgres, SWAPS_MAX, contended};
use crate::pool::Parameter;
use crate::reply::Reply;
use crate::row::{Stored, integer};

/// The most runs of settled permits that a program of version 3 reads.
const RUNS_MAX: usize = 256;

impl Postgres {
    /// Runs `operation` on a schema of version 3. Returns `None`, without side effects, if it was upgraded.
    pub(crate) async fn run_3(&self, operation: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        let answer = match operation {
            Operation::Standing { .. } => self.show(operation).await.map(Some),
            _ => self.exchange_3(operation).await,
        };
        match answer {
            Err(error) if self.was_upgraded(&error).await => None,
            answer => answer.transpose(),
        }
    }

    /// Whether the server refused a statement because the schema was upgraded.
    pub(crate) async fn was_upgraded(&self, error: &Error) -> bool {
        refusal(error).is_some()
            && matches!(self.version.is_still_old(&self.pool, &self.schema).await, Ok(false))
    }

    /// Runs `call`, and repeats it if the schema was upgraded meanwhile.
    pub(crate) async fn across_upgrade<T, F: Future<Output = Result<T, Error>>>(
        &self,
        call: impl Fn() -> F,
    ) -> Result<T, Error> {
        let is_old = self.version.is_old();
        match call().await {
            Err(error) if is_old && self.was_upgraded(&error).await => call().await,
            answer => answer,
        }
    }

    /// Removes the id of a permit before its release, in a schema that was upgraded meanwhile: permits for programs of version 3
    /// come without their ids.
    pub(crate) async fn forget_id_of(&self, permit: &Permit) -> Result<(), Error> {
        let (policy, subject) = (permit.policy().name(), call::stored(permit.subject()));
        let sql = format!(
            "DELETE FROM {}.ids WHERE policy = $1 AND subject = $2 AND stamp = $3",
            self.schema
        );
        let parameters: [Parameter<'_>; 3] = [
            (&policy, Type::TEXT),
            (&&*subject, Type::TEXT),
            (&integer(permit.grant().stamp), Type::INT8),
        ];
        self.pool.query(&sql, &parameters, "could not forget an id").await.map(drop)
    }

    /// Returns `None` if another call detected an upgrade of the schema.
    async fn exchange_3(&self, operation: &Operation<'_>) -> Result<Option<Outcome>, Error> {
        let key = (operation.policy().name(), operation.subject());
        let stored_subject = call::stored(key.1);
        // Serialises the calls of this process on one row.
        let _turn = self.pool.in_time(async { Ok(self.alone.take(key).await) }).await?;
        for attempt in 0..SWAPS_MAX {
            let mut transaction = match attempt {
                0 => None,
                _ => Some(self.pool.begin(self.lock_timeout.as_deref()).await?),
            };
            let answer = match &mut transaction {
                None => self.look(operation).await?,
                Some(transaction) => {
                    let parameters: [Parameter<'_>; 3] = [
                        (&key.0, Type::TEXT),
                        (&&*stored_subject, Type::TEXT),
                        (&self.test_now(), Type::INT8),
                    ];
                    Reply::read(
                        &transaction.ask(&self.statements.look_locked_3, &parameters).await?,
                    )?
                }
            };
            let mut entry = answer.entry(operation.policy())?;
            let Some(ids) = answer.ids else { return Ok(None) };
            let before = entry.policy().clone();
            let known = ids.known(operation, &before);
            let applied = apply_older(operation, &mut entry, known, answer.now)?;
            let is_written = match applied.change {
                Change::Nothing => true,
                Change::Entry => {
                    let ids = ids.after(&before, &entry, Some(operation), applied.id)?;
                    let revision = answer.stored.map(|stored| stored.revision);
                    let key = (key.0, &*stored_subject);
                    let swap = Swap::new(key, revision, &entry, &ids, &self.lock_timeout);
                    let (query, parameters) = (&self.statements.swap_3, &swap.parameters());
                    let row = match &mut transaction {
                        None => self.run_on(swap.key, query, parameters).await?,
                        Some(transaction) => transaction.ask(query, parameters).await?,
                    };
                    row.get(0)
                }
            };
            if let Some(transaction) = transaction {
                transaction.commit().await?;
            }
            if is_written {
                return Ok(Some(applied.outcome));
            }
        }
        Err(contended(key.0, key.1))
    }

    /// Replaces the row in `seen` by `entry`, with the same ids, by compare-and-swap. Returns whether it did.
    pub(crate) async fn swap_3(
        &self,
        (policy, subject): (&str, &str),
        entry: &Entry,
        seen: Reply,
    ) -> Result<bool, Error> {
        let subject = call::stored(subject);
        let before = match &seen.stored {
            Some(stored) => Policy::from_shape_bytes(policy, &stored.shape)?,
            None => entry.policy().clone(),
        };
        let ids = seen.ids.unwrap_or_default().after(&before, entry, None, IdChange::Nothing)?;
        let revision = seen.stored.map(|stored| stored.revision);
        let swap = Swap::new((policy, &subject), revision, entry, &ids, &self.lock_timeout);
        let row = self.run_on(swap.key, &self.statements.swap_3, &swap.parameters()).await?;
        Ok(row.get(0))
    }
}

/// Returns the columns of a row of version 3 without ids. Drops what they cannot hold, on the strict side.
fn row_of(entry: &Entry, ids: &Ids) -> Stored {
    let mut parts = entry.parts();
    for part in &mut parts.states {
        if let Part::Bucket { lows, .. } = part {
            lows.clear();
        }
    }
    let excess = parts.settled.runs.len().saturating_sub(RUNS_MAX);
    for (_, last, _) in parts.settled.runs.drain(..excess) {
        parts.settled.floor = parts.settled.floor.max(last);
    }
    let row = Stored::from_parts(entry, &parts);
    Stored { absent_at: row.absent_at.max(ids.expire_at()), ..row }
}

/// The arguments of the function `swap` of version 3.
struct Swap<'a> {
    key: (&'a str, &'a str),
    /// `None` without a row.
    revision: Option<i64>,
    row: Stored,
    ids: (Vec<&'a str>, Vec<i64>),
    lock_timeout: &'a Option<String>,
}

impl<'a> Swap<'a> {
    fn new(
        key: (&'a str, &'a str),
        revision: Option<i64>,
        entry: &Entry,
        ids: &'a Ids,
        lock_timeout: &'a Option<String>,
    ) -> Self {
        Self { key, revision, row: row_of(entry, ids), ids: ids.columns(), lock_timeout }
    }

    fn parameters(&self) -> [Parameter<'_>; 15] {
        let Self { key, revision, row, ids, lock_timeout } = self;
        [
            (&key.0, Type::TEXT),
            (&key.1, Type::TEXT),
            (revision, Type::INT8),
            (&row.shape, Type::BYTEA),
            (&row.at, Type::INT8),
            (&row.next_stamp, Type::INT8),
            (&row.states, Type::INT8_ARRAY),
            (&ids.0, Type::TEXT_ARRAY),
            (&ids.1, Type::INT8_ARRAY),
            (&row.settled, Type::INT8_ARRAY),
            (&row.settled_floor, Type::INT8),
            (&row.closed, Type::INT8_ARRAY),
            (&row.changed, Type::INT8_ARRAY),
            (&row.absent_at, Type::INT8),
            (*lock_timeout, Type::TEXT),
        ]
    }
}
