//! Letting requests through while the database is down, and counting them when it is back.
//!
//! The row of a request lives in the same database that is down, so what was let through is kept here and written later.
//! It is bounded: so many for each user, and so many in all. A crash of this process forgets them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_postgres::types::Type;
use tollgate::clock::SystemClock;
use tollgate::internal::LogLimit;
use tollgate::internal::edge::random;
use tollgate::{Clock, Error, Timestamp};

use super::Quota;
use super::quota::check_columns;

/// The most requests that are let through without the database before it is closed to everybody.
pub const SPOOL_MAX: usize = 10_000;

/// The warning that is logged when a decision is made without the database.
pub const DEGRADED_MESSAGE: &str = "Rate limiting degraded - database unavailable";

/// A quota that fails open.
///
/// While the database is down `consume` and `check` answer `{allowed: true, remaining: 0, degraded: true}`. An error with the
/// reason and the warning [`DEGRADED_MESSAGE`] are logged, at most every [`LOG_EVERY`](tollgate::internal::LOG_EVERY). A consumed request
/// is counted as soon as the database answers again, at the time when it was let through, with its columns. A
/// user who was let through as often as allowed is refused.
#[derive(Debug)]
pub struct FailOpen {
    quota: Quota,
    per_user_max: usize,
    clock: Arc<dyn Clock>,
    spool: Mutex<VecDeque<Spooled>>,
    /// One replays at a time.
    replaying: Semaphore,
    full_logged: LogLimit,
    open_logged: LogLimit,
}

#[derive(Clone, Debug)]
struct Spooled {
    user: String,
    key: String,
    at: Timestamp,
    columns: Value,
}

impl FailOpen {
    /// Admits each user up to `per_user_max` times while the database of `quota` is unavailable.
    ///
    /// # Errors
    /// [`Invalid`](tollgate::ErrorKind::Invalid) if the role of `quota` may not call `replay`
    /// ([`Grants::replay`](super::Grants::replay)): admitted requests could not be recorded later.
    pub fn new(quota: Quota, per_user_max: usize) -> Result<Self, Error> {
        quota.check_replays()?;
        let (spool, replaying) = (Mutex::default(), Semaphore::new(1));
        let (full_logged, open_logged) = (LogLimit::new(), LogLimit::new());
        let clock = Arc::new(SystemClock);
        Ok(Self { quota, per_user_max, clock, spool, replaying, full_logged, open_logged })
    }

    /// The quota itself, which fails when its database does.
    #[must_use]
    pub const fn quota(&self) -> &Quota {
        &self.quota
    }

    /// How many requests were let through that the database does not know of yet.
    #[must_use]
    pub fn spooled(&self) -> usize {
        self.spool().len()
    }

    /// As [`Quota::consume`], after what was let through before is counted; and if the database is down, openly.
    ///
    /// # Errors
    /// As [`Quota::consume`], except when the database is down and there is room to remember the request.
    pub async fn consume(&self, user: &str, key: Option<&str>) -> Result<Value, Error> {
        self.consume_with(user, key, &json!({})).await
    }

    /// As [`consume`](Self::consume), with values of further columns, which are kept and written with the request.
    ///
    /// While the database is down nothing can check them against the table. A request that the table does not take later, for
    /// want of a column that must not be null or by a trigger, is logged as an error and dropped.
    ///
    /// # Errors
    /// As [`Quota::consume_with`], except when the database is down and there is room to remember the request.
    pub async fn consume_with(
        &self,
        user: &str,
        key: Option<&str>,
        columns: &Value,
    ) -> Result<Value, Error> {
        check_columns(columns)?;
        let answer = match self.replay().await {
            Ok(_) => self.quota.consume_with(user, key, columns).await,
            Err(error) => Err(error),
        };
        match answer {
            Err(error) if error.is_unavailable() => self.open(user, key, columns, error),
            answer => answer,
        }
    }

