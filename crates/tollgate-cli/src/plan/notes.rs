//! Notes on each strategy: its effort and its failure modes.

use super::strategy::Kind;

impl Kind {
    /// Returns the effort of set-up and operation.
    pub(super) const fn effort(self) -> &'static str {
        match self {
            Self::Atomic => "low: a shared store, and nothing to tune",
            Self::Leased => "low: block_ttl of each policy",
            Self::Optimistic => {
                "low: unposted_max has to fit the fleet, and tollgate_over_issue_total has to be watched"
            }
            Self::Tuned => {
                "low: as optimistic, and headroom has to be chosen again when the fleet or its traffic changes"
            }
            Self::Fallback => "low: [fallback] instances has to follow the size of the fleet",
            Self::Broker => {
                "high: a service to deploy, watch and upgrade, with keys and certificates, and at least two of it; callers need a \
                 client and no access to the store"
            }
        }
    }

    /// Returns the failure modes that the figures do not show.
    pub(super) const fn failure_modes(self) -> &'static str {
        match self {
            Self::Atomic => {
                "a slow store slows every call; during an outage, asks are answered as on_store_failure says; one subject gets at \
                 most what one key of the store takes"
            }
            Self::Leased => {
                "an instance that is killed takes its blocks with it until they end, so less is admitted and never more; many \
                 instances on a small limit get blocks that save nothing"
            }
            Self::Optimistic => {
                "admits too much where instances decide at the same time; an instance that is killed, or cut off, forgets or \
                 holds back up to unposted_max; refuses with room left while its view is old"
            }
            Self::Tuned => {
                "as optimistic; too little headroom exceeds the limit, and too much is never used"
            }
            Self::Fallback => {
                "an instance that is cut off admits its share, so uneven traffic is refused with room left, and shares of a wrong \
                 number of instances add up to more or less than the limit"
            }
            Self::Broker => {
                "a hop on every ask; when no broker answers, each caller decides whether to go on; a broker that is killed loses \
                 connections and no count; during an outage, brokers answer as on_store_failure says"
            }
        }
    }
}
