//! Events for telemetry.

use std::fmt::Debug;

use tollgate::{Costs, Span, Timestamp};
use tollgate_providers::Dialect;

use crate::connect_problem::ConnectProblem;

/// Receives the events of a gateway. Called on the path of every call, so it must not block.
pub trait GatewayObserver: Debug + Send + Sync + 'static {
    /// Receives `event`.
    fn observe(&self, event: &GatewayEvent<'_>);
}

/// What happened. Names of models are configured names or patterns, so there are few of them.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum GatewayEvent<'a> {
    /// A call was refused before it was sent.
    Refused {
        /// The API of the client.
        dialect: Option<Dialect>,
        /// The name of the caller's key, if it is known.
        key: Option<&'a str>,
        /// The model, if it is known.
        model: &'a str,
        /// Why.
        reason: RefusalReason,
    },
    /// A call was admitted.
    Admitted {
        /// The name of the caller's key.
        key: &'a str,
        /// The upstream that it goes to.
        upstream: &'a str,
        /// The model.
        model: &'a str,
        /// How long it waited.
        waited: Span,
    },
    /// The head of the response arrived.
    FirstByte {
        /// The upstream.
        upstream: &'a str,
        /// The model.
        model: &'a str,
        /// The time since the call was sent.
        after: Span,
    },
    /// A call that was sent ended.
    Finished {
        /// The name of the caller's key.
        key: &'a str,
        /// The upstream.
        upstream: &'a str,
        /// The model.
        model: &'a str,
        /// The status of the response; `None` without one.
        status: Option<u16>,
        /// How it ended.
        ending: Ending,
        /// What it was settled to, in the units that the usage of the upstream is mapped to; empty where the estimate is kept.
        actual: &'a Costs,
        /// The time since the call was sent.
        took: Span,
    },
    /// A provider refused a call that was admitted, or is overloaded; the model is not asked for there until `until`.
    Closed {
        /// The upstream.
        upstream: &'a str,
        /// The model.
        model: &'a str,
        /// The status of the response.
        status: u16,
        /// Until when.
        until: Timestamp,
    },
    /// An upstream could not be reached; the model is not asked for there until `until`. Reported once for each such pause.
    Unreachable {
        /// The upstream.
        upstream: &'a str,
        /// The model.
        model: &'a str,
        /// Why.
        problem: &'a ConnectProblem,
        /// Until when.
        until: Timestamp,
    },
    /// A provider reports another limit than the policy has. Reported once for each limit and number.
    LimitDiffers {
        /// The upstream.
        upstream: &'a str,
        /// The model.
        model: &'a str,
        /// The policy of the charge for the upstream.
        policy: &'a str,
        /// The unit.
        unit: &'a str,
        /// The limit of the policy.
        ours: u64,
        /// The limit that the provider reports.
        theirs: u64,
    },
}

/// Why a call was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalReason {
    /// The key is missing, unknown, expired or not bound to the route.
    Key,
    /// The gateway does not serve this path.
    Unsupported,
    /// The request cannot be read.
    Invalid,
    /// No route serves the model.
    NoRoute,
    /// A limit refused it.
    Limit,
    /// The queue is full.
    QueueFull,
    /// No upstream can serve it now.
    Upstream,
    /// The store could not decide.
    Store,
    /// The gateway stops.
    Stopping,
}

impl RefusalReason {
    /// Returns its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Unsupported => "unsupported",
            Self::Invalid => "invalid",
            Self::NoRoute => "no_route",
            Self::Limit => "limit",
            Self::QueueFull => "queue_full",
            Self::Upstream => "upstream",
            Self::Store => "store",
            Self::Stopping => "stopping",
        }
    }
}

/// How a call that was sent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// The whole response was passed on.
    Complete,
    /// The provider responded with an error.
    Refused,
    /// The client disconnected.
    ClientGone,
    /// The upstream disconnected or was silent for too long.
    UpstreamFailed,
}

impl Ending {
    /// Returns its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Refused => "refused",
            Self::ClientGone => "client_gone",
            Self::UpstreamFailed => "upstream_failed",
        }
    }
}
