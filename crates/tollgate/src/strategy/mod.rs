//! Strategies: gates around a shared gate that change when it is asked, and trade exactness, speed and round trips in
//! different ways.

mod chance;
mod elsewhere;
mod fallback;
mod leased;
mod optimistic;
mod over_issue;
mod resend;

pub use chance::Chance;
pub use fallback::{FIRST_PROBE, Fallback, FallbackSettings, FallbackStart};
pub use leased::{Leased, LeasedOptions, SUBJECTS_MAX_DEFAULT};
pub use optimistic::{Optimistic, OptimisticOptions, over_issue_bound};
pub use resend::{Attempts, Resend};
