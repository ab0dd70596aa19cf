#![doc = include_str!("../README.md")]
#![deny(clippy::float_arithmetic)]

mod answer;
mod ask;
mod backoff;
pub mod bounds;
pub mod codec;
mod costs;
mod decide;
mod entry;
mod error;
mod id;
mod joint;
mod older;
mod operation;
mod policy;
mod rule;
mod settle;
mod standing;
mod time;
mod time_text;

pub use answer::{
    ChargeStandings, Decision, Denial, JointDenial, Permit, RefusedLimit, humanize_ahead,
    humanize_wait,
};
pub use ask::{Ask, Charge, Charges};
pub use backoff::{Backoff, PER_MILLE};
pub use costs::{Amounts, Costs};
pub use decide::{
    ChargeRecord, Grant, Refusal, Shortage, SlotWait, Verdict, Wait, acquire, commit, decide,
};
pub use entry::{Arrears, Entry, LocalSpending};
#[doc(hidden)]
pub use entry::{Part, Parts, SettledPart, SlotPart};
pub use error::{Error, ErrorKind};
pub use id::{IdChange, Known, Remembered};
pub use joint::{Joint, JointDecision};
pub use older::apply_older;
pub use operation::{Applied, Change, JoinedOutcome, Operation, Outcome, PartOperation, apply};
pub use policy::{
    Borders, Derived, Headroom, Limit, OnStoreFailure, Override, PlanSubjects, Policy,
    PolicyBuilder, REQUESTS, SubjectClash, check_subject, check_subjects, is_pattern,
    matches_pattern,
};
pub use rule::{CalendarWindow, Concurrency, Period, Refill, RollingWindow, Rule, TokenBucket};
pub use settle::{Charged, charge, close_until, release, renew, settle};
pub use standing::{Standing, standings};
pub use time::{Span, Timestamp};
pub use time_text::TimeText;
