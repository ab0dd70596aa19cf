//! The gates between a program and a store on a server: resend, strategy and fallback, from the inside out.
//!
//! The strategy is inside the fallback, so that it sees the store only: an instance that is cut off decides by its share
//! alone, and what it owes passes through the strategy as a charge. A permit that the strategy issued is settled there, at
//! once or after the outage.
//!
//! One layer retries. Redis and PostgreSQL send each attempt once, and `Resend` repeats it; DynamoDB marks each write and
//! repeats it itself, so it is called once, with a deadline over all of its attempts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::observe::{Event, Observer};
use tollgate::strategy::{
    Fallback, FallbackOptions, Leased, Optimistic, OptimisticOptions, Resend, ResendOptions,
};
use tollgate::{Clock, Error, Gate, Span, Timestamp};

use super::operator_errors::OperatorErrors;
use crate::{StoreConfig, StrategyConfig};

/// The default timeout of an attempt: a slow store is as bad as a dead one.
const ATTEMPT_TIMEOUT: Span = Span::from_millis(500);

/// The default for PostgreSQL, where an attempt may wait for a locked row.
const POSTGRES_ATTEMPT_TIMEOUT: Span = Span::from_secs(1);

/// The default of a command, which has no fallback and may be one of hundreds that start at once on a small machine.
const COMMAND_ATTEMPT_TIMEOUT: Span = Span::from_secs(5);

/// Returns how a broker, or a command, retries a store.
pub(super) fn attempts(
    store: &StoreConfig,
    timeout: Option<Span>,
    is_broker: bool,
) -> ResendOptions {
    let otherwise = match store {
        _ if !is_broker => COMMAND_ATTEMPT_TIMEOUT,
        StoreConfig::Postgres(_) => POSTGRES_ATTEMPT_TIMEOUT,
        _ => ATTEMPT_TIMEOUT,
    };
    let attempts = ResendOptions::with_attempt_timeout(timeout.unwrap_or(otherwise));
    match store {
        StoreConfig::DynamoDb(_) => ResendOptions::once(attempts.deadline),
        _ => attempts,
    }
}

/// Returns the timeout of one attempt, which the client of the store enforces too.
pub(super) fn attempt_timeout(store: &StoreConfig, timeout: Option<Span>, is_broker: bool) -> Span {
    let attempts = attempts(store, timeout, is_broker);
    match store {
        StoreConfig::DynamoDb(_) => {
            timeout.unwrap_or(if is_broker { ATTEMPT_TIMEOUT } else { COMMAND_ATTEMPT_TIMEOUT })
        }
        _ => attempts.attempt_timeout.into(),
    }
}

/// A store on a server with retries.
pub(super) type Retried = Resend<Arc<dyn Gate>>;

/// The gate of a program that goes on while its store is unavailable.
#[derive(Debug)]
pub(super) struct Resilient {
    gate: Arc<Fallback<Arc<dyn Gate>>>,
    strategy: Strategy,
    outage: Arc<Outage>,
}

#[derive(Debug)]
enum Strategy {
    Atomic,
    Optimistic(Arc<Optimistic<Retried>>),
    Leased(Arc<Leased<Retried>>),
}

