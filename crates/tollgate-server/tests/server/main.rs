//! The server over real connections, on a clock that the tests move.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test fails by panicking")]

mod audit;
mod calls;
mod client;
mod errors;
mod keys;
mod limits;
mod pages;
mod resp;
mod shutdown;
mod tls;
mod tokens;
mod violations;
mod waiting;
