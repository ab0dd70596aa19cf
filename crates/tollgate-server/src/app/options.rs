//! The options of a server.

use std::time::Duration;

use crate::bounds::{CONNECTION_AGE_MAX, IPV4_PREFIX, IPV6_PREFIX};

/// Bounds on what callers may do, and the hosts they may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// How long a violation reported with a permit closes a limit at most. A key with the scope `administer` may close it
    /// for up to [`RETRY_AFTER_MAX`](tollgate::incident::RETRY_AFTER_MAX).
    pub violation_hint_max: Duration,
    /// How far the actual cost of a call may exceed its estimate, in multiples of the smallest limit of the unit. The
    /// rest is not charged.
    pub settle_excess_max: u64,
    /// The most keys of `CL.THROTTLE` that a store in this process keeps.
    pub throttle_subjects_max: Option<u64>,
    /// The prefix length of subjects that are IPv4 addresses.
    pub ipv4_prefix: u8,
    /// The prefix length of subjects that are IPv6 addresses: one client usually has at least a /64.
    pub ipv6_prefix: u8,
    /// The host names that HTTP and gRPC accept, beside those of the loopback interface. Without any, every name is
    /// accepted, unless [`is_loopback`](Self::is_loopback) is set and no key is required.
    pub hosts: Vec<String>,
    /// Whether only this machine can reach the server. Without keys, only loopback names are accepted then, against DNS
    /// rebinding.
    pub is_loopback: bool,
    /// The maximum age of a gRPC connection.
    pub grpc_age_max: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            violation_hint_max: Duration::from_secs(3_600),
            settle_excess_max: 10,
            throttle_subjects_max: None,
            ipv4_prefix: IPV4_PREFIX,
            ipv6_prefix: IPV6_PREFIX,
            hosts: Vec::new(),
            is_loopback: false,
            grpc_age_max: CONNECTION_AGE_MAX.into(),
        }
    }
}
