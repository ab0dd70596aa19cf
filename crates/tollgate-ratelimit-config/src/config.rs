//! All domains, and which limit the descriptors of a request get.
//!
//! The rules of matching are those of the original. On each level a descriptor with the same key and value is tried first,
//! then those with wildcards in the order of the file, then the one with the key alone. The request must have as many
//! entries as the configuration has levels. Keys and values are compared joined by an underscore, as the original does.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value};
use tollgate::Policy;

use crate::file::{Descriptor, DomainFile, RateLimit, Unit};
use crate::policies::{self, Windows};
use crate::{ConfigError, Pattern};

/// How files become one configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether several files may describe one domain (`MERGE_DOMAIN_CONFIG`).
    pub merge_domains: bool,
    /// The windows of the limits.
    pub windows: Windows,
    /// Whether a month is a calendar month (`USE_CALENDAR_MONTH_RATE_LIMIT`).
    pub calendar_months: bool,
}

/// The configuration of all domains.
#[derive(Clone, Debug, Default)]
pub struct RateLimitConfig {
    domains: BTreeMap<String, Level>,
    rules: Vec<Rule>,
    warnings: Vec<ConfigError>,
}

/// The descriptors on one level, by key and value joined.
#[derive(Clone, Debug, Default)]
struct Level {
    exact: HashMap<String, Node>,
    /// In the order of the file.
    wildcards: Vec<(Pattern, String)>,
}

#[derive(Clone, Debug)]
struct Node {
    /// The key and value joined.
    name: String,
    /// The value with wildcards that all matching values share.
    shared: Option<String>,
    value_to_metric: bool,
    rule: Option<usize>,
    next: Level,
}

/// A limit with everything that belongs to it.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Where it is: the domain, then the descriptor of each level.
    pub path: Arc<[String]>,
    /// How much it admits.
    pub quantity: Quantity,
    /// The name that others replace it by; may be empty.
    pub name: String,
    /// The names of the limits that do not apply where this one does.
    pub replaces: Vec<String>,
    /// Whether it is counted and never enforced.
    pub shadow_mode: bool,
    /// Whether it refuses only if all limits of the request with this mode do.
    pub quota_mode: bool,
    /// Whether metrics carry the values of the request.
    pub detailed_metric: bool,
    /// What the response carries while the limit is not exceeded.
    pub metadata: Option<Map<String, Value>>,
    /// The policy; `None` if it is unlimited or admits nothing.
    pub policy: Option<Policy>,
}

/// How much a limit admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Everything.
    Unlimited,
    /// Nothing, in windows of this unit.
    Blocked(Unit),
    /// So many per unit.
    PerUnit(u32, Unit),
}

/// The limit of one descriptor of a request.
#[derive(Clone, Debug)]
pub struct Match<'a> {
    /// The limit.
    pub rule: &'a Rule,
    /// The values of the request, which have their own count. Not yet bounded in length.
    pub subject: String,
    /// The key of the metrics: the domain, then one part for each level.
    pub stats: Arc<[String]>,
}

/// What applies to a descriptor of a request.
#[derive(Clone, Debug)]
pub enum Resolved<'a> {
    /// Nothing in the configuration.
    Unmatched,
    /// A descriptor without a limit.
    Exempt,
    /// A limit that another one of the request replaces.
    Replaced,
    /// A limit.
    Limited(Match<'a>),
}

impl Rule {
    /// Returns the parts of the path joined by dots, as metrics and errors show it.
    #[must_use]
    pub fn key(&self) -> String {
        self.path.join(".")
    }
}

