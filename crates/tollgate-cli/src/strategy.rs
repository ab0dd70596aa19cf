//! What stands between the faces and the store: trying again, a strategy, and fallback, from the inside out.
//!
//! The strategy is inside fallback, so that it only ever sees the store: an instance that is cut off decides by its share
//! alone, and what it owes passes through the strategy as a charge. A permit that a strategy gave by itself is settled
//! there, at once or, if the store is away, when it is back.
//!
//! One layer tries again. Redis and PostgreSQL are asked once per attempt and tried again here; DynamoDB marks each write
//! and sends it again by itself, so it is tried here once, with a deadline over all of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{
    Attempts, Clock, Error, Event, Fallback, FallbackSettings, Gate, Leased, LeasedOptions,
    Observer, Optimistic, OptimisticOptions, Resend, Span, Timestamp,
};

use crate::broker::OwnKey;
use crate::config::{StoreConfig, StrategyConfig};

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

/// How long a broker that ends waits for its store to take what it still has to be told.
const SHUTDOWN_WAIT: Span = Span::from_secs(5);

/// A shared store that is tried again.
pub(crate) type Tried = Resend<Arc<dyn Gate>>;

/// The gate of a broker, which outlives its store's outages.
#[derive(Debug)]
pub(crate) struct Resilient {
    gate: Arc<Fallback<Arc<dyn Gate>>>,
    strategy: Strategy,
    outage: Arc<Outage>,
    clock: Arc<dyn Clock>,
}

#[derive(Debug)]
enum Strategy {
    Atomic,
    Optimistic(Arc<Optimistic<Tried>>),
    Leased(Arc<Leased<Tried>>),
}

impl Resilient {
    /// `tried`, which makes `attempts`, with everything around it that a broker needs.
    pub(crate) fn new(
        tried: Tried,
        attempts: Attempts,
        strategy: &StrategyConfig,
        settings: FallbackSettings,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, Error> {
        let (inner, strategy): (Arc<dyn Gate>, _) = match strategy {
            StrategyConfig::Atomic => (Arc::new(tried), Strategy::Atomic),
            StrategyConfig::Optimistic(options) => {
                // The store is tried under a deadline already.
                let attempt_timeout = attempts.deadline;
                let options = OptimisticOptions { attempt_timeout, ..options.clone() };
                let observer = Arc::clone(&observer);
                let gate = Optimistic::observed(tried, options, Arc::clone(&clock), observer);
                let gate = Arc::new(gate);
                (Arc::clone(&gate) as _, Strategy::Optimistic(gate))
            }
            StrategyConfig::Leased(options) => {
                let observer = Some(Arc::clone(&observer));
                let options = LeasedOptions { observer, ..options.clone() };
                let gate = Arc::new(Leased::new(tried, options, Arc::clone(&clock)));
                (Arc::clone(&gate) as _, Strategy::Leased(gate))
            }
        };
        let outage = Outage::new(observer, Arc::clone(&clock));
        let gate = Fallback::new(inner, settings, Arc::clone(&clock))?;
        let gate = Arc::new(gate.observer(Arc::clone(&outage) as _));
        Ok(Self { gate, strategy, outage, clock })
    }

    /// Whether the store is away, and since when.
    pub(crate) fn watch(&self) -> (Arc<Fallback<Arc<dyn Gate>>>, Arc<Outage>) {
        (Arc::clone(&self.gate), Arc::clone(&self.outage))
    }

    /// What is asked.
    pub(crate) fn gate(&self) -> Arc<dyn Gate> {
        Arc::new(OwnKey(Arc::clone(&self.gate)))
    }

    /// Tells the store what it does not know yet, or says what it will never know.
    pub(crate) async fn close(&self) -> Result<(), Error> {
        let deadline = self.clock.now() + SHUTDOWN_WAIT;
        // What was spent without the store comes first: it passes through the strategy.
        let owed = self.pay_debt().await;
        let posted = match &self.strategy {
            Strategy::Atomic => Ok(()),
            Strategy::Optimistic(gate) => gate.shutdown(deadline).await,
            Strategy::Leased(gate) => {
                if let Err(error) = gate.shutdown_by(deadline).await {
                    // Nobody was let through uncounted, so this is no failure.
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

    /// Posts what was admitted without the store, if anything was.
    pub(crate) async fn flush(&self) -> Result<(), Error> {
        if self.gate.owing() == 0 {
            return Ok(());
        }
        self.pay_debt().await
    }

    async fn pay_debt(&self) -> Result<(), Error> {
        if !self.gate.is_degraded() {
            return Ok(());
        }
        self.gate.drain().await.map_err(|error| {
            let text = format!(
                "the store is away, so what {} subjects were let through without it is not counted",
                self.gate.owing()
            );
            Error::new(error.kind(), text).caused_by(error)
        })
    }
}

/// Says in the log when degradation begins and ends, remembers when it last began, and tells the observer inside.
#[derive(Debug)]
pub(crate) struct Outage {
    observer: Arc<dyn Observer>,
    clock: Arc<dyn Clock>,
    began: AtomicU64,
}

impl Outage {
    fn new(observer: Arc<dyn Observer>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { observer, clock, began: AtomicU64::new(0) })
    }

    /// When degradation last began.
    pub(crate) fn began(&self) -> Timestamp {
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
                    "the store does not serve this broker; correct what is wrong, the store is tried again by itself"
                );
            }
            Event::DegradedEnded { lasted } => {
                tracing::warn!(
                    lasted = lasted.for_people(),
                    "the store is back, and knows what was spent without it"
                );
            }
            _ => {}
        }
    }
}
