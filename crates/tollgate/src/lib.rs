#![doc = include_str!("../README.md")]

pub mod audit;
mod backoff;
mod clock;
pub mod edge;
pub mod entries;
mod error;
mod gate;
mod guard;
mod ids;
pub mod incident;
mod layer;
mod local;
mod log_limit;
mod memory;
mod observe;
pub mod overrides;
mod policies;
mod queue;
pub mod repair;
pub mod retry;
pub mod spec;
pub mod steps;
mod store;
mod strategy;
mod sync;
mod within;

pub use backoff::acquire_with_backoff;
pub use clock::{Clock, ManualClock};
pub use edge::SystemClock;
pub use error::{Error, ErrorKind};
pub use gate::{BoxFuture, Gate};
pub use guard::Guard;
pub use ids::Ids;
pub use layer::{GateLayer, Gated, GatedError};
pub use local::LocalBucket;
pub use log_limit::{LOG_EVERY, LogLimit};
pub use memory::{KEYS_MAX_DEFAULT, Memory};
pub use observe::{Event, Observed, Observer, Tried};
pub use policies::Policies;
pub use queue::{
    HOLDING_POLICIES_MAX, HOLDING_SUBJECTS_MAX, HOLDING_TIMES_MAX, Queue, SLOT_POLL_MAX,
    SLOT_POLL_MIN, WAITERS_MAX,
};
pub use store::{Atomic, Store};
pub use strategy::{
    Attempts, Chance, FIRST_PROBE, Fallback, FallbackSettings, FallbackStart, Leased,
    LeasedOptions, Optimistic, OptimisticOptions, Resend, SUBJECTS_MAX_DEFAULT, over_issue_bound,
};
pub use tollgate_core::{
    self as core, Amounts, Ask, Backoff, CalendarWindow, Charge, Concurrency, Costs, Decision,
    Denial, Grant, Headroom, Limit, OnStoreFailure, Operation, Outcome, Period, Permit, Policy,
    PolicyBuilder, Refill, Refusal, RollingWindow, Rule, Shortage, SlotWait, Span, Standing,
    Timestamp, TokenBucket, Verdict, Wait,
};
pub use within::within;
