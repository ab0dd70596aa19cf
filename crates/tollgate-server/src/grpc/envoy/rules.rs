//! Rules that map Envoy's descriptors to policies, subjects and units.
//!
//! A subject is built from values that Envoy forwards from its clients. Any value must yield some subject: an error would
//! let the request through, by Envoy's default.

use std::borrow::Cow;
use std::sync::Arc;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tollgate::core::REQUESTS;
use tollgate::{Error, ErrorKind};
use tollgate_protocol::protobuf::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate_ratelimit_config::{Pattern, Readiness};

use super::ratelimit::RateLimits;
use crate::app::ServerOptions;
use crate::proxy_subject::{bounded, network};

/// The key of the entry with the address of Envoy's client.
const REMOTE_ADDRESS: &str = "remote_address";

/// The characters that are escaped where a subject has several values: all that [`is_plain`] excludes.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// Maps one kind of descriptor to a policy and a subject, or to an answer that is always the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyRule {
    domain: String,
    entries: Vec<(String, Option<Pattern>)>,
    policy: String,
    subject: Vec<Part>,
    unit: String,
    legacy_fields: bool,
    always: Option<EnvoyAnswer>,
}

/// An answer that needs no policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnvoyAnswer {
    /// OK, without a limit.
    #[default]
    Allow,
    /// Over the limit.
    Deny,
}

/// A piece of a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// The value of the entry at this index.
    Value(usize),
}

impl EnvoyRule {
    /// Creates a rule for descriptors of `domain` with exactly these entries, in this order; an entry with a value must
    /// have it, where `*` stands for any text. In `subject`, `{key}` stands for the value of an entry.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there are no entries, or if `subject` names a key that is not among them, or if two
    /// values are adjacent without a separator.
    ///
    /// ```
    /// use tollgate_server::EnvoyRule;
    ///
    /// let entries = [("path", Some("/login")), ("remote_address", None)];
    /// EnvoyRule::new("shop", entries, "login", "{remote_address}")?;
    /// assert!(EnvoyRule::new("shop", entries, "login", "{address}").is_err());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn new<'a>(
        domain: &str,
        entries: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
        policy: &str,
        subject: &str,
    ) -> Result<Self, Error> {
        let rule = Self::always(domain, entries, EnvoyAnswer::Allow)?;
        let subject = parts_of(subject, &rule.entries)?;
        Ok(Self { subject, policy: policy.to_owned(), always: None, ..rule })
    }

    /// Creates a rule for the same descriptors as [`new`](Self::new), which get `answer` without a policy.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if there are no entries.
    pub fn always<'a>(
        domain: &str,
        entries: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
        answer: EnvoyAnswer,
    ) -> Result<Self, Error> {
        let owned = |(key, value): (&str, Option<&str>)| (key.to_owned(), value.map(Pattern::new));
        let entries: Vec<_> = entries.into_iter().map(owned).collect();
        if entries.is_empty() {
            return Err(invalid("a descriptor has at least one entry"));
        }
        Ok(Self {
            domain: domain.to_owned(),
            entries,
            policy: String::new(),
            subject: Vec::new(),
            unit: REQUESTS.to_owned(),
            legacy_fields: false,
            always: Some(answer),
        })
    }

    /// Charges hits as `unit` instead of `requests`.
    #[must_use]
    pub fn unit(mut self, unit: &str) -> Self {
        unit.clone_into(&mut self.unit);
        self
    }

    /// Adds the headers `x-ratelimit-limit`, `-remaining` and `-reset`, too.
    #[must_use]
    pub const fn legacy_fields(mut self, wanted: bool) -> Self {
        self.legacy_fields = wanted;
        self
    }

    pub(super) fn policy(&self) -> &str {
        &self.policy
    }

    pub(super) const fn answer(&self) -> Option<EnvoyAnswer> {
        self.always
    }

    pub(super) fn hit_unit(&self) -> &str {
        &self.unit
    }

    pub(super) const fn has_legacy_fields(&self) -> bool {
        self.legacy_fields
    }

    fn matches(&self, domain: &str, entries: &[Entry]) -> bool {
        self.domain == domain
            && self.entries.len() == entries.len()
            && self.entries.iter().zip(entries).all(|((key, value), entry)| {
                *key == entry.key && value.as_ref().is_none_or(|value| value.matches(&entry.value))
            })
    }

    /// Returns the subject of a descriptor that matches.
    pub(super) fn subject(&self, entries: &[Entry], options: &ServerOptions) -> String {
        let value_of = |index: usize| {
            let Entry { key, value, .. } = &entries[index];
            match key.as_str() {
                REMOTE_ADDRESS => Cow::Owned(network(value, options)),
                _ => Cow::Borrowed(value.as_str()),
            }
        };
        let values = self.subject.iter().filter(|part| matches!(part, Part::Value(_))).count();
        let mut subject = String::new();
        for part in &self.subject {
            match part {
                Part::Text(text) => subject.push_str(text),
                Part::Value(index) if values < 2 => subject.push_str(&value_of(*index)),
                // What could be mistaken for the text between values is escaped.
                Part::Value(index) => {
                    subject.extend(utf8_percent_encode(&value_of(*index), ESCAPED));
                }
            }
        }
        bounded(subject)
    }
}

