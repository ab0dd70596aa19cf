//! The server over real connections, on a clock that the tests move.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test fails by panicking")]

mod audit;
mod bounds;
mod client;
mod dashboard;
mod denials;
mod disconnects;
mod envoy;
mod errors;
mod forward_auth;
mod grpc;
mod grpc_keys;
mod grpc_limits;
mod health;
mod history;
mod http_api;
mod joint;
mod joint_records;
mod keys;
mod openapi;
mod overrides;
mod plans;
mod proxies;
mod ratelimit;
mod resp;
mod resp_administration;
mod resp_clients;
mod resp_throttle;
mod shutdown;
mod tenants;
mod tls;
mod translations;
mod upstream;
mod violations;
mod waiting;
