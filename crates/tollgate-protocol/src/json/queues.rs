//! The response of `GET /v1/queues`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate::queue::{QueueSnapshot, QueuesSnapshot, TenantSnapshot};

/// The response of `GET /v1/queues`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueuesResponse {
    /// How many asks wait at this server.
    pub waiting: usize,
    /// In how many queues, of which there is one for each policy and subject.
    pub queue_count: usize,
    /// The 20 longest queues.
    pub queues: Vec<QueueState>,
}

/// The queue of one policy and subject.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueState {
    /// The name of the policy.
    pub policy: String,
    /// The subject.
    pub subject: String,
    /// How many asks wait.
    pub waiting: usize,
    /// How many tenants they are of.
    pub tenant_count: usize,
    /// The 20 tenants with the most of them.
    pub tenants: Vec<TenantState>,
}

/// A tenant with asks in a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TenantState {
    /// Its name.
    pub tenant: String,
    /// How often it is served, compared with the others.
    pub weight: u64,
    /// How many of its asks wait.
    pub waiting: usize,
}

impl From<&QueuesSnapshot> for QueuesResponse {
    fn from(snapshot: &QueuesSnapshot) -> Self {
        let QueuesSnapshot { waiting, queue_count, queues } = snapshot;
        let queues = queues.iter().map(Into::into).collect();
        Self { waiting: *waiting, queue_count: *queue_count, queues }
    }
}

impl From<&QueueSnapshot> for QueueState {
    fn from(queue: &QueueSnapshot) -> Self {
        Self {
            policy: queue.policy.to_string(),
            subject: queue.subject.to_string(),
            waiting: queue.waiting,
            tenant_count: queue.tenant_count,
            tenants: queue.tenants.iter().map(Into::into).collect(),
        }
    }
}

impl From<&TenantSnapshot> for TenantState {
    fn from(state: &TenantSnapshot) -> Self {
        let TenantSnapshot { tenant, weight, waiting } = state;
        Self { tenant: tenant.to_string(), weight: *weight, waiting: *waiting }
    }
}
