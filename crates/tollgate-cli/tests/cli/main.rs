//! The binary as people and programs use it: each test runs it in a folder of its own.

mod assembled;
mod audit;
mod backoff;
mod broker;
mod calls;
mod clients;
mod clocks;
#[cfg(feature = "translate")]
mod cloud;
mod config;
mod convert;
mod dashboard;
mod dashboard_history;
mod degraded;
mod deploy;
#[cfg(feature = "drs")]
mod drs;
mod dynamodb;
mod envoy_ratelimit;
mod folder;
#[cfg(feature = "gateway")]
mod gateway;
mod grpc_clients;
mod help;
mod http;
mod jwt;
mod keys;
mod killed;
#[cfg(feature = "translate")]
mod lambda;
#[cfg(feature = "translate")]
mod lambda_broker;
mod logs;
mod mistakes;
mod outages;
mod overrides;
mod patterns;
mod plan;
mod plans;
mod policies_by_api;
mod postgres;
mod processes;
mod redis;
mod reload;
mod running;
mod serve;
#[cfg(feature = "translate")]
mod state_machine;
mod stores;
mod strategies;
#[cfg(feature = "drs")]
mod templates;
mod tenants;
mod throttle;
mod tls;
mod top;
mod transfer;
#[cfg(feature = "translate")]
mod translate;
mod waits;
