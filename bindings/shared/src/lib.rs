#![doc = include_str!("../README.md")]

mod batch;
#[cfg(feature = "broker")]
mod broker;
mod error;
mod finish;
#[cfg(feature = "embedded")]
mod folder;
pub mod fork;
mod gate;
mod permit;
pub mod runtime;
mod source;

pub use batch::Batch;
#[cfg(feature = "broker")]
pub use broker::broker_policies;
pub use error::{Error, ErrorKind};
pub use gate::{Decision, Gate, WAIT_MAX};
pub use permit::{Admitted, Permit};
pub use source::Source;

pub use tollgate::clock::ManualClock;
pub use tollgate::core::Wait;
pub use tollgate::gate::BoxFuture;
pub use tollgate::incident::Incident;
pub use tollgate::spec::PolicySpec;
pub use tollgate::{Clock, Costs, Denial, Policy, Span, Standing, Timestamp};
pub use tollgate_protocol::json::{AcquireRequest, Charge, ChargeActual, ChargeRequest};
