//! What happens while the store is away: `[fallback]`, and how long an attempt may take.

use tollgate::spec::Step;
use tollgate::{FallbackSettings, FallbackStart, OnStoreFailure, Policies, Span};

use super::file::{FallbackTable, StoreTable};
use super::place::Text;
use super::{Blame, StoreConfig};

/// The shortest and the longest attempt that can be set.
const ATTEMPT_TIMEOUT_RANGE: [Span; 2] = [Span::from_millis(10), Span::from_secs(5)];

/// The shortest and the longest time between probes that can be set.
const PROBE_RANGE: [Span; 2] = [Span::from_millis(100), Span::from_hours(1)];

/// A share of what nobody can count is no share.
const INSTANCES_MAX: u64 = 1_000_000;

/// What happens while the store is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FallbackConfig {
    /// How long one attempt may take, if it is set.
    pub(crate) attempt_timeout: Option<Span>,
    pub(crate) settings: FallbackSettings,
}

pub(super) fn attempt_timeout(text: &Text<'_>, table: &StoreTable) -> Result<Option<Span>, Blame> {
    let given = table.attempt_timeout.as_deref();
    given
        .map(|given| span(text, ["store", "attempt_timeout"], given, ATTEMPT_TIMEOUT_RANGE))
        .transpose()
}

impl FallbackConfig {
    pub(super) fn resolve(
        text: &Text<'_>,
        table: Option<&FallbackTable>,
        attempt_timeout: Option<Span>,
        store: &StoreConfig,
        policies: &Policies,
    ) -> Result<Self, Blame> {
        let mut settings = FallbackSettings::new(1);
        let Some(kind) = store.away() else {
            if table.is_some() {
                let what = "this store is inside the process that asks it, so there is nothing to fall back from; remove \
                            [fallback]";
                return Err(text.blame(&["fallback"], what));
            }
            return Ok(Self { attempt_timeout, settings });
        };
        let empty = FallbackTable::default();
        let FallbackTable { instances, start, probe_min, probe_max } = table.unwrap_or(&empty);
        settings.start = match start.as_deref() {
            None | Some("used") => FallbackStart::Used,
            Some("share") => FallbackStart::Share,
            Some(other) => {
                let what = format!(
                    "start {other:?} is neither \"used\" nor \"share\": what this process's share counts as when the store \
                     goes away"
                );
                return Err(text.blame(&["fallback", "start"], what));
            }
        };
        let probe = |key, given: &Option<String>, otherwise| match given {
            Some(given) => span(text, ["fallback", key], given, PROBE_RANGE),
            None => Ok(otherwise),
        };
        settings.probe_min = probe("probe_min", probe_min, settings.probe_min)?;
        settings.probe_max =
            probe("probe_max", probe_max, settings.probe_max.max(settings.probe_min))?;
        if settings.probe_max < settings.probe_min {
            let what =
                format!("probe_max must be at least probe_min, which is {}", settings.probe_min);
            return Err(text.blame(&["fallback", "probe_max"], what));
        }
        if let Some(instances) = *instances {
            if instances == 0 || INSTANCES_MAX < instances {
                let what = format!("instances {instances} must be between 1 and {INSTANCES_MAX}");
                return Err(text.blame(&["fallback", "instances"], what));
            }
            settings.instances = instances;
        }
        check_shares(text, instances.is_some(), settings.instances, kind, policies)?;
        Ok(Self { attempt_timeout, settings })
    }
}

/// Every policy that falls back has a share, and somebody said of how many.
fn check_shares(
    text: &Text<'_>,
    is_set: bool,
    instances: u64,
    kind: &str,
    policies: &Policies,
) -> Result<(), Blame> {
    for (index, policy) in policies.iter().enumerate() {
        if policy.on_store_failure() != OnStoreFailure::Fallback {
            continue;
        }
        let path = [Step::Field("on_store_failure")];
        if !is_set {
            let what = format!(
                "fallback divides the limits by the number of instances that share the {kind} store; say how many, as in \
                 [fallback] instances = 10"
            );
            return Err(text.blame_policy(index, &path, what));
        }
        let all = std::iter::once(policy).chain(policy.overrides().map(|(_, other)| other));
        for policy in all {
            if let Err(error) = policy.share(instances) {
                return Err(text.blame_policy(index, &path, error.to_string()));
            }
        }
    }
    Ok(())
}

pub(super) fn span(
    text: &Text<'_>,
    path: [&str; 2],
    given: &str,
    range: [Span; 2],
) -> Result<Span, Blame> {
    let blame = |what: String| text.blame(&path, format!("{} {what}", path[1]));
    let span: Span =
        given.parse().map_err(|error: tollgate::core::Error| blame(error.to_string()))?;
    let [least, most] = range;
    if span < least || most < span {
        return Err(blame(format!("{span} must be between {least} and {most}")));
    }
    Ok(span)
}
