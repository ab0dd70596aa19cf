//! The gates of this crate: the shared suite on each, and what each adds.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed expectation is a failed test")]

mod audit;
mod chance;
mod conformance;
mod fallback;
mod faulty;
mod layer;
mod leased;
mod memory;
mod optimistic;
mod over_issue;
mod overrides;
mod queue;
mod resend;
mod retry;
mod strategies_joint;
mod waits;
mod wrappers;

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::policy::Rule;
use tollgate::{Limit, Memory, Policy};

/// A gate in memory and the clock that it decides by.
fn memory() -> (Arc<Memory>, ManualClock) {
    let clock = ManualClock::new();
    (Arc::new(Memory::with(Arc::new(clock.clone()), 10_000)), clock)
}

/// A policy with one limit on requests.
fn policy(rule: impl Into<Rule>) -> Policy {
    Policy::new("test", [Limit::new("only", "requests", rule)]).expect("the numbers are in bounds")
}

/// Lets every task run until nobody has anything to do.
async fn settle_down() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}
