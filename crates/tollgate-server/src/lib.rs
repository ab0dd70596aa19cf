#![doc = include_str!("../README.md")]

#[cfg(feature = "serve")]
mod access;
#[cfg(feature = "serve")]
mod app;
#[cfg(feature = "serve")]
mod audit;
pub mod bounds;
#[cfg(feature = "serve")]
mod closing;
#[cfg(feature = "serve")]
mod dashboard;
#[cfg(feature = "serve")]
mod direct;
#[cfg(feature = "serve")]
mod failures;
#[cfg(fuzzing)]
pub mod fuzz;
#[cfg(feature = "serve")]
mod grpc;
#[cfg(feature = "serve")]
mod http;
#[cfg(feature = "serve")]
pub mod keys;
#[cfg(feature = "serve")]
pub mod overrides;
pub mod proto;
#[cfg(feature = "serve")]
mod resp;
#[cfg(feature = "serve")]
mod rules;
#[cfg(feature = "serve")]
mod server;
#[cfg(feature = "serve")]
mod stats;
#[cfg(feature = "serve")]
mod subject;
#[cfg(feature = "serve")]
mod tls;
pub mod token;
#[cfg(feature = "serve")]
mod translations;
pub mod wire;
#[cfg(feature = "serve")]
pub use app::{App, MetricsPage, Settings};
#[cfg(feature = "serve")]
pub use audit::{AuditSettings, Recording};
#[cfg(feature = "serve")]
pub use direct::{Direct, Reply, Request};
#[cfg(feature = "serve")]
pub use grpc::envoy::{EnvoyMap, EnvoyRule};
#[cfg(feature = "serve")]
pub use resp::THROTTLE_POLICY;
#[cfg(feature = "serve")]
pub use rules::check_policy_name;
#[cfg(feature = "serve")]
pub use server::{Drained, Listeners, run};
#[cfg(feature = "serve")]
pub use tls::{Tls, TlsFiles};
#[cfg(feature = "serve")]
pub use translations::Translations;
