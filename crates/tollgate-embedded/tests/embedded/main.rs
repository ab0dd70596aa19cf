//! The durable store: what it keeps, what it refuses, and what a crash may do to it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
#![allow(clippy::print_stdout, reason = "a child process reports to its parent")]

mod audit;
mod bounds;
mod child;
mod clocks;
mod conformance;
mod crash;
mod damage;
mod durability;
mod expiry;
mod failures;
mod formats;
mod joint;
mod locking;
mod overrides;

use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;
use tollgate::clock::ManualClock;
use tollgate::{
    Ask, Clock, Gate, GateExt, Limit, Policy, RollingWindow, Span, Standing, TokenBucket,
};
use tollgate_embedded::{Embedded, Options};

/// A data folder that does not exist yet, on a manual clock.
struct TestFolder {
    clock: ManualClock,
    root: TempDir,
}

impl TestFolder {
    fn new() -> Self {
        Self { clock: ManualClock::new(), root: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.root.path().join("tollgate-data")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    fn options(&self) -> Options {
        Options::new().clock(Arc::new(self.clock.clone()))
    }

    fn try_open(&self, options: Options) -> Result<Embedded, tollgate::Error> {
        Embedded::open(&self.path(), options)
    }

    fn open(&self) -> Embedded {
        self.try_open(self.options()).unwrap()
    }

    /// Rows in the database, as another program sees them.
    fn rows(&self) -> u32 {
        let database = self.database();
        database.query_row("SELECT count(*) FROM entries", [], |row| row.get(0)).unwrap()
    }

    fn database(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.file("entries.sqlite")).unwrap()
    }
}

/// At most `limit` requests in any 24 hours.
fn daily(limit: u64) -> Policy {
    let rule = RollingWindow::new(limit, Span::from_hours(24)).resolution(24);
    Policy::new("daily", [Limit::new("rpd", "requests", rule)]).unwrap()
}

/// One request per second and a thousand tokens at once.
fn bucket() -> Policy {
    Policy::new(
        "bucket",
        [Limit::new("burst", "requests", TokenBucket::per_second(1).burst(1_000))],
    )
    .unwrap()
}

async fn admitted(gate: &impl Gate, policy: &Policy, subject: &str) -> bool {
    gate.acquire(&Ask::new(policy, subject)).await.unwrap().is_admitted()
}

async fn standing(gate: &impl Gate, policy: &Policy, subject: &str) -> Standing {
    gate.standing(policy, subject).await.unwrap().remove(0)
}

async fn used(gate: &impl Gate, policy: &Policy, subject: &str) -> u64 {
    standing(gate, policy, subject).await.used
}

/// Moves the clock of `folder` forward.
fn pass(folder: &TestFolder, span: Span) {
    folder.clock.set(folder.clock.now() + span);
}
