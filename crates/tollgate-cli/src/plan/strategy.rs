//! The strategies of a plan, as gates on one instance: the real ones, with a resend inside and a fallback around.

use std::sync::Arc;

use tollgate::{
    Atomic, Attempts, Clock, Error, Fallback, FallbackSettings, Gate, Headroom, Leased,
    LeasedOptions, OnStoreFailure, Optimistic, OptimisticOptions, Policy, Resend, Rule, Span,
    Timestamp, over_issue_bound,
};
use tollgate_server::wire::counted;
use tollgate_sim::Machine;

use super::shape::Shape;

/// One row of the table.
#[derive(Clone, Debug)]
pub(super) struct Strategy {
    pub(super) kind: Kind,
    /// The policy that its gates enforce.
    pub(super) policy: Policy,
    /// The most that a subject can be over within one window while the store answers, as the strategy promises.
    pub(super) over_max: u64,
    /// What a reader should know about its settings.
    pub(super) note: String,
}

/// How a strategy decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Atomic,
    Leased,
    Optimistic,
    /// Optimistic with headroom.
    Tuned,
    /// Atomic, and each instance by its share while the store is away.
    Fallback,
    /// Brokers between the instances and the store, each atomic.
    Broker,
}

impl Kind {
    /// Whether a process that asks the store can play it by itself.
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
    /// Every strategy that fits `shape`. The first is atomic.
    pub(super) fn all(shape: &Shape) -> Result<Vec<Self>, Error> {
        let policy = &shape.policy;
        let on_failure = policy.on_store_failure();
        let away = format!("on_store_failure = {on_failure}");
        let unposted = unposted_max(shape);
        let bound = over_issue_bound(shape.instances, 0, unposted);
        let percent = shape.headroom_percent;
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
                    shape.instances
                ),
            });
        }
        all.push(Self {
            kind: Kind::Broker,
            policy: policy.clone(),
            over_max: 0,
            note: format!(
                "{} that are {} away, each one operation of the store per ask; {away}",
                counted(shape.brokers, "brokers"),
                shape.broker_latency
            ),
        });
        Ok(all)
    }

    /// Leased, if the policy can be: with its own `block_ttl`, or one that takes a twentieth of each limit.
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

    /// The gate of one simulated instance.
    pub(super) fn gate(&self, machine: &Machine, shape: &Shape) -> Result<Arc<dyn Gate>, Error> {
        let clock = Arc::new(machine.clock().clone());
        self.around(Arc::new(Atomic::new(machine.link())), clock, shape)
    }

    /// The gate of one instance on `store`.
    pub(super) fn around(
        &self,
        store: Arc<dyn Gate>,
        clock: Arc<dyn Clock>,
        shape: &Shape,
    ) -> Result<Arc<dyn Gate>, Error> {
        let store = Resend::new(store, Attempts::default(), Arc::clone(&clock));
        let gate: Arc<dyn Gate> = match self.kind {
            Kind::Atomic | Kind::Fallback | Kind::Broker => Arc::new(store),
            Kind::Leased => {
                Arc::new(Leased::new(store, LeasedOptions::default(), Arc::clone(&clock)))
            }
            Kind::Optimistic | Kind::Tuned => {
                let options = OptimisticOptions::new(unposted_max(shape));
                Arc::new(Optimistic::new(store, options, Arc::clone(&clock)))
            }
        };
        let sharers = if self.kind == Kind::Broker { shape.brokers } else { shape.instances };
        Ok(Arc::new(Fallback::new(gate, FallbackSettings::new(sharers), clock)?))
    }
}

/// The least that `tuned` keeps back of a limit of `policy`.
fn reserved(policy: &Policy, tuned: &Policy) -> u64 {
    policy.effective().zip(tuned.effective()).map(|(all, left)| all - left).min().unwrap_or(0)
}

/// As given, or such that the whole fleet can be over by half of the smallest limit.
fn unposted_max(shape: &Shape) -> u64 {
    let smallest = shape.policy.effective().min().unwrap_or(1);
    shape.unposted_max.unwrap_or_else(|| (smallest / (2 * shape.instances)).max(1))
}

/// The time to live of blocks that costs a twentieth of a limit; nothing where it costs nothing.
fn twentieth(rule: &Rule) -> Option<Span> {
    let micros = match rule {
        Rule::TokenBucket(rule) => {
            let fills = u128::from(rule.capacity) * u128::from(rule.period.as_micros());
            u64::try_from(fills / u128::from(rule.refill)).unwrap_or(u64::MAX)
        }
        Rule::RollingWindow(rule) => rule.window.as_micros(),
        Rule::CalendarWindow(_) => 60_000_000,
        _ => return None,
    };
    Some(Span::from_micros((micros / 20).max(1)))
}

/// `policy` with other headroom, another answer to a store that is away, and another time to live of blocks.
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
