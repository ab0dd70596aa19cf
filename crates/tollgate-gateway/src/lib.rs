#![doc = include_str!("../README.md")]

mod admission;
mod body;
pub mod bounds;
mod calibration;
mod call_timer;
mod closing;
mod config;
mod connect_problem;
mod deployment;
mod estimate;
mod exchange;
mod gateway;
mod handler;
mod headers;
mod observe;
mod open_call;
mod options;
mod refusal;
mod relay;
mod send_state;
mod snapshot;
mod template;
mod upstream;
mod waiting_calls;

pub use connect_problem::ConnectProblem;
pub use gateway::Gateway;
pub use observe::{Ending, GatewayEvent, GatewayObserver, RefusalReason};
pub use options::{ChargeTemplate, GatewayKey, GatewayOptions, Route, Secret, Upstream};
pub use snapshot::{DeploymentSnapshot, GatewaySnapshot};
pub use template::Template;
