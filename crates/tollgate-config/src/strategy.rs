//! `[strategy]`: how often a broker asks its store.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use tollgate::internal::Step;
use tollgate::policy::Policies;
use tollgate::strategy::{LeasedOptions, OptimisticOptions};
use tollgate::{Costs, Policy, Span};

use crate::{Diagnostic, Document, StoreConfig};

/// The section as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StrategyTable {
    kind: Option<String>,
    unposted_max: Option<u64>,
    unposted_max_of: Option<BTreeMap<String, u64>>,
    post_every: Option<String>,
    recheck_after: Option<String>,
    skew: Option<String>,
    settle_wait: Option<String>,
    subjects_max: Option<u64>,
}

/// The shortest and the longest value of each duration.
const POST_EVERY_RANGE: [Span; 2] = [Span::from_millis(1), Span::from_secs(10)];
const RECHECK_AFTER_RANGE: [Span; 2] = [Span::ZERO, Span::from_secs(10)];
const SKEW_RANGE: [Span; 2] = [Span::ZERO, Span::from_secs(10)];
const SETTLE_WAIT_RANGE: [Span; 2] = [Span::ZERO, Span::from_mins(10)];

/// More subjects than any memory holds.
const SUBJECTS_MAX: u64 = 1_000_000_000;

/// When a broker asks its store.
#[derive(Clone, Debug)]
pub enum StrategyConfig {
    /// For every ask.
    Atomic,
    /// In the background, after the decision.
    Optimistic(OptimisticOptions),
    /// For blocks of tokens.
    Leased(LeasedOptions),
}

impl StrategyConfig {
    /// Returns whether both mean the same. Options have no equality, because they may hold an observer; here none do.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }

    pub(super) fn resolve(
        document: &Document,
        table: &StrategyTable,
        store: &StoreConfig,
        policies: &Policies,
    ) -> Result<Self, Diagnostic> {
        let kind = table.kind.as_deref().unwrap_or("atomic");
        let allowed: &[&str] = match kind {
            "atomic" => &[],
            "optimistic" => {
                &["unposted_max", "unposted_max_of", "post_every", "recheck_after", "subjects_max"]
            }
            "leased" => &["skew", "settle_wait", "subjects_max"],
            _ => {
                let message = format!(
                    "there is no strategy {kind:?}; use \"atomic\", \"optimistic\" or \"leased\""
                );
                return Err(document.error(&["strategy", "kind"], message));
            }
        };
        if let Some(key) = document
            .keys("strategy")
            .into_iter()
            .find(|key| key != "kind" && !allowed.contains(&key.as_str()))
        {
            let message = format!("the {kind} strategy takes no {key}; remove it");
            return Err(document.error(&["strategy", &key], message));
        }
        if kind != "atomic" && store.remote_kind().is_none() {
            let message = "this store is inside the process that asks it, so there is no way to save; use \"atomic\"";
            return Err(document.error(&["strategy", "kind"], message));
        }
        match kind {
            "optimistic" => optimistic(document, table, policies).map(Self::Optimistic),
            "leased" => leased(document, table, policies).map(Self::Leased),
            _ => Ok(Self::Atomic),
        }
    }

    /// Returns the `kind` in the configuration.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Atomic => "atomic",
            Self::Optimistic(_) => "optimistic",
            Self::Leased(_) => "leased",
        }
    }

    /// Returns why asks of `policy` go to the store each time although the strategy would not; `None` if they do not.
    #[must_use]
    pub fn passes_through(&self, policy: &Policy) -> Option<&'static str> {
        match self {
            Self::Atomic => None,
            _ if policy.has_slots() => Some("it has a concurrency limit"),
            Self::Leased(_) if policy.block_ttl().is_zero() => Some("it has no block_ttl"),
            Self::Leased(_) if policy.is_shadow() => Some("it is in shadow mode"),
            _ => None,
        }
    }
}

fn optimistic(
    document: &Document,
    table: &StrategyTable,
    policies: &Policies,
) -> Result<OptimisticOptions, Diagnostic> {
    let Some(unposted_max) = table.unposted_max else {
        let message = "the optimistic strategy needs unposted_max: each broker may be that far over a limit; as in \
                    unposted_max = 25";
        return Err(document.error(&["strategy"], message));
    };
    let mut options = OptimisticOptions::new(unposted_max);
    let mut unposted_max_of = Costs::new();
    for (unit, amount) in table.unposted_max_of.iter().flatten() {
        let is_counted = policies.iter().any(|policy| policy.units().any(|known| known == unit));
        if !is_counted {
            let message = format!("no policy counts {unit:?}; name a unit of a limit");
            return Err(document.error(&["strategy", "unposted_max_of", unit], message));
        }
        unposted_max_of.set(unit.as_str(), *amount);
    }
    options.unposted_max_of = unposted_max_of;
    set(document, &mut options.post_every, "post_every", &table.post_every, POST_EVERY_RANGE)?;
    set(
        document,
        &mut options.recheck_after,
        "recheck_after",
        &table.recheck_after,
        RECHECK_AFTER_RANGE,
    )?;
    options.subjects_max = subjects_max(document, table, options.subjects_max)?;
    Ok(options)
}

fn leased(
    document: &Document,
    table: &StrategyTable,
    policies: &Policies,
) -> Result<LeasedOptions, Diagnostic> {
    if !policies.iter().any(Policy::is_leased) {
        let message = "no policy can be leased: give one a block_ttl, as in block_ttl = \"250ms\", or use \"atomic\"";
        let place = [Step::Field("block_ttl")];
        let with_ttl = policies.iter().position(|policy| !policy.block_ttl().is_zero());
        return Err(match with_ttl {
            Some(index) => document.element_error("policy", 
                index,
                &place,
                "a policy with a concurrency limit or in shadow mode is not leased, and no other has a block_ttl; use \
                 strategy \"atomic\"",
            ),
            None => document.error(&["strategy", "kind"], message),
        });
    }
    let mut options = LeasedOptions { lease_tries: 1, ..LeasedOptions::default() };
    set(document, &mut options.skew, "skew", &table.skew, SKEW_RANGE)?;
    set(document, &mut options.settle_wait, "settle_wait", &table.settle_wait, SETTLE_WAIT_RANGE)?;
    options.subjects_max = subjects_max(document, table, options.subjects_max)?;
    Ok(options)
}

/// Replaces a default by the value of `key`, if it is set.
fn set(
    document: &Document,
    default: &mut Duration,
    key: &str,
    given: &Option<String>,
    range: [Span; 2],
) -> Result<(), Diagnostic> {
    if let Some(given) = given {
        *default = document.duration(&["strategy", key], given, range)?.into();
    }
    Ok(())
}

fn subjects_max(
    document: &Document,
    table: &StrategyTable,
    otherwise: usize,
) -> Result<usize, Diagnostic> {
    let Some(given) = table.subjects_max else { return Ok(otherwise) };
    match usize::try_from(given) {
        Ok(subjects) if 0 < given && given <= SUBJECTS_MAX => Ok(subjects),
        _ => {
            let message = format!("subjects_max {given} must be between 1 and {SUBJECTS_MAX}");
            Err(document.error(&["strategy", "subjects_max"], message))
        }
    }
}
