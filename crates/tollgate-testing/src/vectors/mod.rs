//! The golden vectors: stories with every answer written down, run on every store.
//!
//! Each file in `vectors/` is one [`Vector`]: a policy, and steps with the answer and the standings that must follow.
//! Permits are referred to by the step that gave them, and nothing shows how a store keeps its state. All times are
//! microseconds since the epoch on the deciding clock, which the test sets.

mod format;
mod policies;
mod run;

pub use format::{
    Expected, LimitForm, Operation, PolicyForm, RuleForm, Stand, Step, Vector, load_all,
};
pub(crate) use run::gave_back_less;
pub use run::{fill, run, run_model, run_with_bounded_refunds};