    /// As [`Quota::check`], after what was let through before is counted. If the database is down, answers what
    /// [`consume`](Self::consume) of a new request would, and remembers nothing.
    ///
    /// # Errors
    /// As [`Quota::check`], except when the database is down and there is room to remember a request.
    pub async fn check(&self, user: &str) -> Result<Value, Error> {
        let answer = match self.replay().await {
            Ok(_) => self.quota.check(user).await,
            Err(error) => Err(error),
        };
        match answer {
            Err(error) if error.is_unavailable() => {
                self.decide(&self.spool(), user, false, error).map(degraded)
            }
            answer => answer,
        }
    }

    fn open(
        &self,
        user: &str,
        key: Option<&str>,
        columns: &Value,
        error: Error,
    ) -> Result<Value, Error> {
        let mut spool = self.spool();
        let repeats = |kept: &Spooled| kept.user == user && Some(kept.key.as_str()) == key;
        let is_repeat = spool.iter().any(repeats);
        let allowed = self.decide(&spool, user, is_repeat, error)?;
        if allowed && !is_repeat {
            // Without a key a repeat of the replay would be counted twice.
            let made = || format!("{:08x}{:08x}{:08x}", random(), random(), random());
            let key = key.map_or_else(made, str::to_owned);
            let (user, at) = (user.to_owned(), self.clock.now());
            spool.push_back(Spooled { user, key, at, columns: columns.clone() });
        }
        Ok(degraded(allowed))
    }

    /// Whether a request passes without the database.
    fn decide(
        &self,
        spool: &VecDeque<Spooled>,
        user: &str,
        is_repeat: bool,
        error: Error,
    ) -> Result<bool, Error> {
        if !is_repeat && SPOOL_MAX <= spool.len() {
            if let Some(suppressed) = self.full_logged.pass(self.clock.now()) {
                tracing::error!(%error, suppressed, "rate limit: the database is down, and {SPOOL_MAX} requests wait for it");
            }
            return Err(error);
        }
        let of_user = spool.iter().filter(|kept| kept.user == user).count();
        let allowed = is_repeat || of_user < self.per_user_max;
        if let Some(suppressed) = self.open_logged.pass(self.clock.now()) {
            tracing::error!(%error, user, suppressed, "rate limit: the database is down");
            tracing::warn!(user, allowed, "{DEGRADED_MESSAGE}");
        }
        Ok(allowed)
    }

    /// Counts what was let through while the database was down, each once; how many there were.
    ///
    /// # Errors
    /// As every call; what is left is counted next time.
    pub async fn replay(&self) -> Result<usize, Error> {
        let mut counted = 0;
        if self.spool().is_empty() {
            return Ok(counted);
        }
        let _one = self.replaying.acquire().await;
        loop {
            let next = self.spool().front().cloned();
            let Some(next) = next else { return Ok(counted) };
            match self.count(&next).await {
                Err(error) if error.is_unavailable() => return Err(error),
                Err(error) => {
                    let (user, key, at) = (&next.user, &next.key, next.at);
                    tracing::error!(%error, user, key, %at, "rate limit: a request that was let through cannot be counted");
                }
                Ok(()) => counted += 1,
            }
            self.spool().pop_front();
        }
    }

    /// Writes the row of a request, also beyond the limit: it was made.
    async fn count(&self, request: &Spooled) -> Result<(), Error> {
        let at = request.at.to_string();
        let parameters = [
            (&request.user as _, Type::TEXT),
            (&request.key as _, Type::TEXT),
            (&at as _, Type::TEXT),
            (&request.columns as _, Type::JSONB),
        ];
        let call = format!("replay({}, $2, $3::text::timestamptz, $4)", self.quota.user());
        self.quota.value(&call, &parameters).await.map(drop)
    }

    fn spool(&self) -> MutexGuard<'_, VecDeque<Spooled>> {
        self.spool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer that was made without the database.
fn degraded(allowed: bool) -> Value {
    json!({ "allowed": allowed, "remaining": 0, "resetTime": null, "waitSeconds": 0, "degraded": true })
}