impl RateLimitConfig {
    /// Checks `files` and joins them.
    ///
    /// # Errors
    /// If a domain or a key is empty, a domain or a descriptor is given twice, `share_threshold` is set without a wildcard,
    /// or `replaces` is empty or names its own limit.
    pub fn new(files: Vec<DomainFile>, options: Options) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        for file in files {
            if file.domain.is_empty() {
                let message = "domain is missing; start the file with domain: NAME";
                return Err(ConfigError::whole(&file.source, message));
            }
            if config.domains.contains_key(&file.domain) && !options.merge_domains {
                let message = format!(
                    "the domain {:?} is in another file, too; put its descriptors into one file, or allow it with \
                     MERGE_DOMAIN_CONFIG=true (merge_domains = true in [envoy])",
                    file.domain
                );
                return Err(ConfigError::whole(&file.source, message));
            }
            let mut level = config.domains.remove(&file.domain).unwrap_or_default();
            let mut loader = Loader { file: &file.source, options, rules: &mut config.rules };
            loader.load(&mut level, std::slice::from_ref(&file.domain), &file.descriptors)?;
            config.domains.insert(file.domain, level);
            config.warnings.extend(file.warnings);
        }
        Ok(config)
    }

    /// Returns lines that are accepted and have no effect.
    #[must_use]
    pub fn warnings(&self) -> &[ConfigError] {
        &self.warnings
    }

    /// Returns every limit, in the order of the files.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Returns the names of the domains.
    pub fn domains(&self) -> impl ExactSizeIterator<Item = &str> {
        self.domains.keys().map(String::as_str)
    }

    /// Returns whether `domain` is configured.
    #[must_use]
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Returns the policies of all limits.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.rules.iter().filter_map(|rule| rule.policy.as_ref())
    }

    /// Returns one line for each limit, as `/rlconfig` shows them.
    #[must_use]
    pub fn dump(&self) -> String {
        let line = |rule: &Rule| {
            let (unit, requests) = match rule.quantity {
                Quantity::Unlimited => ("UNKNOWN".to_owned(), 0),
                Quantity::Blocked(unit) => (unit.name().to_ascii_uppercase(), 0),
                Quantity::PerUnit(requests, unit) => (unit.name().to_ascii_uppercase(), requests),
            };
            let (shadow, quota) = (rule.shadow_mode, rule.quota_mode);
            format!(
                "{}: unit={unit} requests_per_unit={requests}, shadow_mode: {shadow}, quota_mode: {quota}\n",
                rule.key()
            )
        };
        self.rules.iter().map(line).collect()
    }

    /// Returns the limit of one descriptor, whose entries are keys and values.
    #[must_use]
    pub fn find(&self, domain: &str, entries: &[(&str, &str)]) -> Option<Match<'_>> {
        self.matched(domain, entries, &self.nodes(domain, entries)?)
    }

    /// Returns the node of each entry; `None` if one has none.
    fn nodes(&self, domain: &str, entries: &[(&str, &str)]) -> Option<Vec<(&Node, How)>> {
        let mut level = self.domains.get(domain)?;
        let mut nodes = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let (node, how) = level.find(key, value)?;
            nodes.push((node, how));
            level = &node.next;
        }
        Some(nodes)
    }

    /// Returns the limit of the last of `nodes`.
    fn matched(
        &self,
        domain: &str,
        entries: &[(&str, &str)],
        nodes: &[(&Node, How)],
    ) -> Option<Match<'_>> {
        let (last, _) = nodes.last()?;
        let rule = &self.rules[last.rule?];
        let shown = |index: usize| {
            let (node, how) = &nodes[index];
            node.shared.as_deref().filter(|_| *how == How::Wildcard).unwrap_or(entries[index].1)
        };
        let subject = (0..entries.len()).map(|index| escaped(shown(index)));
        Some(Match {
            rule,
            subject: subject.collect::<Vec<_>>().join("|"),
            stats: stats(domain, rule, entries, nodes),
        })
    }

    /// Returns what applies to each descriptor of a request.
    #[must_use]
    pub fn resolve(&self, domain: &str, descriptors: &[Vec<(&str, &str)>]) -> Vec<Resolved<'_>> {
        let resolve = |entries: &Vec<(&str, &str)>| match self.nodes(domain, entries) {
            None => Resolved::Unmatched,
            Some(nodes) => {
                self.matched(domain, entries, &nodes).map_or(Resolved::Exempt, Resolved::Limited)
            }
        };
        let mut all: Vec<Resolved<'_>> = descriptors.iter().map(resolve).collect();
        let mut replaced: HashSet<&str> = HashSet::new();
        for resolved in &all {
            if let Resolved::Limited(found) = resolved {
                replaced.extend(found.rule.replaces.iter().map(String::as_str));
            }
        }
        for resolved in &mut all {
            if let Resolved::Limited(Match { rule, .. }) = resolved
                && rule.quantity != Quantity::Unlimited
                && !rule.name.is_empty()
                && replaced.contains(rule.name.as_str())
            {
                *resolved = Resolved::Replaced;
            }
        }
        all
    }
}

/// How an entry was matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Exact,
    Wildcard,
    KeyAlone,
}

impl Level {
    fn find(&self, key: &str, value: &str) -> Option<(&Node, How)> {
        let joined = join(key, value);
        if let Some(node) = self.exact.get(&joined) {
            return Some((node, How::Exact));
        }
        if let Some((_, name)) = self.wildcards.iter().find(|(pattern, _)| pattern.matches(&joined))
        {
            return self.exact.get(name).map(|node| (node, How::Wildcard));
        }
        self.exact.get(key).map(|node| (node, How::KeyAlone))
    }
}

fn join(key: &str, value: &str) -> String {
    format!("{key}_{value}")
}

/// Escapes the separator of values, so that different values are different subjects.
fn escaped(value: &str) -> String {
    value.replace('%', "%25").replace('|', "%7C")
}

