//! The store on a real PostgreSQL server: what it promises, what it refuses, and what a crash may do to it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
#![allow(clippy::print_stdout, reason = "a child process reports to its parent")]

mod audit;
mod batching;
mod child;
mod clocks;
mod conformance;
mod contention;
mod errors;
mod faults;
mod ids;
mod joint;
mod open;
mod overrides;
mod permits;
mod privileges;
mod proxy;
mod quota;
mod races;
mod refunds;
mod statements;
mod upgrade;
mod version_3;
mod version_4;

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::{Ask, Decision, Gate, GateExt, Limit, Policy, RollingWindow, Span, TokenBucket};
use tollgate_postgres::{Options, Postgres};
use tollgate_testkit::servers;

/// A database that no other test uses.
struct TestDatabase {
    server: servers::PostgresAddress,
    /// The server, if no other test uses it.
    own: Option<servers::Postgres>,
    name: String,
}

impl TestDatabase {
    /// A database on the server that all tests share.
    fn new() -> Self {
        let server = servers::Postgres::shared().unwrap();
        let name = server.database().unwrap();
        Self { server, own: None, name }
    }

    /// A database on a server that no other test uses.
    fn alone() -> Self {
        let own = servers::Postgres::start().unwrap();
        let name = own.database().unwrap();
        Self { server: own.clone(), own: Some(own), name }
    }

    /// The server of a database that is [`alone`](Self::alone), to stop, kill and restart it.
    fn own(&mut self) -> &mut servers::Postgres {
        self.own.as_mut().expect("the server is not shared")
    }

    fn url(&self) -> String {
        self.server.url(&self.name)
    }

    fn options(&self) -> Options {
        Options::new(&self.url()).unwrap()
    }

    async fn gate(&self) -> Postgres {
        Postgres::open(self.options()).await.unwrap()
    }

    async fn gate_by(&self, clock: &ManualClock) -> Postgres {
        Postgres::open(self.options().test_clock(Arc::new(clock.clone()))).await.unwrap()
    }

    /// What `psql` prints for `sql`.
    fn psql(&self, sql: &str) -> String {
        self.server.psql(&self.name, sql).unwrap()
    }

    /// What `psql` complains about.
    fn psql_fails(&self, sql: &str) -> String {
        self.server.psql(&self.name, sql).unwrap_err().to_string()
    }
}

impl Drop for TestDatabase {
    /// Hundreds of databases would fill the disk.
    fn drop(&mut self) {
        if self.own.is_none() {
            let sql = format!("DROP DATABASE {} WITH (FORCE)", self.name);
            drop(self.server.psql("postgres", &sql));
        }
    }
}

/// Three limits on two units, as a provider of models has them.
fn gemini() -> Policy {
    let minute = Span::from_mins(1);
    Policy::new(
        "gemini",
        [
            Limit::new("rpm", "requests", RollingWindow::new(5, minute)),
            Limit::new("tpm", "tokens", TokenBucket::per_minute(250_000)),
            Limit::new(
                "rpd",
                "requests",
                RollingWindow::new(25, Span::from_hours(24)).resolution(24),
            ),
        ],
    )
    .unwrap()
}

/// At most `limit` in any hour.
fn hourly(limit: u64) -> Policy {
    let rule = RollingWindow::new(limit, Span::from_hours(1));
    Policy::new("hourly", [Limit::new("rph", "requests", rule)]).unwrap()
}

async fn acquire(gate: &impl Gate, policy: &Policy, subject: &str) -> Decision {
    gate.acquire(&Ask::new(policy, subject)).await.unwrap()
}

async fn used(gate: &impl Gate, policy: &Policy, subject: &str) -> u64 {
    gate.standing(policy, subject).await.unwrap()[0].used
}
