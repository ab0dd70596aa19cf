//! How often the broker asks its store: `[strategy]`.

use tollgate::spec::Step;
use tollgate::{Costs, LeasedOptions, OptimisticOptions, Policies, Policy, Span};

use super::fallback::span;
use super::file::StrategyTable;
use super::place::Text;
use super::{Blame, StoreConfig};

/// The shortest and the longest that can be set of each length of time.
const POST_EVERY_RANGE: [Span; 2] = [Span::from_millis(1), Span::from_secs(10)];
const RECHECK_AFTER_RANGE: [Span; 2] = [Span::ZERO, Span::from_secs(10)];
const SKEW_RANGE: [Span; 2] = [Span::ZERO, Span::from_secs(10)];
const SETTLE_WAIT_RANGE: [Span; 2] = [Span::ZERO, Span::from_mins(10)];

/// More subjects than any memory holds.
const SUBJECTS_MAX: u64 = 1_000_000_000;

/// How often the broker asks its store.
#[derive(Clone, Debug)]
pub(crate) enum StrategyConfig {
    /// For every ask.
    Atomic,
    /// In the background, after it answered.
    Optimistic(OptimisticOptions),
    /// For blocks of tokens.
    Leased(LeasedOptions),
}

impl StrategyConfig {
    /// Whether it says the same as `other`. Options have no equality, because they may hold an observer; here none do.
    pub(crate) fn is(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }

    pub(super) fn resolve(
        text: &Text<'_>,
        table: &StrategyTable,
        store: &StoreConfig,
        policies: &Policies,
    ) -> Result<Self, Blame> {
        let kind = table.kind.as_deref().unwrap_or("atomic");
        let allowed: &[&str] = match kind {
            "atomic" => &[],
            "optimistic" => {
                &["unposted_max", "unposted_max_of", "post_every", "recheck_after", "subjects_max"]
            }
            "leased" => &["skew", "settle_wait", "subjects_max"],
            _ => {
                let what = format!(
                    "there is no strategy {kind:?}; use \"atomic\", \"optimistic\" or \"leased\""
                );
                return Err(text.blame(&["strategy", "kind"], what));
            }
        };
        if let Some(key) = table.given().into_iter().find(|key| !allowed.contains(key)) {
            let what = format!("the {kind} strategy takes no {key}; remove it");
            return Err(text.blame(&["strategy", key], what));
        }
        if kind != "atomic" && store.away().is_none() {
            let what = "this store is inside the process that asks it, so there is no way to save; use \"atomic\"";
            return Err(text.blame(&["strategy", "kind"], what));
        }
        match kind {
            "optimistic" => optimistic(text, table, policies).map(Self::Optimistic),
            "leased" => leased(text, table, policies).map(Self::Leased),
            _ => Ok(Self::Atomic),
        }
    }

    /// What it is called.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Atomic => "atomic",
            Self::Optimistic(_) => "optimistic",
            Self::Leased(_) => "leased",
        }
    }

    /// Whether asks of `policy` are answered without asking the store each time; if not, why.
    pub(crate) fn passes_through(&self, policy: &Policy) -> Option<&'static str> {
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
    text: &Text<'_>,
    table: &StrategyTable,
    policies: &Policies,
) -> Result<OptimisticOptions, Blame> {
    let Some(unposted_max) = table.unposted_max else {
        let what = "the optimistic strategy needs unposted_max: each broker may be that far over a limit; as in \
                    unposted_max = 25";
        return Err(text.blame(&["strategy"], what));
    };
    let mut options = OptimisticOptions::new(unposted_max);
    let mut unposted_max_of = Costs::new();
    for (unit, amount) in table.unposted_max_of.iter().flatten() {
        let is_counted = policies.iter().any(|policy| policy.units().any(|known| known == unit));
        if !is_counted {
            let what = format!("no policy counts {unit:?}; name a unit of a limit");
            return Err(text.blame(&["strategy", "unposted_max_of", unit], what));
        }
        unposted_max_of.set(unit.as_str(), *amount);
    }
    options.unposted_max_of = unposted_max_of;
    set(text, &mut options.post_every, "post_every", &table.post_every, POST_EVERY_RANGE)?;
    set(
        text,
        &mut options.recheck_after,
        "recheck_after",
        &table.recheck_after,
        RECHECK_AFTER_RANGE,
    )?;
    options.subjects_max = subjects_max(text, table, options.subjects_max)?;
    Ok(options)
}

fn leased(
    text: &Text<'_>,
    table: &StrategyTable,
    policies: &Policies,
) -> Result<LeasedOptions, Blame> {
    if !policies.iter().any(Policy::is_leased) {
        let what = "no policy can be leased: give one a block_ttl, as in block_ttl = \"250ms\", or use \"atomic\"";
        let place = [Step::Field("block_ttl")];
        let with_ttl = policies.iter().position(|policy| !policy.block_ttl().is_zero());
        return Err(match with_ttl {
            Some(index) => text.blame_policy(
                index,
                &place,
                "a policy with a concurrency limit or in shadow mode is not leased, and no other has a block_ttl; use \
                 strategy \"atomic\"",
            ),
            None => text.blame(&["strategy", "kind"], what),
        });
    }
    let mut options = LeasedOptions { lease_tries: 1, ..LeasedOptions::default() };
    set(text, &mut options.skew, "skew", &table.skew, SKEW_RANGE)?;
    set(text, &mut options.settle_wait, "settle_wait", &table.settle_wait, SETTLE_WAIT_RANGE)?;
    options.subjects_max = subjects_max(text, table, options.subjects_max)?;
    Ok(options)
}

/// Puts what is given under `key` in the place of a default.
fn set(
    text: &Text<'_>,
    default: &mut Span,
    key: &str,
    given: &Option<String>,
    range: [Span; 2],
) -> Result<(), Blame> {
    if let Some(given) = given {
        *default = span(text, ["strategy", key], given, range)?;
    }
    Ok(())
}

fn subjects_max(text: &Text<'_>, table: &StrategyTable, otherwise: usize) -> Result<usize, Blame> {
    let Some(given) = table.subjects_max else { return Ok(otherwise) };
    match usize::try_from(given) {
        Ok(subjects) if 0 < given && given <= SUBJECTS_MAX => Ok(subjects),
        _ => {
            let what = format!("subjects_max {given} must be between 1 and {SUBJECTS_MAX}");
            Err(text.blame(&["strategy", "subjects_max"], what))
        }
    }
}
