//! What a call answered: the body of the HTTP API, whoever made it.

use serde::Serialize;
use tollgate::incident::Incident;
use tollgate_server::wire::{
    Answer, Changed, OverrideDescription, PoliciesResponse, Renewed, StandingResponse,
};

/// The answer to a [`Call`](crate::intent::Call).
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Reply {
    /// To acquire.
    Decided(Answer),
    /// To settle, release and reset.
    Changed(Changed),
    /// To renew.
    Renewed(Renewed),
    /// To standing.
    Standing(StandingResponse),
    /// To violation.
    Incident(Box<Incident>),
    /// To policies.
    Policies(PoliciesResponse),
    /// To policies override.
    Override(OverrideDescription),
}

impl Reply {
    /// Whether this is a denial.
    pub(crate) const fn is_denied(&self) -> bool {
        matches!(self, Self::Decided(Answer::Denied(_)))
    }
}
