//! The server over real connections, on a clock that the tests move.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test fails by panicking")]

mod audit;
mod calls;
mod client;
mod envoy;
mod errors;
mod grpc;
mod grpc_keys;
mod keys;
mod limits;
mod overrides;
mod pages;
mod resp;
mod shutdown;
mod tls;
mod tokens;
mod violations;
mod waiting;