/// What descriptors mean: rules, of which the first that matches applies, and the domains of a configuration of
/// envoyproxy/ratelimit.
#[derive(Clone, Debug, Default)]
pub struct EnvoyMap {
    rules: Vec<EnvoyRule>,
    unmatched: EnvoyAnswer,
    rate_limits: Option<Arc<RateLimits>>,
    /// Set if a management server sends the limits.
    expected: Option<Readiness>,
}

impl EnvoyMap {
    /// Replaces the answer for descriptors that nothing matches, which is [`EnvoyAnswer::Allow`].
    #[must_use]
    pub const fn unmatched(mut self, answer: EnvoyAnswer) -> Self {
        self.unmatched = answer;
        self
    }

    /// Answers requests of the domains of `limits` by them. Their policies must be among those of the application.
    #[must_use]
    pub fn rate_limits(mut self, limits: RateLimits) -> Self {
        self.rate_limits = Some(Arc::new(limits));
        self
    }

    /// Expects the limits of a management server. Until they are set, requests of domains that no rule names are an error, so
    /// that Envoy decides by its failure mode. `readiness` is when the server is ready.
    #[must_use]
    pub const fn expect_rate_limits(mut self, readiness: Readiness) -> Self {
        self.expected = Some(readiness);
        self
    }

    /// Returns an error if limits that are expected have not come yet and nothing else is known of `domain`.
    pub(super) fn check_loaded(&self, domain: &str) -> Result<(), Error> {
        if self.expected.is_none() || self.rate_limits.is_some() || self.has_domain(domain) {
            return Ok(());
        }
        Err(unavailable("there are no limits yet: the management server has not sent any"))
    }

