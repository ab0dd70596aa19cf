//! What waits, for dashboards.

use std::sync::Arc;

/// The most queues of a snapshot.
pub const SNAPSHOT_QUEUES_MAX: usize = 20;

/// The most tenants of one queue of a snapshot.
pub const SNAPSHOT_TENANTS_MAX: usize = 20;

/// The asks that wait at a [`Queue`](super::Queue).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueuesSnapshot {
    /// How many asks wait.
    pub waiting: usize,
    /// In how many queues.
    pub queue_count: usize,
    /// The longest queues, at most [`SNAPSHOT_QUEUES_MAX`].
    pub queues: Vec<QueueSnapshot>,
}

/// The queue of one policy and subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSnapshot {
    /// The name of the policy.
    pub policy: Box<str>,
    /// The subject.
    pub subject: Box<str>,
    /// How many asks wait.
    pub waiting: usize,
    /// How many tenants they are of.
    pub tenant_count: usize,
    /// The tenants with the most of them, at most [`SNAPSHOT_TENANTS_MAX`].
    pub tenants: Vec<TenantSnapshot>,
}

/// A tenant with asks in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantSnapshot {
    /// Its name.
    pub tenant: Arc<str>,
    /// How often it is served, compared with the others.
    pub weight: u64,
    /// How many of its asks wait.
    pub waiting: usize,
}
