//! The state of a gateway, for a dashboard.

use tollgate::{Span, Timestamp};

/// The state of a gateway at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewaySnapshot {
    /// Calls that wait for admission.
    pub waiting_calls: usize,
    /// For how long the oldest of them has waited.
    pub oldest_wait: Option<Span>,
    /// Bytes of the request bodies that are held.
    pub held_bytes: usize,
    /// Calls at upstreams.
    pub in_flight: usize,
    /// One entry per upstream and model that a route serves there.
    pub deployments: Vec<DeploymentSnapshot>,
}

/// A model at an upstream. The counts are since the gateway started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeploymentSnapshot {
    /// The name of the upstream.
    pub upstream: String,
    /// The name of its dialect.
    pub dialect: &'static str,
    /// The configured name or pattern of the model.
    pub model: String,
    /// Calls in flight.
    pub in_flight: u64,
    /// Calls that were sent.
    pub calls: u64,
    /// Calls that waited before they were sent.
    pub waited_calls: u64,
    /// How long they waited, all together.
    pub waited: Span,
    /// Input tokens that the provider reported.
    pub input_tokens: u64,
    /// Output tokens that the provider reported.
    pub output_tokens: u64,
    /// The mean time to the head of the response.
    pub first_byte: Option<Span>,
    /// Calls that the provider refused although they were admitted.
    pub refused: u64,
    /// Until when no calls are sent because the provider refused one, is overloaded or cannot be reached.
    pub closed_until: Option<Timestamp>,
}