    /// Returns an error if the server is not ready, because limits that are expected have not come yet.
    pub(crate) fn check_ready(&self) -> Result<(), Error> {
        let domains = self.rate_limits.as_ref().map(|limits| limits.config().domains().len());
        match (self.expected, domains) {
            (Some(Readiness::Loaded | Readiness::Domains), None) => {
                Err(unavailable("the management server has not sent limits yet"))
            }
            (Some(Readiness::Domains), Some(0)) => {
                Err(unavailable("the management server has withdrawn all limits"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn find(&self, domain: &str, entries: &[Entry]) -> Option<&EnvoyRule> {
        self.rules.iter().find(|rule| rule.matches(domain, entries))
    }

    pub(super) const fn answer_unmatched(&self) -> EnvoyAnswer {
        self.unmatched
    }

    /// Returns whether anything is known of `domain`.
    pub(super) fn has_domain(&self, domain: &str) -> bool {
        self.rules.iter().any(|rule| rule.domain == domain)
            || self.rate_limits.as_ref().is_some_and(|limits| limits.config().has_domain(domain))
    }

    pub(crate) const fn limits(&self) -> Option<&Arc<RateLimits>> {
        self.rate_limits.as_ref()
    }
}

impl FromIterator<EnvoyRule> for EnvoyMap {
    fn from_iter<I: IntoIterator<Item = EnvoyRule>>(rules: I) -> Self {
        Self { rules: rules.into_iter().collect(), ..Self::default() }
    }
}

fn parts_of(template: &str, entries: &[(String, Option<Pattern>)]) -> Result<Vec<Part>, Error> {
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some((text, after)) = rest.split_once('{') {
        let (key, after) = after
            .split_once('}')
            .ok_or_else(|| invalid(format!("subject {template:?} has a {{ without a }}")))?;
        let index = entries.iter().position(|(entry, _)| entry == key).ok_or_else(|| {
            let known = entries.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>().join(", ");
            invalid(format!("subject {template:?} names {key:?}, which is no key of the descriptor; known: {known}"))
        })?;
        if !parts.is_empty() && text.bytes().all(is_plain) {
            return Err(invalid(format!(
                "subject {template:?} has no separator between two values; write a / or a | between them"
            )));
        }
        if !text.is_empty() {
            parts.push(Part::Text(text.to_owned()));
        }
        parts.push(Part::Value(index));
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    if parts.is_empty() {
        return Err(invalid("the subject is empty; write {key} for the value of an entry"));
    }
    Ok(parts)
}

const fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':')
}

fn unavailable(text: &str) -> Error {
    Error::new(ErrorKind::Unavailable, text)
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

#[cfg(test)]
mod tests {
    use tollgate::core::bounds::SUBJECT_BYTES_MAX;

    use super::*;

    fn entries(pairs: &[(&str, &str)]) -> Vec<Entry> {
        let of = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
        pairs.iter().map(of).collect()
    }

    #[test]
    fn a_rule_matches_its_keys_in_order_and_the_values_it_names() {
        let keys = [("path", Some("/login")), ("ip", None)];
        let map: EnvoyMap =
            [EnvoyRule::new("shop", keys, "login", "{ip}").unwrap()].into_iter().collect();
        let found = |domain, pairs| map.find(domain, &entries(pairs)).is_some();
        assert!(found("shop", &[("path", "/login"), ("ip", "10.0.0.1")]));
        assert!(!found("other", &[("path", "/login"), ("ip", "10.0.0.1")]));
        assert!(!found("shop", &[("path", "/cart"), ("ip", "10.0.0.1")]));
        assert!(!found("shop", &[("ip", "10.0.0.1"), ("path", "/login")]));
        assert!(!found("shop", &[("path", "/login")]));
        assert!(!found("shop", &[("path", "/login"), ("ip", "10.0.0.1"), ("x", "y")]));
    }

    #[test]
    fn a_value_may_have_wildcards() {
        let rule = EnvoyRule::new("d", [("path", Some("/api/*/v1"))], "p", "{path}").unwrap();
        let map: EnvoyMap = [rule].into_iter().collect();
        assert!(map.find("d", &entries(&[("path", "/api/x/v1")])).is_some());
        assert!(map.find("d", &entries(&[("path", "/api/x/v2")])).is_none());
        assert!(map.has_domain("d") && !map.has_domain("e"));
    }

    #[test]
    fn different_values_are_different_subjects() {
        let rule = EnvoyRule::new("d", [("a", None), ("b", None)], "p", "{a}/{b}").unwrap();
        let subject =
            |a, b| rule.subject(&entries(&[("a", a), ("b", b)]), &ServerOptions::default());
        assert_eq!(subject("x", "10.0.0.1"), "x/10.0.0.1");
        assert_ne!(subject("x/y", "z"), subject("x", "y/z"));
        assert_ne!(subject("x%2Fy", "z"), subject("x/y", "z"));
        let long = "v".repeat(SUBJECT_BYTES_MAX);
        assert!(subject(&long, "z").starts_with("sha256:"));
        assert_ne!(subject(&long, "z"), subject(&long, "y"));
        let one = EnvoyRule::new("d", [("a", None)], "p", "{a}").unwrap();
        assert_eq!(one.subject(&entries(&[("a", "x/y z")]), &ServerOptions::default()), "x/y z");
        assert!(
            one.subject(&entries(&[("a", "")]), &ServerOptions::default()).starts_with("sha256:")
        );
    }

    #[test]
    fn a_wrong_template_is_refused() {
        let wrong = |subject| {
            EnvoyRule::new("d", [("a", None), ("b", None)], "p", subject).unwrap_err().to_string()
        };
        assert!(wrong("{c}").contains("known: a, b"));
        assert!(wrong("{a").contains("without a }"));
        assert!(wrong("{a}{b}").contains("no separator between two values"));
        assert!(wrong("{a}x{b}").contains("no separator between two values"));
        assert!(wrong("").contains("empty"));
        assert!(EnvoyRule::new("d", [], "p", "all").is_err());
    }
}
