#![doc = include_str!("../README.md")]

mod app;
pub mod bounds;
mod closing;
mod dashboard;
mod http;
mod resp;
mod server;
mod stats;
pub mod token;
pub mod wire;

pub use app::{App, MetricsPage};
pub use server::{Drained, Listeners, run};