/// Returns the key of the metrics.
fn stats(
    domain: &str,
    rule: &Rule,
    entries: &[(&str, &str)],
    nodes: &[(&Node, How)],
) -> Arc<[String]> {
    let has_values = nodes.iter().any(|(node, how)| node.value_to_metric && *how != How::Exact);
    if !rule.detailed_metric && !has_values {
        return Arc::clone(&rule.path);
    }
    let with_value = |key: &str, value: &str| {
        if value.is_empty() { key.to_owned() } else { join(key, value) }
    };
    let shares = nodes.iter().any(|(node, how)| node.shared.is_some() && *how == How::Wildcard);
    let part = |((key, value), (node, how)): (&(&str, &str), &(&Node, How))| {
        let shared = node.shared.as_deref().filter(|_| *how == How::Wildcard);
        match (rule.detailed_metric, shared) {
            (_, Some(pattern)) => with_value(key, pattern),
            (true, None) if shares => with_value(key, value),
            (true, None) => join(key, value),
            (false, None) if node.value_to_metric && *how != How::Exact => with_value(key, value),
            (false, None) => node.name.clone(),
        }
    };
    let parts = entries.iter().zip(nodes).map(part);
    std::iter::once(domain.to_owned()).chain(parts).collect()
}

struct Loader<'a> {
    file: &'a str,
    options: Options,
    rules: &'a mut Vec<Rule>,
}

impl Loader<'_> {
    fn load(
        &mut self,
        level: &mut Level,
        parents: &[String],
        descriptors: &[Descriptor],
    ) -> Result<(), ConfigError> {
        for descriptor in descriptors {
            if descriptor.key.is_empty() {
                return Err(
                    self.error(descriptor, "a descriptor needs key, as in key: remote_address")
                );
            }
            let name = match descriptor.value.as_str() {
                "" => descriptor.key.clone(),
                value => join(&descriptor.key, value),
            };
            let path = [parents, std::slice::from_ref(&name)].concat();
            if level.exact.contains_key(&name) {
                let message = format!(
                    "the descriptor {} is given twice on this level; remove one, or put their nested descriptors into one",
                    path.join(".")
                );
                return Err(self.error(descriptor, message));
            }
            let pattern = Pattern::new(&name);
            if descriptor.share_threshold && !pattern.is_wildcard() {
                let message = format!(
                    "share_threshold is for values with a wildcard, and {name:?} has none; add *, or remove share_threshold"
                );
                return Err(self.error(descriptor, message));
            }
            let rule = match &descriptor.rate_limit {
                Some(limit) => Some(self.rule(descriptor, limit, path.clone().into())?),
                None => None,
            };
            let mut next = Level::default();
            self.load(&mut next, &path, &descriptor.descriptors)?;
            if pattern.is_wildcard() {
                level.wildcards.push((pattern, name.clone()));
            }
            let shared = descriptor.share_threshold.then(|| descriptor.value.clone());
            let value_to_metric = descriptor.value_to_metric;
            let node = Node { name: name.clone(), shared, value_to_metric, rule, next };
            level.exact.insert(name, node);
        }
        Ok(())
    }

    /// Adds the rule of `limit`, and returns its index.
    fn rule(
        &mut self,
        descriptor: &Descriptor,
        limit: &RateLimit,
        path: Arc<[String]>,
    ) -> Result<usize, ConfigError> {
        for replaced in &limit.replaces {
            if replaced.is_empty() {
                let message = "an element of replaces needs name, the name of another rate_limit";
                return Err(self.error(descriptor, message));
            }
            if *replaced == limit.name {
                let message = format!("the limit {replaced:?} replaces itself; name another one");
                return Err(self.error(descriptor, message));
            }
        }
        let quantity = match (limit.unit, limit.requests_per_unit) {
            _ if limit.unlimited => Quantity::Unlimited,
            (None, _) => {
                let message = "rate_limit needs unit, as in unit: minute, or unlimited: true";
                return Err(self.error(descriptor, message));
            }
            (Some(unit), 0) => Quantity::Blocked(unit),
            (Some(unit), requests) => Quantity::PerUnit(requests, unit),
        };
        let policy = policies::policy(&path, quantity, descriptor.shadow_mode, self.options);
        let policy = policy.map_err(|error| self.error(descriptor, error.to_string()))?;
        self.rules.push(Rule {
            path,
            quantity,
            name: limit.name.clone(),
            replaces: limit.replaces.clone(),
            shadow_mode: descriptor.shadow_mode,
            quota_mode: descriptor.quota_mode,
            detailed_metric: descriptor.detailed_metric,
            metadata: descriptor.metadata.clone(),
            policy,
        });
        Ok(self.rules.len() - 1)
    }

    fn error(&self, descriptor: &Descriptor, message: impl Into<String>) -> ConfigError {
        match descriptor.line {
            0 => ConfigError::whole(self.file, message),
            line => ConfigError::at(self.file, line, message),
        }
    }
}
