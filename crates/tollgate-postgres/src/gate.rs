//! The gate: one statement for each decision.
//!
//! ```text
//! acquire ──▶ spend() ──┬─ charged: permit and standings from the row as it is now
//!                       └─ read: nothing was written; the core explains why from the row that decided
//!                                 └─ the core would write (other numbers, clock far off) ──▶ look(), core, swap()
//! ```
//! The functions in the database only have to know whether every limit has room and how to charge it. Which limit binds,
//! until when, what an id conflicts with and what was carried over from other numbers is said by the core, from the row
//! and the time that the function decided by.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use tollgate::core::{Applied, Change, apply, bounds, standings};
use tollgate::steps::ServerTime;
use tollgate::{
    Ask, BoxFuture, Charge, Costs, Decision, Error, ErrorKind, Grant, Operation, Outcome, Permit,
    Store, Timestamp,
};

use crate::answer::{Answer, Did};
use crate::call::{self, Questions};
use crate::migrate;
use crate::options::{FORMAT_NEWEST, Options};
use crate::pool::Pool;
use crate::row::integer;
use crate::together::Together;
use crate::turns::{Turns, per_row};
use crate::version::Version;

/// How often a row that the core works out is written again because somebody was faster.
pub const SWAPS_MAX: usize = 16;

/// The length of the key that permits are sealed with.
pub const PERMIT_KEY_BYTES: usize = 32;

/// A gate on PostgreSQL with tables of its own.
#[derive(Debug)]
pub struct Postgres {
    pub(crate) pool: Arc<Pool>,
    /// The schema, quoted.
    pub(crate) schema: String,
    pub(crate) questions: Questions,
    pub(crate) together: Arc<Together>,
    pub(crate) turns: Turns,
    /// One call on each row at a time, in a schema of version 3.
    pub(crate) alone: Turns,
    pub(crate) version: Version,
    /// Said with each call where a session may be another each time; otherwise the session knows it.
    pub(crate) lock_timeout: Option<String>,
    /// How far the server's clock is ahead of ours, in microseconds. Only the borders of calendar windows need it, and
    /// where it is wrong the server notices.
    pub(crate) ahead: AtomicI64,
    /// The server's time, as replies show it.
    pub(crate) time: ServerTime,
}

impl Postgres {
    /// Opens a gate: makes the tables and functions if they are missing or older, once, under a lock.
    /// [`Options::format`] leaves older ones as they are.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the server cannot be reached or refuses, with what to do about it;
    /// [`ErrorKind::Misconfigured`] if the schema is of a version that cannot be worked on.
    pub async fn open(options: Options) -> Result<Self, Error> {
        let schema = options.quoted_schema()?;
        let (options, lock_timeout) = options.with_lock_timeout();
        let pool = Arc::new(Pool::new(options)?);
        let version = Version::new(migrate::check(&pool, &schema).await?);
        let questions = Questions::new(&schema);
        let (one, all) = (questions.spend.clone(), questions.spend_all.clone());
        let together = Arc::new(Together::new(Arc::clone(&pool), one, all, lock_timeout.clone()));
        let turns = Turns::new(per_row(pool.options().connections_max));
        let (alone, ahead, time) = (Turns::new(1), AtomicI64::new(0), ServerTime::new());
        Ok(Self {
            pool,
            schema,
            questions,
            together,
            turns,
            alone,
            version,
            lock_timeout,
            ahead,
            time,
        })
    }

    /// The version of the schema that the gate works on. It grows when another program upgrades a schema that this one was
    /// told to [leave as it is](Options::format), and the gate notices.
    #[must_use]
    pub fn format(&self) -> u8 {
        self.version.number()
    }

    /// The key that everybody on this database seals permits with.
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
                    // The function charges by unit, so the core works out the row. Where others change it too fast,
                    // charging by unit errs on the strict side.
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
                    // There is room for everybody in front too, so it is asked like any other.
                }
                let answer = self.spend(ask, decide).await?;
                if answer.did == Did::Wrote {
                    return charged(ask, &answer, decide);
                }
                answer
            }
            Operation::Settle(permit, _) | Operation::Release(permit) if !permit.is_charged() => {
                return Ok(Outcome::Settled(false));
            }
            Operation::Renew(permit) if permit.expires_at().is_none() => {
                return Ok(Outcome::Permitted(permit.clone()));
            }
            Operation::Renew(permit) => {
                let answer = self.renew_slots(permit).await?;
                if answer.did == Did::Wrote {
                    let expires_at = Some(Timestamp::from_micros(answer.stamp));
                    let grant = Grant { expires_at, ..*permit.grant() };
                    return Ok(Outcome::Permitted(permit.clone().with_grant(grant)));
                }
                answer
            }
            Operation::Settle(permit, actual) => {
                match wanted(permit, Some(actual)) {
                    Some(wanted) => self.settle_as(permit, &wanted, None).await?,
                    // The core says what is wrong with it.
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
                Ask::new(policy, subject).check()?;
                match policy.limits().position(|one| one.name() == limit) {
                    Some(place) => self.close((policy, subject), place, until).await?,
                    // The core says which limits there are.
                    None => self.look(&operation).await?,
                }
            }
            Operation::Reset { policy, subject } => {
                Ask::new(policy, subject).check()?;
                self.forget(policy, subject).await?
            }
            Operation::Standing { .. } => return self.show(&operation).await,
        };
        match answer.did {
            Did::Wrote => {
                return Ok(match operation {
                    Operation::Close { .. } | Operation::Reset { .. } => Outcome::Done(true),
                    _ => Outcome::Settled(true),
                });
            }
            Did::Contended => {
                return Err(contended(operation.policy().name(), operation.subject()));
            }
            Did::Full => return Err(too_many_in_flight(operation.subject())),
            Did::Unsure => return self.exchange(&operation).await,
            Did::Read => {}
        }
        let mut entry = answer.entry(operation.policy())?;
        let applied = apply(&operation, &mut entry, answer.known, answer.now)?;
        match applied.change {
            Change::Entry => self.exchange(&operation).await,
            Change::Nothing => Ok(applied.outcome),
        }
    }

    /// Reads the row, lets the core change it, and writes it if nobody else has.
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

impl Store for Postgres {
    fn run<'a>(&'a self, operation: Operation<'a>) -> BoxFuture<'a, Result<Outcome, Error>> {
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
}

/// The permit of a charge that the database made.
fn charged(ask: &Ask<'_>, answer: &Answer, decided: bool) -> Result<Outcome, Error> {
    let entry = answer.entry(ask.policy())?;
    let charge = Charge { at: entry.at(), stamp: answer.stamp };
    let grant = Grant::of(charge, ask.policy(), ask.amounts());
    let limits = standings(&entry, answer.now);
    Ok(if decided {
        Outcome::Decided(Decision::Admitted(Permit::of(ask, grant, limits)))
    } else {
        Outcome::Permitted(Permit::of(ask, Grant { expires_at: None, ..grant }, limits))
    })
}

/// What the permit shall have cost in the end: `actual`, and the estimate where it names no amount; nothing at all for a
/// release. None if `actual` is wrong.
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
            "postgres: too many callers change subject {subject:?} under policy {policy:?} at once; ask again later"
        ),
    )
}

fn too_many_in_flight(subject: &str) -> Error {
    Error::new(
        ErrorKind::Contended,
        format!(
            "postgres: more than {} permits of {subject:?} wait to be settled; settle or release them, or ask again later",
            bounds::SETTLED_RUNS_MAX_SHARED
        ),
    )
}
