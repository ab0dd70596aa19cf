//! The store on a real PostgreSQL server: what it promises, what it refuses, and what a crash may do to it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
#![allow(clippy::print_stdout, reason = "a child process reports to its parent")]

mod audit;
mod child;
mod clocks;
mod conforms;
mod contention;
mod faults;
mod free;
mod ids;
mod numbers;
mod open;
mod overrides;
mod permits;
mod privileges;
mod proxy;
mod quota;
mod races;
mod refused;
mod together;
mod upgrade;
mod version_3;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tollgate::{Ask, Decision, Gate, Limit, ManualClock, Policy, RollingWindow, Span, TokenBucket};
use tollgate_postgres::{Options, Postgres};
use tollgate_testing::servers;

/// A database of its own on the server that the tests of one process share. The server ends with the last of them.
struct Desk {
    server: Arc<servers::Postgres>,
    name: String,
}

static SERVER: Mutex<Weak<servers::Postgres>> = Mutex::new(Weak::new());

impl Desk {
    fn new() -> Self {
        let mut shared = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
        let server = shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(servers::Postgres::start().unwrap());
            *shared = Arc::downgrade(&server);
            server
        });
        let name = server.database().unwrap();
        Self { server, name }
    }

    /// A database on a server that no other test uses.
    fn alone() -> Self {
        let server = Arc::new(servers::Postgres::start().unwrap());
        let name = server.database().unwrap();
        Self { server, name }
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
        Postgres::open(self.options().decide_by(Arc::new(clock.clone()))).await.unwrap()
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
