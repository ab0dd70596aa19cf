//! The strategies of a plan, as the gates of one instance: resend inside, fallback outside.

use std::sync::Arc;

use tollgate::policy::{Headroom, OnStoreFailure, Rule};
use tollgate::strategy::{
    Fallback, FallbackOptions, Leased, LeasedOptions, Optimistic, OptimisticOptions, Resend,
    ResendOptions, over_issue_bound,
};
use tollgate::{Ask, Clock, Error, Gate, Policy, Span, Timestamp};
use tollgate_protocol::json::counted;

use super::figures;
use super::workload::Workload;

/// One row of the table.
#[derive(Clone, Debug)]
pub(super) struct Strategy {
    pub(super) kind: Kind,
    /// The policy that its gates enforce.
    pub(super) policy: Policy,
    /// Those of the parents.
    pub(super) parents: Vec<Policy>,
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
        let away = format!(
            "on_store_failure = {}",
            by_policy(workload, |policy| Some(policy.on_store_failure().to_string()))
        );
        let note = match workload.has_parents() {
            false => format!("every ask is one operation of the store; {away}"),
            true => format!(
                "every ask is one operation of the store, which decides all charges; {away}"
            ),
        };
        let mut all = vec![Self::with(Kind::Atomic, workload, 0, note, Ok)?];
        all.extend(Self::optimistic(workload, &away)?);
        all.extend(Self::leased(workload, &away)?);
        if workload.charges().any(|(policy, _)| policy.on_store_failure() != FALLBACK) {
            let note = format!(
                "on_store_failure = fallback: an instance that is cut off issues its share, 1/{}",
                workload.instances
            );
            let shared = |policy: Policy| rebuilt(&policy, None, FALLBACK, policy.block_ttl());
            all.push(Self::with(Kind::Fallback, workload, 0, note, shared)?);
        }
        let note = format!(
            "{} that are {} away, each one operation of the store per ask; {away}",
            counted(workload.brokers, "brokers"),
            workload.broker_latency
        );
        all.push(Self::with(Kind::Broker, workload, 0, note, Ok)?);
        Ok(all)
    }

    /// Returns a strategy under the policies of `workload`, each changed by `change`.
    fn with(
        kind: Kind,
        workload: &Workload,
        over_max: u64,
        note: String,
        change: impl Fn(Policy) -> Result<Policy, Error>,
    ) -> Result<Self, Error> {
        let parents = workload.parents.iter().map(|parent| change(parent.policy.clone()));
        let parents = parents.collect::<Result<_, _>>()?;
        Ok(Self { kind, policy: change(workload.policy.clone())?, parents, over_max, note })
    }

    /// Returns the optimistic strategy without and with headroom. Asks with several charges are never over, so headroom would
    /// only waste a part of each limit.
    fn optimistic(workload: &Workload, away: &str) -> Result<Vec<Self>, Error> {
        if workload.has_parents() {
            let note = format!("asks with several charges go to the store, as with atomic; {away}");
            return Ok(vec![Self::with(Kind::Optimistic, workload, 0, note, Ok)?]);
        }
        let policy = &workload.policy;
        let unposted = unposted_max(workload);
        let bound = over_issue_bound(workload.instances, 0, unposted);
        let percent = workload.headroom_percent;
        let tuned = |policy: Policy| {
            rebuilt(&policy, Some(percent), policy.on_store_failure(), policy.block_ttl())
        };
        let over_max = bound.saturating_sub(reserved(policy, &tuned(policy.clone())?));
        let note = format!("unposted_max = {unposted}; {away}");
        let tuned_note = format!("the same with {percent}% of each limit never issued");
        Ok(vec![
            Self::with(Kind::Optimistic, workload, bound, note, Ok)?,
            Self::with(Kind::Tuned, workload, over_max, tuned_note, tuned)?,
        ])
    }

    /// Returns the leased strategy, if it fits a policy: with the configured `block_ttl`, or one that costs a twentieth of each
    /// limit.
    fn leased(workload: &Workload, away: &str) -> Result<Option<Self>, Error> {
        if workload.charges().all(|(policy, _)| leased(policy).is_none()) {
            return Ok(None);
        }
        let ttls = by_policy(workload, |policy| Some(leased(policy)?.block_ttl().to_string()));
        let note = format!("block_ttl = {ttls}; {away}");
        let change = |policy: Policy| Ok(leased(&policy).unwrap_or(policy));
        Self::with(Kind::Leased, workload, 0, note, change).map(Some)
    }

    /// Returns the ask of the subject with `number`, whose subjects begin with `prefix`.
    pub(super) fn ask(&self, workload: &Workload, prefix: &str, number: u64) -> Ask<'_> {
        workload.ask(&self.policy, &self.parents, prefix, number)
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

const FALLBACK: OnStoreFailure = OnStoreFailure::Fallback;

/// Returns a setting of each policy, as in `200ms (user), 1s (team)`; once if all have the same.
fn by_policy(workload: &Workload, setting: impl Fn(&Policy) -> Option<String>) -> String {
    let settings: Vec<_> =
        workload.charges().map(|(policy, _)| (policy.name(), setting(policy))).collect();
    match settings.first() {
        Some((_, Some(first))) if settings.iter().all(|(_, one)| one.as_ref() == Some(first)) => {
            first.clone()
        }
        _ => {
            let named =
                settings.into_iter().filter_map(|(name, one)| Some(format!("{} ({name})", one?)));
            named.collect::<Vec<_>>().join(", ")
        }
    }
}

/// Returns `policy` with the `block_ttl` of the leased strategy; `None` if it cannot be leased.
fn leased(policy: &Policy) -> Option<Policy> {
    let block_ttl = if policy.block_ttl().is_zero() {
        policy.limits().filter_map(|limit| twentieth(limit.rule())).min()?
    } else {
        policy.block_ttl()
    };
    let leased = rebuilt(policy, None, policy.on_store_failure(), block_ttl).ok()?;
    leased.block_ends_at(Timestamp::EPOCH)?;
    Some(leased)
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
