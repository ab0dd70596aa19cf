#![doc = include_str!("../README.md")]

pub mod bounds;
mod gateway;
mod observe;
mod options;
mod snapshot;

pub use gateway::Gateway;
pub use observe::{Ending, GatewayEvent, GatewayObserver, NoObserver, RefusalReason};
pub use options::{ChargeTemplate, GatewayKey, GatewayOptions, Route, Secret, Upstream};
pub use snapshot::{DeploymentSnapshot, GatewaySnapshot};
