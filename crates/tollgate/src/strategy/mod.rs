//! Strategies: gates around a shared gate that trade exactness, speed and round trips in different ways.

mod leased;
mod optimistic;

pub use leased::{Leased, LeasedOptions, SUBJECTS_MAX_DEFAULT};
pub use optimistic::{Optimistic, OptimisticOptions, over_issue_bound};
