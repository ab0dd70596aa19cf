//! The gate: one statement per decision.
//!
//! ```text
//! acquire ──▶ spend() ──┬─ charged: permit and standings from the new row
//!                       └─ read only: the core derives the denial from the row
//!                                 └─ the core would write (other numbers, clock far off) ──▶ look(), core, swap()
//! ```
//! The functions in the database only check whether every limit has room, and charge. The core derives everything else from
//! the row and the time of the decision: the binding limit, the wait, conflicts of ids and carried-over numbers.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use tollgate::core::{Applied, Change, ChargeRecord, Grant, apply, bounds, standings};
use tollgate::gate::{BoxFuture, Operation, Outcome};
use tollgate::internal::steps::ServerTime;
use tollgate::{Ask, Costs, Decision, Error, ErrorKind, Gate, Permit, Timestamp};

use crate::batcher::Batcher;
use crate::call::{self, Statements};
use crate::migrate;
use crate::options::{FORMAT_NEWEST, Options};
use crate::pool::Pool;
use crate::reply::{Effect, Reply};
use crate::row::integer;
use crate::row_limiter::{RowLimiter, per_row};
use crate::version::Version;

/// The most compare-and-swap attempts on a row.
pub const SWAPS_MAX: usize = 16;

/// The length of the key of permits.
pub const PERMIT_KEY_BYTES: usize = 32;

/// A gate on PostgreSQL, with its own tables.
#[derive(Debug)]
pub struct Postgres {
    pub(crate) pool: Arc<Pool>,
    /// The schema, quoted.
    pub(crate) schema: String,
    pub(crate) statements: Statements,
    pub(crate) batcher: Arc<Batcher>,
    pub(crate) turns: RowLimiter,
    /// Serialises the calls on each row, in a schema of version 3.
    pub(crate) alone: RowLimiter,
    pub(crate) version: Version,
    /// Sent with each call if sessions change between transactions; otherwise it is set on the session.
    pub(crate) lock_timeout: Option<String>,
    /// The server's clock minus ours, in microseconds, for the borders of calendar windows. The server detects a wrong one.
    pub(crate) ahead: AtomicI64,
    /// The server's time, learned from replies.
    pub(crate) time: ServerTime,
}

impl Postgres {
    /// Opens a gate. Creates or upgrades the tables and functions under a lock, unless [`Options::format`] keeps older ones.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the server is unreachable or refuses; [`ErrorKind::Misconfigured`] if the version of the
    /// schema is not supported.
    pub async fn open(options: Options) -> Result<Self, Error> {
        let schema = options.quoted_schema()?;
        let (options, lock_timeout) = options.with_lock_timeout();
        let pool = Arc::new(Pool::new(options)?);
        let version = Version::new(migrate::check(&pool, &schema).await?);
        let statements = Statements::new(&schema);
        let batcher = Batcher::new(Arc::clone(&pool), &statements, lock_timeout.clone());
        let batcher = Arc::new(batcher);
        let turns = RowLimiter::new(per_row(pool.options().connections_max));
        let (alone, ahead, time) = (RowLimiter::new(1), AtomicI64::new(0), ServerTime::new());
        Ok(Self {
            pool,
            schema,
            statements,
            batcher,
            turns,
            alone,
            version,
            lock_timeout,
            ahead,
            time,
        })
    }

    /// Returns the version of the schema. It grows when the gate detects that another program upgraded a schema that this one
    /// [keeps](Options::format).
    #[must_use]
    pub fn format(&self) -> u8 {
        self.version.number()
    }

