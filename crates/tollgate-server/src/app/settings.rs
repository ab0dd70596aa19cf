//! What a server lets its callers do, beyond what their keys say.

use tollgate::Span;

use crate::bounds::{CONNECTION_AGE_MAX, IPV4_PREFIX, IPV6_PREFIX};

/// Bounds on what callers report and take, and from where they may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The longest that a limit is closed because the holder of a permit reported a violation. A caller with the scope
    /// `administer` may close it for up to [`RETRY_AFTER_MAX`](tollgate::incident::RETRY_AFTER_MAX).
    pub violation_hint_max: Span,
    /// How far the actual cost of a call may be above its estimate, in multiples of the smallest limit of the unit. What
    /// is beyond that is not charged.
    pub settle_excess_max: u64,
    /// The most keys of `CL.THROTTLE` that a store in this process keeps.
    pub throttle_subjects_max: Option<u64>,
    /// How many bits of an address tell subjects apart that are made of IPv4 addresses.
    pub ipv4_prefix: u8,
    /// The same for IPv6: one caller usually has at least a /64.
    pub ipv6_prefix: u8,
    /// The names under which callers of HTTP and gRPC may reach the server, beside those of the loopback interface. Without any,
    /// every name is accepted, unless [`is_loopback`](Self::is_loopback) is set and there are no keys.
    pub hosts: Vec<String>,
    /// Whether only this machine can reach the server. Without keys, a web page could otherwise reach it by giving its own
    /// name a loopback address (DNS rebinding).
    pub is_loopback: bool,
    /// How old a connection of gRPC may become before its client is asked to open another.
    pub grpc_age_max: Span,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            violation_hint_max: Span::from_hours(1),
            settle_excess_max: 10,
            throttle_subjects_max: None,
            ipv4_prefix: IPV4_PREFIX,
            ipv6_prefix: IPV6_PREFIX,
            hosts: Vec::new(),
            is_loopback: false,
            grpc_age_max: CONNECTION_AGE_MAX,
        }
    }
}
