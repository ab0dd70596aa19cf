//! The server over real connections, on a clock that the tests move.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test fails by panicking")]

mod audit;
mod calls;
mod client;
mod denials;
mod envoy;
mod errors;
mod forward;
mod grpc;
mod grpc_keys;
mod grpc_limits;
mod health;
mod keys;
mod leaving;
mod limits;
mod openapi;
mod overrides;
mod pages;
mod proxies;
mod relay;
mod resp;
mod resp_clients;
mod resp_manage;
mod resp_throttle;
mod shutdown;
mod tls;
mod tokens;
mod translations;
mod upstream;
mod violations;
mod waiting;
