//! `[fallback]`: decisions while the store is unavailable; and the timeout of an attempt at the store.

use std::time::Duration;

use serde::Deserialize;
use tollgate::Span;
use tollgate::internal::Step;
use tollgate::policy::{OnStoreFailure, Policies};
use tollgate::strategy::{FallbackOptions, ShareStart};

use crate::store::StoreTable;
use crate::{Diagnostic, Document, StoreConfig};

/// The section as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FallbackTable {
    instances: Option<u64>,
    start: Option<String>,
    probe_min: Option<String>,
    probe_max: Option<String>,
}

/// The shortest and the longest attempt that can be set.
const ATTEMPT_TIMEOUT_RANGE: [Span; 2] = [Span::from_millis(10), Span::from_secs(5)];

/// The shortest and the longest time between probes that can be set.
const PROBE_RANGE: [Span; 2] = [Span::from_millis(100), Span::from_hours(1)];

/// The most instances that a limit can be divided by.
const INSTANCES_MAX: u64 = 1_000_000;

/// How decisions are made while the store is unavailable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FallbackConfig {
    /// The timeout of one attempt at the store, if it is set.
    pub attempt_timeout: Option<Span>,
    /// The share of this instance, and how often the store is probed.
    pub settings: FallbackOptions,
    /// Whether policies can fall back: the store is in this process, or the number of instances is set.
    pub(crate) has_shares: bool,
}

pub(super) fn attempt_timeout(
    document: &Document,
    table: &StoreTable,
) -> Result<Option<Span>, Diagnostic> {
    let given = table.attempt_timeout.as_deref();
    given
        .map(|given| document.duration(&["store", "attempt_timeout"], given, ATTEMPT_TIMEOUT_RANGE))
        .transpose()
}

impl FallbackConfig {
    pub(super) fn resolve(
        document: &Document,
        table: Option<&FallbackTable>,
        attempt_timeout: Option<Span>,
        store: &StoreConfig,
        policies: &Policies,
    ) -> Result<Self, Diagnostic> {
        let mut settings = FallbackOptions::new(1);
        let Some(kind) = store.remote_kind() else {
            if table.is_some() {
                let message = "this store is inside the process that asks it, so there is nothing to fall back from; remove \
                            [fallback]";
                return Err(document.error(&["fallback"], message));
            }
            return Ok(Self { attempt_timeout, settings, has_shares: true });
        };
        let empty = FallbackTable::default();
        let FallbackTable { instances, start, probe_min, probe_max } = table.unwrap_or(&empty);
        settings.start = match start.as_deref() {
            None | Some("used") => ShareStart::Used,
            Some("share") => ShareStart::Share,
            Some(other) => {
                let message = format!(
                    "start {other:?} is neither \"used\" nor \"share\": what this process's share counts as when the store \
                     goes away"
                );
                return Err(document.error(&["fallback", "start"], message));
            }
        };
        let probe = |key, given: &Option<String>, otherwise| match given {
            Some(given) => {
                document.duration(&["fallback", key], given, PROBE_RANGE).map(Duration::from)
            }
            None => Ok(otherwise),
        };
        settings.probe_min = probe("probe_min", probe_min, settings.probe_min)?;
        settings.probe_max =
            probe("probe_max", probe_max, settings.probe_max.max(settings.probe_min))?;
        if settings.probe_max < settings.probe_min {
            let message = format!(
                "probe_max must be at least probe_min, which is {}",
                Span::from(settings.probe_min)
            );
            return Err(document.error(&["fallback", "probe_max"], message));
        }
        if let Some(instances) = *instances {
            if instances == 0 || INSTANCES_MAX < instances {
                let message =
                    format!("instances {instances} must be between 1 and {INSTANCES_MAX}");
                return Err(document.error(&["fallback", "instances"], message));
            }
            settings.instances = instances;
        }
        check_shares(document, instances.is_some(), settings.instances, kind, policies)?;
        Ok(Self { attempt_timeout, settings, has_shares: instances.is_some() })
    }
}

/// The error of a policy that falls back without a number of instances.
pub(crate) fn without_shares(kind: &str) -> String {
    format!(
        "fallback divides the limits by the number of instances that share the {kind} store; say how many, as in \
         [fallback] instances = 10"
    )
}

/// Checks that every policy that falls back has a share.
fn check_shares(
    document: &Document,
    is_set: bool,
    instances: u64,
    kind: &str,
    policies: &Policies,
) -> Result<(), Diagnostic> {
    for (index, policy) in policies.iter().enumerate() {
        if policy.on_store_failure() != OnStoreFailure::Fallback {
            continue;
        }
        let path = [Step::Field("on_store_failure")];
        if !is_set {
            return Err(document.element_error("policy", index, &path, without_shares(kind)));
        }
        let overrides = policy.overrides().map(|(_, other)| other);
        let all = [policy].into_iter().chain(overrides).chain(policy.plans().flatten());
        for policy in all {
            if let Err(error) = policy.share(instances) {
                return Err(document.element_error("policy", index, &path, error.to_string()));
            }
        }
    }
    Ok(())
}
