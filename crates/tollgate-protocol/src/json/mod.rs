//! Request and response bodies of the HTTP API.
//!
//! They are plain `serde` structures without HTTP code: the server and `--json` of the command line print the same JSON,
//! and a client reads what the server wrote.
//!
//! Conventions: times are RFC 3339 in UTC. Durations for programs are whole milliseconds, rounded up; durations for
//! people read like `2h 15m`. A request with an unknown field is refused, because a misspelt `costs` would otherwise
//! cost nothing. A response omits members that do not apply, except in `limits` and `policies`, whose rows all have the
//! same members.

mod access;
mod admission;
mod audit;
mod forward_auth;
mod history;
mod policy;
mod problem;
mod queues;
mod request;
mod response;
mod serde_as;
mod stats;
mod translation;

pub use access::AccessResponse;
pub use admission::admission;
pub use audit::{
    AuditCharge, AuditQuery, AuditRecord, AuditResponse, LimitedSubject, TopQuery, TopResponse,
};
pub use forward_auth::ForwardAuthQuery;
pub use history::{
    HistoryQuery, HistoryResponse, HistoryStep, LimitHistory, LimitUsage, PolicyHistory,
    SubjectHistoryResponse,
};
pub use policy::{
    FROM_API, FROM_FILE, LimitDescription, OverrideDescription, PlanAssignment, PlanDescription,
    PlanNumbers, PlanSubject, PoliciesResponse, PolicyDescription, window_secs,
};
pub use problem::{
    KIND_TRAILER, KINDS_MAX, MISDIRECTED, PROBLEM_JSON, Problem, QUOTA_EXCEEDED, caller_text,
    kind_index, kind_name, kind_of, status_of,
};
pub use queues::{QueueState, QueuesResponse, TenantState};
pub use request::{
    AcquireRequest, AskPolicies, BatchRequest, Charge, ChargeActual, ChargeRequest, CloseRequest,
    OverrideRequest, PermitRequest, PlanRequest, PolicyRequest, SettleRequest, StandingQuery,
    ViolationRequest, named_costs,
};
pub(crate) use response::is_degraded;
pub use response::{
    AcquireResponse, Admitted, BatchResponse, Changed, ChargeStanding, Denied, LimitStanding,
    RefusedLimit, Renewed, StandingResponse, counted, detail_of,
};
pub use stats::{
    AuditStats, DeploymentStats, GatewayStats, LatencyStats, PolicyCounts, StatsResponse,
    StoreHealth,
};
pub use translation::{
    CancelRequest, GlossaryTerm, Translation, TranslationRequest, TranslationsResponse,
};
