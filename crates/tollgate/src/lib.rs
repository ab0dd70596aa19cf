#![doc = include_str!("../README.md")]

mod alternatives;
pub mod audit;
pub mod clock;
pub mod entries;
mod error;
pub mod gate;
mod guard;
pub mod incident;
#[doc(hidden)]
pub mod internal;
#[cfg(feature = "tower")]
pub mod layer;
mod local;
pub mod memory;
pub mod observe;
pub mod overrides;
pub mod policy;
pub mod queue;
pub mod repair;
pub mod retry;
#[cfg(feature = "spec")]
pub mod spec;
#[cfg(feature = "strategies")]
pub mod strategy;
mod sync;

pub use clock::Clock;
pub use error::{Error, ErrorKind};
pub use gate::{Gate, GateExt};
pub use guard::Guard;
pub use local::LocalBucket;
pub use memory::Memory;
pub use queue::Queue;
pub use tollgate_core::{
    self as core, Ask, CalendarWindow, Concurrency, Costs, Decision, Denial, Limit, Permit, Policy,
    RollingWindow, Span, Standing, Timestamp, TokenBucket,
};
