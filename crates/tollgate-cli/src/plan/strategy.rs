//! The strategies of a plan, as the gates of one instance: resend inside, fallback outside.

use std::sync::Arc;

use tollgate::policy::{Headroom, OnStoreFailure, Rule};
use tollgate::strategy::{
    Fallback, FallbackOptions, Leased, LeasedOptions, Optimistic, OptimisticOptions, Resend,
    ResendOptions, over_issue_bound,
};
use tollgate::{Clock, Error, Gate, Policy, Span, Timestamp};
use tollgate_protocol::json::counted;
use tollgate_sim::Machine;

use super::figures;
use super::workload::Workload;

/// One row of the table.
#[derive(Clone, Debug)]
pub(super) struct Strategy {
    pub(super) kind: Kind,
    /// The policy that its gates enforce.
    pub(super) policy: Policy,
    /// The largest excess of a subject in one window that the strategy allows while the store is available.
    pub(super) over_max: u64,
    /// Its settings.
    pub(super) note: String,
}

/// The kinds of strategies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Atomic,
    Leased,
    Optimistic,
    /// Optimistic with headroom.
    Tuned,
    /// Atomic, with shares while the store is unavailable.
    Fallback,
    /// Brokers between the instances and the store, each atomic.
    Broker,
}

impl Kind {
    /// Returns whether a single process on the store can run it.
    pub(super) const fn is_measured(self) -> bool {
        !matches!(self, Self::Broker)
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Atomic => "atomic",
            Self::Leased => "leased",
            Self::Optimistic => "optimistic",
            Self::Tuned => "optimistic+headroom",
            Self::Fallback => "atomic+fallback",
            Self::Broker => "broker",
        }
    }
}

impl Strategy {
    /// Returns every strategy that fits `workload`. The first is atomic.
    pub(super) fn all(workload: &Workload) -> Result<Vec<Self>, Error> {
        let policy = &workload.policy;
        let on_failure = policy.on_store_failure();
        let away = format!("on_store_failure = {on_failure}");
        let unposted = unposted_max(workload);
        let bound = over_issue_bound(workload.instances, 0, unposted);
        let percent = workload.headroom_percent;
        let tuned = rebuilt(policy, Some(percent), on_failure, policy.block_ttl())?;
        let mut all = vec![
            Self {
                kind: Kind::Atomic,
                policy: policy.clone(),
                over_max: 0,
                note: format!("every ask is one operation of the store; {away}"),
            },
            Self {
                kind: Kind::Optimistic,
                policy: policy.clone(),
                over_max: bound,
                note: format!("unposted_max = {unposted}; {away}"),
            },
            Self {
                kind: Kind::Tuned,
                over_max: bound.saturating_sub(reserved(policy, &tuned)),
                policy: tuned,
                note: format!("the same with {percent}% of each limit never issued"),
            },
        ];
        all.extend(Self::leased(policy, &away));
        if on_failure != OnStoreFailure::Fallback {
            all.push(Self {
                kind: Kind::Fallback,
                policy: rebuilt(policy, None, OnStoreFailure::Fallback, policy.block_ttl())?,
                over_max: 0,
                note: format!(
                    "on_store_failure = fallback: an instance that is cut off issues its share, 1/{}",
                    workload.instances
                ),
            });
        }
        all.push(Self {
            kind: Kind::Broker,
            policy: policy.clone(),
            over_max: 0,
            note: format!(
                "{} that are {} away, each one operation of the store per ask; {away}",
                counted(workload.brokers, "brokers"),
                workload.broker_latency
            ),
        });
        Ok(all)
    }

    /// Returns the leased strategy, if it fits: with the configured `block_ttl`, or one that costs a twentieth of each limit.
    fn leased(policy: &Policy, away: &str) -> Option<Self> {
        let block_ttl = if policy.block_ttl().is_zero() {
            policy.limits().filter_map(|limit| twentieth(limit.rule())).min()?
        } else {
            policy.block_ttl()
        };
        let leased = rebuilt(policy, None, policy.on_store_failure(), block_ttl).ok()?;
        leased.block_ends_at(Timestamp::EPOCH)?;
        let note = format!("block_ttl = {block_ttl}; {away}");
        Some(Self { kind: Kind::Leased, policy: leased, over_max: 0, note })
    }

    /// Returns the gate of one simulated instance.
    pub(super) fn gate(
        &self,
        machine: &Machine,
        workload: &Workload,
    ) -> Result<Arc<dyn Gate>, Error> {
        let clock = Arc::new(machine.clock().clone());
        self.wrap(Arc::new(machine.link()), clock, workload)
    }

    /// Returns the gate of one instance on `store`.
    pub(super) fn wrap(
        &self,
        store: Arc<dyn Gate>,
        clock: Arc<dyn Clock>,
        workload: &Workload,
    ) -> Result<Arc<dyn Gate>, Error> {
        let store = Resend::new(store, ResendOptions::default(), Arc::clone(&clock));
        let gate: Arc<dyn Gate> = match self.kind {
            Kind::Atomic | Kind::Fallback | Kind::Broker => Arc::new(store),
            Kind::Leased => {
                Arc::new(Leased::new(store, LeasedOptions::default(), Arc::clone(&clock)))
            }
            Kind::Optimistic | Kind::Tuned => {
                let options = OptimisticOptions::new(unposted_max(workload));
                Arc::new(Optimistic::new(store, options, Arc::clone(&clock)))
            }
        };
        let sharers = if self.kind == Kind::Broker { workload.brokers } else { workload.instances };
        Ok(Arc::new(Fallback::new(gate, FallbackOptions::new(sharers), clock)?))
    }
}

/// Returns the smallest headroom of `tuned` in comparison with `policy`.
fn reserved(policy: &Policy, tuned: &Policy) -> u64 {
    policy.effective().zip(tuned.effective()).map(|(all, left)| all - left).min().unwrap_or(0)
}

/// Returns the configured bound, or one by which the whole fleet can exceed the smallest limit by half.
fn unposted_max(workload: &Workload) -> u64 {
    let smallest = workload.policy.effective().min().unwrap_or(1);
    workload.unposted_max.unwrap_or_else(|| (smallest / (2 * workload.instances)).max(1))
}

/// Returns the time to live of blocks that costs a twentieth of a limit; `None` where blocks are not leased.
fn twentieth(rule: &Rule) -> Option<Span> {
    match rule {
        Rule::Concurrency(_) => None,
        rule => Some(Span::from_micros((figures::window(rule) / 20).max(1))),
    }
}

/// Returns `policy` with other headroom, `on_store_failure` and `block_ttl`.
fn rebuilt(
    policy: &Policy,
    headroom_percent: Option<u8>,
    on_failure: OnStoreFailure,
    block_ttl: Span,
) -> Result<Policy, Error> {
    let limits = policy.limits().cloned().map(|limit| match headroom_percent {
        Some(percent) => limit.headroom(Headroom::Percent(percent)),
        None => limit,
    });
    let builder = Policy::builder(policy.name())
        .limits(limits)
        .on_store_failure(on_failure)
        .block_ttl(block_ttl);
    Ok(builder.build()?)
}
