//! Real servers for tests, benchmarks and `cargo xtask services`.
//!
//! Each is a child process on private loopback ports in a temporary folder. It is started on demand, ends with the value
//! that stands for it, and can be stopped, paused, killed and started again where it was, for fault tests. A server that
//! is not installed is an error that says how to install it; a test never passes by skipping.
//!
//! ```no_run
//! use tollgate_testing::servers::Redis;
//!
//! let mut redis = Redis::start()?;
//! println!("{}", redis.url());
//! redis.process().kill()?;
//! redis.process().restart()?;
//! # Ok::<(), tollgate_testing::servers::Fault>(())
//! ```

mod authority;
mod clients;
pub mod dynamodb;
mod envoy;
mod inbox;
mod lossy;
mod ministack;
mod ports;
mod postgres;
mod process;
mod program;
mod proxies;
mod redis;
mod schemathesis;
mod snippet;

pub use authority::Authority;
pub use clients::{node, python};
pub use dynamodb::DynamoDb;
pub use envoy::Envoy;
pub use inbox::Inbox;
pub use lossy::Lossy;
pub use ministack::Ministack;
pub use ports::{Port, free_ports};
pub use postgres::Postgres;
pub use process::{Process, eventually};
pub use program::{Fault, Program, run};
pub use proxies::Proxy;
pub use redis::{Append, Redis, RedisCluster, RedisSentinel};
pub use schemathesis::{schemathesis, violations};
