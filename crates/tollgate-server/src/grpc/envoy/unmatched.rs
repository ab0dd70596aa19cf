//! Descriptors that nothing matches: counted, and logged now and then, because a misspelled key limits nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::Timestamp;
use tollgate::internal::LogLimit;
use tollgate_protocol::protobuf::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

use super::limit_stats::label;

/// The most domains that are counted by name. A domain is chosen by whoever configures Envoy.
const DOMAINS_MAX: usize = 100;

/// The longest excerpt of a descriptor in the log, in characters.
const SHOWN_CHARS_MAX: usize = 200;

/// Counts descriptors without a rule.
#[derive(Debug, Default)]
pub(crate) struct Unmatched {
    /// By domain, and whether anything is known of the domain.
    counts: Mutex<BTreeMap<(String, bool), u64>>,
    log: LogLimit,
}

impl Unmatched {
    /// Counts one descriptor of `domain`, and logs it unless another one was logged recently.
    pub(super) fn record(&self, domain: &str, has_domain: bool, entries: &[Entry], now: Timestamp) {
        {
            let mut counts = self.counts();
            let key = (domain.to_owned(), has_domain);
            let is_full = DOMAINS_MAX <= counts.len() && !counts.contains_key(&key);
            let key = if is_full { (String::new(), has_domain) } else { key };
            *counts.entry(key).or_default() += 1;
        }
        let Some(suppressed) = self.log.pass(now) else { return };
        let shown: Vec<String> =
            entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
        let shown: String = shown.join(",").chars().take(SHOWN_CHARS_MAX).collect();
        if has_domain {
            tracing::warn!(
                domain,
                descriptor = shown,
                suppressed,
                "no rule matches a descriptor of Envoy"
            );
        } else {
            tracing::warn!(
                domain,
                descriptor = shown,
                suppressed,
                "nothing is configured for a domain of Envoy"
            );
        }
    }

    /// Returns the counts as metrics.
    pub(crate) fn text(&self) -> String {
        let counts = self.counts();
        if counts.is_empty() {
            return String::new();
        }
        const NAME: &str = "tollgate_envoy_unmatched_descriptors";
        let mut text = format!(
            "# HELP {NAME} Descriptors that no rule matches; known is whether anything is configured for the domain.\n\
             # TYPE {NAME} counter\n"
        );
        for ((domain, known), count) in counts.iter() {
            let domain = label(domain);
            let _infallible =
                writeln!(text, "{NAME}_total{{domain=\"{domain}\",known=\"{known}\"}} {count}");
        }
        text
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<(String, bool), u64>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
