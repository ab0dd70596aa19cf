//! The Redis store on real servers, which `tollgate_testkit::servers` starts.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]
#![allow(clippy::print_stdout, reason = "a child process reports to its parent")]

mod agreement;
mod clocks;
mod cluster;
mod conformance;
mod contention;
mod failover;
mod faults;
mod formats;
mod ids;
mod joint;
mod layout;
mod lost_replies;
mod overrides;
mod refunds;
mod sabotage;
mod sentinel;
mod settled;
mod storage;
mod tls;
mod windows;

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::{
    Ask, Decision, Error, Gate, GateExt, Limit, Permit, Policy, RollingWindow, Span, TokenBucket,
};
use tollgate_redis::{Options, Redis};
use tollgate_testkit::servers;

/// A server on which nothing else runs, and which keeps nothing on disk.
fn server() -> servers::Redis {
    servers::Redis::start().unwrap()
}

/// A gate that decides at the time of `clock`.
async fn open_at(options: Options, clock: &ManualClock) -> Redis {
    connect(options.test_clock(Arc::new(clock.clone()))).await
}

/// A gate that decides at the server's time, with patience for a machine that is busy with other tests.
async fn connect(options: Options) -> Redis {
    Redis::open(options.attempt_timeout(Span::from_secs(20))).await.unwrap()
}

/// A gate that has no patience, and that a busy machine may let connect only after a while.
async fn connect_hasty(options: Options) -> Redis {
    loop {
        if let Ok(gate) = Redis::open(options.clone()).await {
            return gate;
        }
    }
}

/// At most `limit` requests in any 24 hours, exactly.
fn daily(limit: u64) -> Policy {
    let rule = RollingWindow::new(limit, Span::from_hours(24));
    Policy::new("daily", [Limit::new("rpd", "requests", rule)]).unwrap()
}

/// A bucket of `capacity` that gets one token back in a day.
fn slow_bucket(capacity: u64) -> Policy {
    let rule = TokenBucket::per(1, Span::from_hours(24)).burst(capacity);
    Policy::new("bucket", [Limit::new("burst", "requests", rule)]).unwrap()
}

fn admitted(decision: Decision) -> Permit {
    decision.into_permit().expect("admitted")
}

async fn acquire(gate: &impl Gate, policy: &Policy, subject: &str) -> Result<bool, Error> {
    Ok(gate.acquire(&Ask::new(policy, subject)).await?.is_admitted())
}

async fn used(gate: &impl Gate, policy: &Policy, subject: &str) -> u64 {
    gate.standing(policy, subject).await.unwrap()[0].used
}

/// How often a call may fail after a server came back; there is no waiting in between.
const TRIES_MAX: usize = 200;

/// Asks for the standing until the server that came back answers.
async fn used_once_back(gate: &impl Gate, policy: &Policy, subject: &str) -> u64 {
    for _ in 0..TRIES_MAX {
        if let Ok(standing) = gate.standing(policy, subject).await {
            return standing[0].used;
        }
        tokio::task::yield_now().await;
    }
    panic!("the connection did not come back");
}