    /// Returns the key with which all programs on this database seal permits.
    ///
    /// # Errors
    /// As every call; [`ErrorKind::Corrupt`] if there is none.
    pub async fn permit_key(&self) -> Result<[u8; PERMIT_KEY_BYTES], Error> {
        let sql = format!("SELECT permit_key FROM {}.secrets", self.schema);
        let rows = self.pool.query(&sql, &[], "could not read the key of permits").await?;
        let key: Option<&[u8]> = rows.first().map(|row| row.get(0));
        key.and_then(|key| key.try_into().ok()).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "postgres: the table secrets holds no key of 32 bytes")
        })
    }

    async fn decide(&self, operation: Operation<'_>) -> Result<Outcome, Error> {
        let answer = match operation {
            Operation::Acquire(ask) | Operation::Charge(ask) => {
                ask.check()?;
                let decide = matches!(operation, Operation::Acquire(_));
                if !decide && ask.arrears().is_some() {
                    // The function charges by unit, so the core computes the row. Under contention, charging by unit
                    // errs on the strict side.
                    match self.exchange(&operation).await {
                        Err(error) if error.kind() == ErrorKind::Contended => {}
                        answer => return answer,
                    }
                }
                if decide && !ask.in_front().is_empty() {
                    let answer = self.look(&operation).await?;
                    let mut entry = answer.entry(operation.policy())?;
                    let applied = apply(&operation, &mut entry, answer.known, answer.now)?;
                    if applied.change == Change::Nothing {
                        return Ok(applied.outcome);
                    }
                    // There is room for everyone in front too, so it is decided like any other ask.
                }
                let answer = self.spend(ask, decide).await?;
                if answer.effect == Effect::Wrote {
                    return charged(ask, &answer, decide);
                }
                answer
            }
            Operation::Settle(permit, _) | Operation::Release(permit) if !permit.is_charged() => {
                return Ok(Outcome::Changed(false));
            }
            Operation::Renew(permit) if permit.expires_at().is_none() => {
                return Ok(Outcome::Permitted(permit.clone()));
            }
            Operation::Renew(permit) => {
                let answer = self.renew_slots(permit).await?;
                if answer.effect == Effect::Wrote {
                    let expires_at = Some(Timestamp::from_micros(answer.stamp));
                    let grant = Grant { expires_at, ..*permit.grant() };
                    return Ok(Outcome::Permitted(permit.clone().with_grant(grant)));
                }
                answer
            }
            Operation::Settle(permit, actual) => {
                match wanted(permit, Some(actual)) {
                    Some(wanted) => self.settle_as(permit, &wanted, None).await?,
                    // The core reports the error.
                    None => self.look(&operation).await?,
                }
            }
            Operation::Release(permit) => {
                let nothing = wanted(permit, None).unwrap_or_default();
                if permit.id().is_none() && self.pool.options().format < FORMAT_NEWEST {
                    self.forget_id_of(permit).await?;
                }
                self.settle_as(permit, &nothing, permit.id()).await?
            }
            Operation::Close { policy, subject, limit, until } => {
                match policy.limits().position(|one| one.name() == limit) {
                    Some(place) => self.close((policy, subject), place, until).await?,
                    // The core reports the error.
                    None => self.look(&operation).await?,
                }
            }
            Operation::Reset { policy, subject } => self.forget(policy, subject).await?,
            Operation::Standing { .. } => return self.show(&operation).await,
        };
        match answer.effect {
            Effect::Wrote => return Ok(Outcome::Changed(true)),
            Effect::Contended => {
                return Err(contended(operation.policy().name(), operation.subject()));
            }
            Effect::Full => return Err(too_many_in_flight(operation.subject())),
            Effect::Unsure => return self.exchange(&operation).await,
            Effect::Read => {}
        }
        let mut entry = answer.entry(operation.policy())?;
        let applied = apply(&operation, &mut entry, answer.known, answer.now)?;
        match applied.change {
            Change::Entry => self.exchange(&operation).await,
            Change::Nothing => Ok(applied.outcome),
        }
    }

    /// Reads the row, changes it in the core, and writes it by compare-and-swap.
    async fn exchange(&self, operation: &Operation<'_>) -> Result<Outcome, Error> {
        for _ in 0..SWAPS_MAX {
            let answer = self.look(operation).await?;
            let mut entry = answer.entry(operation.policy())?;
            let Applied { outcome, change, id } =
                apply(operation, &mut entry, answer.known, answer.now)?;
            if change == Change::Nothing {
                return Ok(outcome);
            }
            let full = answer.stored.as_ref().is_some_and(|stored| stored.is_full(answer.now));
            if full && matches!(operation, Operation::Acquire(ask) if ask.is_refundable()) {
                return Err(too_many_in_flight(operation.subject()));
            }
            let key = (operation.policy().name(), operation.subject());
            if self.swap(key, &entry, (Some(operation), id), answer).await? {
                return Ok(outcome);
            }
        }
        Err(contended(operation.policy().name(), operation.subject()))
    }
}

impl Gate for Postgres {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
        if operation.is_joint() {
            return Box::pin(self.run_joint(operation));
        }
        if self.version.is_old() {
            return Box::pin(async move {
                match self.run_3(&operation).await {
                    Some(answer) => answer,
                    None => Box::pin(self.decide(operation)).await,
                }
            });
        }
        Box::pin(self.decide(operation))
    }

    fn try_run(&self, _: &Operation<'_>) -> Option<Result<Outcome, Error>> {
        None
    }
}

/// Returns the permit of a charge that the database made.
fn charged(ask: &Ask<'_>, answer: &Reply, decided: bool) -> Result<Outcome, Error> {
    let entry = answer.entry(ask.policy())?;
    let charge = ChargeRecord { at: entry.at(), stamp: answer.stamp };
    let grant = Grant::new(charge, ask.policy(), ask.amounts());
    let limits = standings(&entry, answer.now);
    Ok(if decided {
        Outcome::Decided(Decision::Admitted(Permit::for_ask(ask, grant, limits)))
    } else {
        Outcome::Permitted(Permit::for_ask(ask, Grant { expires_at: None, ..grant }, limits))
    })
}

/// Returns the final cost of a permit by unit: `actual`, else the estimate; zero for a release. `None` if `actual` is invalid.
fn wanted(permit: &Permit, actual: Option<&Costs>) -> Option<Vec<i64>> {
    let (policy, charged) = (permit.policy(), permit.charged());
    let Some(actual) = actual else { return Some(call::no_amounts(policy)) };
    let sound = |(unit, amount): (&str, u64)| {
        amount <= bounds::NUMBER_MAX && policy.units().any(|known| known == unit)
    };
    let units = policy.units().enumerate();
    let all = units.map(|(place, unit)| actual.get(unit).unwrap_or(charged.amounts.at(place)));
    actual.iter().all(sound).then(|| all.map(integer).collect())
}

pub(crate) fn contended(policy: &str, subject: &str) -> Error {
    Error::new(
        ErrorKind::Contended,
        format!(
            "postgres: too many concurrent changes of subject {subject:?} under policy {policy:?}; retry later"
        ),
    )
}

pub(crate) fn too_many_in_flight(subject: &str) -> Error {
    Error::new(
        ErrorKind::Contended,
        format!(
            "postgres: more than {} permits of {subject:?} are not settled; settle or release them, or retry later",
            bounds::SETTLED_RUNS_MAX_SHARED
        ),
    )
}
