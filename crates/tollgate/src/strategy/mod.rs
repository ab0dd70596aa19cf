//! Strategies: gates around a shared gate that trade exactness, speed and round trips in different ways.

mod optimistic;

pub use optimistic::{Optimistic, OptimisticOptions, over_issue_bound};
