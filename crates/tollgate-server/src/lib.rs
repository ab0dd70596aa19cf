#![doc = include_str!("../README.md")]

mod access;
mod app;
mod audit;
pub mod bounds;
mod dashboard;
mod error_log;
#[cfg(fuzzing)]
pub mod fuzz;
mod grpc;
mod handler;
mod history;
mod http;
pub mod jwt;
pub mod keys;
mod live_policies;
pub mod overrides;
mod proxy_subject;
mod resp;
mod server;
mod shutdown_clock;
mod stats;
mod tls;
mod translations;

pub use app::{App, MetricsPage, ServerOptions};
pub use audit::{AuditOptions, Recording};
pub use grpc::envoy::{
    EnvoyAnswer, EnvoyMap, EnvoyRule, LimitStats, RateLimitOptions, RateLimitPages, RateLimits,
};
pub use handler::{HttpHandler, HttpRequest, HttpResponse};
pub use http::{Busy, ConnectionOptions, generate_request_id, serve_connection};
pub use live_policies::check_policy_name;
pub use resp::THROTTLE_POLICY;
pub use server::{Connection, Drained, Listeners, MountedProtocol, run};
pub use tls::{Tls, TlsFiles};
pub use translations::Translations;
