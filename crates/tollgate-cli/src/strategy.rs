//! What stands between the faces and the store: trying again, and fallback. Other strategies belong here too.
//!
//! One layer tries again. Redis and PostgreSQL are asked once per attempt and tried again here; DynamoDB marks each write
//! and sends it again by itself, so it is tried here once, with a deadline over all of it.

use std::sync::Arc;

use tollgate::{
    Attempts, Clock, Error, Event, Fallback, FallbackSettings, Gate, Observer, Resend, Span,
};

use crate::config::StoreConfig;

/// How long one attempt may take where nothing is set: a slow store is as bad as a dead one.
const ATTEMPT_TIMEOUT: Span = Span::from_millis(500);

/// The same for PostgreSQL, where an attempt may wait for a row that another one holds.
const POSTGRES_ATTEMPT_TIMEOUT: Span = Span::from_secs(1);

/// How long one attempt of a command may take. A command has nothing to fall back on, and may be one of hundreds that
/// start at once on a small machine.
const COMMAND_ATTEMPT_TIMEOUT: Span = Span::from_secs(5);

/// The attempts at a store by a broker, or by a command.
pub(crate) fn attempts(store: &StoreConfig, timeout: Option<Span>, is_broker: bool) -> Attempts {
    let otherwise = match store {
        _ if !is_broker => COMMAND_ATTEMPT_TIMEOUT,
        StoreConfig::Postgres(_) => POSTGRES_ATTEMPT_TIMEOUT,
        _ => ATTEMPT_TIMEOUT,
    };
    let attempts = Attempts::of(timeout.unwrap_or(otherwise));
    match store {
        StoreConfig::DynamoDb(_) => Attempts::once(attempts.deadline),
        _ => attempts,
    }
}

/// How long one attempt at a store may take, which the store's own client is told too.
pub(crate) fn attempt_timeout(store: &StoreConfig, timeout: Option<Span>, is_broker: bool) -> Span {
    let attempts = attempts(store, timeout, is_broker);
    match store {
        StoreConfig::DynamoDb(_) => {
            timeout.unwrap_or(if is_broker { ATTEMPT_TIMEOUT } else { COMMAND_ATTEMPT_TIMEOUT })
        }
        _ => attempts.attempt_timeout,
    }
}

/// The gate of a broker, which outlives its store's outages.
pub(crate) type Resilient = Fallback<Resend<Arc<dyn Gate>>>;

/// `store` with everything around it that a broker needs.
pub(crate) fn resilient(
    store: Arc<dyn Gate>,
    attempts: Attempts,
    settings: FallbackSettings,
    clock: &Arc<dyn Clock>,
) -> Result<Resilient, Error> {
    let resend = Resend::new(store, attempts, Arc::clone(clock));
    Ok(Fallback::new(resend, settings, Arc::clone(clock))?.observer(Arc::new(Log)))
}

/// Says in the log when degradation begins and ends.
#[derive(Debug)]
struct Log;

impl Observer for Log {
    fn observe(&self, event: &Event<'_>) {
        match event {
            Event::DegradedBegan { error } => tracing::error!(
                metric = "RateLimiterFallbackActivated",
                %error,
                "the store failed; decisions are degraded until it is back"
            ),
            Event::DegradedEnded { lasted } => {
                tracing::warn!(%lasted, "the store is back, and knows what was spent without it");
            }
            _ => {}
        }
    }
}
