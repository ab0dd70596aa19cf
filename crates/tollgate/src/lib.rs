#![doc = include_str!("../README.md")]

mod clock;
pub mod edge;
mod error;
mod gate;
mod memory;
mod store;
mod sync;

pub use clock::{Clock, ManualClock};
pub use edge::SystemClock;
pub use error::{Error, ErrorKind};
pub use gate::{BoxFuture, Gate};
pub use memory::{KEYS_MAX_DEFAULT, Memory};
pub use store::{Atomic, Store};
pub use tollgate_core::{
    self as core, Amounts, Ask, Backoff, CalendarWindow, Concurrency, Costs, Decision, Denial, Grant,
    Headroom, Limit, OnStoreFailure, Operation, Outcome, Period, Permit, Policy, PolicyBuilder,
    Refill, Refusal, RollingWindow, Rule, Span, Standing, Timestamp, TokenBucket, Verdict, Wait,
};