impl Resilient {
    /// Wraps `store`, which makes `attempts`, in the strategy and the fallback.
    pub(super) fn new(
        store: Retried,
        attempts: ResendOptions,
        strategy: &StrategyConfig,
        settings: FallbackOptions,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, Error> {
        let (inner, strategy): (Arc<dyn Gate>, _) = match strategy {
            StrategyConfig::Atomic => (Arc::new(store), Strategy::Atomic),
            StrategyConfig::Optimistic(options) => {
                // The attempts at the store have a deadline already.
                let attempt_timeout = attempts.deadline;
                let options = OptimisticOptions { attempt_timeout, ..options.clone() };
                let gate = Optimistic::new(store, options, Arc::clone(&clock));
                let gate = Arc::new(gate.observer(Arc::clone(&observer)));
                (Arc::clone(&gate) as _, Strategy::Optimistic(gate))
            }
            StrategyConfig::Leased(options) => {
                let gate = Leased::new(store, options.clone(), Arc::clone(&clock));
                let gate = Arc::new(gate.observer(Arc::clone(&observer)));
                (Arc::clone(&gate) as _, Strategy::Leased(gate))
            }
        };
        let outage = Outage::new(observer, Arc::clone(&clock));
        let gate = Fallback::new(inner, settings, clock)?;
        let gate = Arc::new(gate.observer(Arc::clone(&outage) as _));
        Ok(Self { gate, strategy, outage })
    }

    /// Returns what knows whether the store is unavailable, and since when.
    pub(super) fn watch(&self) -> (Arc<Fallback<Arc<dyn Gate>>>, Arc<Outage>) {
        (Arc::clone(&self.gate), Arc::clone(&self.outage))
    }

    /// Returns the outermost gate.
    pub(super) fn gate(&self) -> Arc<dyn Gate> {
        Arc::new(OperatorErrors(Arc::clone(&self.gate)))
    }

    /// Posts unposted charges to the store, those of the strategy until `deadline`. The error says which are lost.
    pub(super) async fn shutdown(&self, deadline: Timestamp) -> Result<(), Error> {
        // Charges of an outage come first: they pass through the strategy.
        let owed = self.pay_debt().await;
        let posted = match &self.strategy {
            Strategy::Atomic => Ok(()),
            Strategy::Optimistic(gate) => gate.shutdown(deadline).await,
            Strategy::Leased(gate) => {
                if let Err(error) = gate.shutdown(deadline).await {
                    // Every admitted ask was charged, so this is no failure.
                    tracing::warn!("{error}");
                }
                Ok(())
            }
        };
        match (owed, posted) {
            (Ok(()), Ok(())) => Ok(()),
            (Err(error), Ok(())) | (Ok(()), Err(error)) => Err(error),
            (Err(owed), Err(posted)) => {
                Err(Error::new(owed.kind(), format!("{owed}; {posted}")).caused_by(owed))
            }
        }
    }

    /// Posts the charges of an outage, if there are any.
    pub(super) async fn flush(&self) -> Result<(), Error> {
        if self.gate.owing() == 0 {
            return Ok(());
        }
        self.pay_debt().await
    }

    async fn pay_debt(&self) -> Result<(), Error> {
        if !self.gate.is_degraded() {
            return Ok(());
        }
        self.gate.shutdown(Timestamp::MAX).await.map_err(|error| {
            let text = format!(
                "the store is away, so what {} subjects were let through without it is not counted",
                self.gate.owing()
            );
            Error::new(error.kind(), text).caused_by(error)
        })
    }
}

/// An observer that logs when degradation begins and ends, and remembers when it last began.
#[derive(Debug)]
pub(super) struct Outage {
    observer: Arc<dyn Observer>,
    clock: Arc<dyn Clock>,
    began: AtomicU64,
}

impl Outage {
    fn new(observer: Arc<dyn Observer>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { observer, clock, began: AtomicU64::new(0) })
    }

    /// Returns when degradation last began.
    pub(super) fn began(&self) -> Timestamp {
        Timestamp::from_micros(self.began.load(Ordering::Relaxed))
    }
}

impl Observer for Outage {
    fn observe(&self, event: &Event<'_>) {
        self.observer.observe(event);
        match event {
            Event::DegradedBegan { error } => {
                self.began.store(self.clock.now().as_micros(), Ordering::Relaxed);
                tracing::error!(
                    metric = "RateLimiterFallbackActivated",
                    %error,
                    "the store failed; decisions are degraded until it is back"
                );
            }
            Event::Misconfigured { error } => {
                tracing::error!(
                    %error,
                    "the store does not serve this broker; correct its configuration, the store is probed again automatically"
                );
            }
            Event::DegradedEnded { lasted } => {
                tracing::warn!(
                    lasted = lasted.humanize(),
                    "the store is available again, and has the charges of the outage"
                );
            }
            _ => {}
        }
    }
}
