//! Strategies: gates around a shared gate that change when it is asked, and trade exactness, speed and round trips in
//! different ways.

mod fallback;
mod foreign_permit;
mod leased;
mod optimistic;
mod over_issue;
mod random;
mod resend;

pub use fallback::{Fallback, FallbackOptions, ShareStart};
pub use leased::{Leased, LeasedOptions, SUBJECTS_MAX_DEFAULT};
pub use optimistic::{Optimistic, OptimisticOptions, over_issue_bound};
pub use random::RandomSource;
pub use resend::{Resend, ResendOptions};
