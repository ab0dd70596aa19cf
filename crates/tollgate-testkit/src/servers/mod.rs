//! Real servers for tests, benchmarks and `cargo xtask services`.
//!
//! Each server is a child process on private loopback ports in a temporary folder. It stops when its value is dropped, and
//! can be stopped, paused, killed and restarted in place. A server that is not installed is an error, never a skipped
//! test.
//!
//! ```no_run
//! use tollgate_testkit::servers::Redis;
//!
//! let mut redis = Redis::start()?;
//! println!("{}", redis.url());
//! redis.process().kill()?;
//! redis.process().restart()?;
//! # Ok::<(), tollgate_testkit::servers::Fault>(())
//! ```

mod authority;
mod clients;
mod connect_proxy;
pub mod dynamodb;
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
pub mod sdks;
mod shared;
mod snippet;
mod tls_front;

pub use authority::Authority;
pub use clients::{node, python};
pub use connect_proxy::ConnectProxy;
pub use dynamodb::DynamoDb;
pub use inbox::Inbox;
pub use lossy::Lossy;
pub use ministack::Ministack;
pub use ports::{Port, free_ports};
pub use postgres::{Postgres, PostgresAddress};
pub use process::{Process, eventually};
pub use program::{Fault, Program, run};
pub use proxies::Proxy;
pub use redis::{Append, Redis, RedisCluster, RedisSentinel};
pub use schemathesis::{schemathesis, violations};
pub use shared::unique_name;
pub use tls_front::TlsFront;
