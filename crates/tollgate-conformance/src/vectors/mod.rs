//! The golden vectors: scenarios with every expected result, run on every store.
//!
//! Each file in `vectors/` is one [`Vector`]: a policy, and steps with the expected reply and standings. A permit is named by
//! the step that gave it. Times are microseconds since the epoch on the deciding clock, which the test sets.

mod format;
mod policies;
mod run;

pub use format::{
    Expected, ExpectedStanding, LimitForm, Operation, PolicyForm, RuleForm, Step, Vector, load,
    load_all,
};
pub(crate) use format::{read, read_all};
pub use run::{fill, run, run_model, run_with_bounded_refunds};
pub(crate) use run::{gave_back_less, kind_name};
