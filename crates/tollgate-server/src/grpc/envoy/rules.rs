//! LivePolicies that map Envoy's descriptors to policies, subjects and units.
//!
//! A subject is built from values that Envoy forwards from its clients. Any value must yield some subject: an error would
//! let the request through, by Envoy's default.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tollgate::core::REQUESTS;
use tollgate::{Error, ErrorKind};
use tollgate_protocol::protobuf::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

use crate::app::ServerOptions;
use crate::proxy_subject::{bounded, network};

/// The key of the entry with the address of Envoy's client.
const REMOTE_ADDRESS: &str = "remote_address";

/// The characters that are escaped where a subject has several values: all that [`is_plain`] excludes.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// Maps one kind of descriptor to a policy and a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyRule {
    domain: String,
    entries: Vec<(String, Option<String>)>,
    policy: String,
    subject: Vec<Part>,
    unit: String,
    legacy_fields: bool,
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
    /// have it. In `subject`, `{key}` stands for the value of an entry.
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
        let owned = |(key, value): (&str, Option<&str>)| (key.to_owned(), value.map(str::to_owned));
        let entries: Vec<_> = entries.into_iter().map(owned).collect();
        if entries.is_empty() {
            return Err(invalid("a descriptor has at least one entry"));
        }
        Ok(Self {
            subject: parts_of(subject, &entries)?,
            domain: domain.to_owned(),
            entries,
            policy: policy.to_owned(),
            unit: REQUESTS.to_owned(),
            legacy_fields: false,
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
                *key == entry.key && value.as_ref().is_none_or(|value| *value == entry.value)
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

/// All rules; the first that matches applies.
#[derive(Clone, Debug, Default)]
pub struct EnvoyMap(Vec<EnvoyRule>);

impl EnvoyMap {
    pub(super) fn find(&self, domain: &str, entries: &[Entry]) -> Option<&EnvoyRule> {
        self.0.iter().find(|rule| rule.matches(domain, entries))
    }
}

impl FromIterator<EnvoyRule> for EnvoyMap {
    fn from_iter<I: IntoIterator<Item = EnvoyRule>>(rules: I) -> Self {
        Self(rules.into_iter().collect())
    }
}

fn parts_of(template: &str, entries: &[(String, Option<String>)]) -> Result<Vec<Part>, Error> {
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
