#![doc = include_str!("../README.md")]

#[cfg(feature = "serve")]
mod app;
#[cfg(feature = "serve")]
pub mod bounds;
#[cfg(feature = "serve")]
mod closing;
#[cfg(feature = "serve")]
mod dashboard;
#[cfg(feature = "serve")]
mod grpc;
#[cfg(feature = "serve")]
mod http;
pub mod proto;
#[cfg(feature = "serve")]
mod resp;
#[cfg(feature = "serve")]
mod server;
#[cfg(feature = "serve")]
mod stats;
pub mod token;
pub mod wire;

#[cfg(feature = "serve")]
pub use app::App;
#[cfg(feature = "serve")]
pub use grpc::envoy::{EnvoyMap, EnvoyRule};
#[cfg(feature = "serve")]
pub use server::{Drained, Listeners, run};
