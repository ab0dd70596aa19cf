//! The binary as people and programs use it: each test runs it in a folder of its own.

mod audit;
mod calls;
mod clients;
mod config;
mod dashboard;
mod degraded;
mod deploy;
mod dynamodb;
mod folder;
mod help;
mod keys;
mod killed;
mod logs;
mod mistakes;
mod outages;
mod overrides;
mod plan;
mod postgres;
mod processes;
mod redis;
mod reload;
mod serve;
mod stores;
mod strategies;
mod tls;
mod top;
