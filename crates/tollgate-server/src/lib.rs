#![doc = include_str!("../README.md")]

mod access;
mod app;
mod audit;
pub mod bounds;
mod closing;
mod dashboard;
mod http;
pub mod keys;
mod resp;
mod server;
mod stats;
mod tls;
pub mod token;
pub mod wire;

pub use app::{App, MetricsPage};
pub use audit::{AuditSettings, Recording};
pub use server::{Drained, Listeners, run};
pub use tls::{Tls, TlsFiles};
