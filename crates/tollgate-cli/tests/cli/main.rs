//! The binary as people and programs use it: each test runs it in a folder of its own.

mod audit;
mod broker;
mod calls;
mod clients;
mod config;
mod dashboard;
mod degraded;
mod drs;
mod dynamodb;
mod folder;
mod grpc_clients;
mod help;
mod keys;
mod lambda;
mod mistakes;
mod outages;
mod plan;
mod postgres;
mod processes;
mod redis;
mod serve;
mod stores;
mod strategies;
mod tls;
mod translate;
