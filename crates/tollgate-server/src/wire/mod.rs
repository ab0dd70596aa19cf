//! The bodies of every request and response.
//!
//! They are plain structures with `serde`, apart from the HTTP code, so that whoever prints JSON for a program (the
//! server, the command line with `--json`) prints the same JSON, and a client reads what the server wrote.
//!
//! Rules that hold for all of them: times are RFC 3339 in UTC; lengths of time for programs are whole milliseconds,
//! rounded up, and those for people read like `2h 15m`; a request with an unknown field is refused, because a
//! misspelt `costs` would otherwise cost nothing; a member of an answer that does not apply is left out, except in
//! `limits` and `policies`, whose rows all have the same members.

#[cfg(feature = "serve")]
mod admission;
mod answer;
mod audit;
mod forward;
mod policy;
mod problem;
mod request;
mod stats;
pub(crate) mod text;
mod translation;

#[cfg(feature = "serve")]
pub(crate) use admission::admission;
#[cfg(feature = "serve")]
pub(crate) use answer::detail_of;
pub use answer::{
    Admitted, Answer, BatchResponse, Changed, Denied, LimitStanding, Renewed, StandingResponse,
    counted,
};
pub use audit::{AuditQuery, AuditRecord, AuditResponse, LimitedSubject, TopQuery, TopResponse};
pub use forward::ForwardAuthQuery;
#[cfg(feature = "serve")]
pub(crate) use policy::window_secs;
pub use policy::{
    FROM_API, FROM_FILE, LimitDescription, OverrideDescription, PoliciesResponse, PolicyDescription,
};
pub use problem::{
    KIND_TRAILER, MISDIRECTED, PROBLEM_JSON, Problem, QUOTA_EXCEEDED, caller_text, kind_name,
    kind_of, status_of,
};
#[cfg(feature = "serve")]
pub(crate) use problem::{KINDS_MAX, kind_place};
pub use request::{
    AcquireRequest, BatchRequest, ChargeRequest, CloseRequest, OverrideRequest, PermitRequest,
    SettleRequest, StandingQuery, ViolationRequest, named_costs,
};
pub use stats::{AuditStats, LatencyStats, PolicyCounts, StatsResponse, StoreHealth};
pub use translation::{CancelRequest, GlossaryTerm, Translation, TranslationRequest};
