//! One configuration as it is written: a domain and its descriptors.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

use crate::ConfigError;
use crate::fields::Fields;
use crate::yaml::{self, Node};

const ROOT: &[&str] = &["domain", "descriptors"];
const DESCRIPTOR: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
const RATE_LIMIT: &[&str] = &["unit", "requests_per_unit", "unlimited", "name", "replaces"];
const REPLACES: &[&str] = &["name"];

/// The configuration of one domain, from a YAML file or from a management server.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainFile {
    /// The name of the file or of the resource, for errors.
    pub source: String,
    /// The domain.
    pub domain: String,
    /// The descriptors on the first level.
    pub descriptors: Vec<Descriptor>,
    /// Lines that are accepted and have no effect.
    pub warnings: Vec<ConfigError>,
}

/// A descriptor as it is written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Descriptor {
    /// The line in the file; 0 if it does not come from a file.
    pub line: usize,
    /// The key.
    pub key: String,
    /// The value, in which `*` stands for any text; empty for every value.
    pub value: String,
    /// The limit of requests that end at this level.
    pub rate_limit: Option<RateLimit>,
    /// The next level.
    pub descriptors: Vec<Descriptor>,
    /// Whether the limit is counted and never enforced.
    pub shadow_mode: bool,
    /// Whether the limit refuses only if all limits of the request with this mode do.
    pub quota_mode: bool,
    /// Whether metrics carry the values of the request.
    pub detailed_metric: bool,
    /// Whether metrics carry the value that matched this level.
    pub value_to_metric: bool,
    /// Whether all values that match a wildcard share one limit.
    pub share_threshold: bool,
    /// What the response carries while the limit is not exceeded.
    pub metadata: Option<Map<String, Value>>,
}

/// A limit as it is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    /// The window; `None` if there is no limit.
    pub unit: Option<Unit>,
    /// How many requests a window admits; 0 refuses all.
    pub requests_per_unit: u32,
    /// Whether there is no limit.
    pub unlimited: bool,
    /// The name that others replace it by.
    pub name: String,
    /// The names of the limits that do not apply where this one does.
    pub replaces: Vec<String>,
}

/// The length of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
    /// A day.
    Day,
    /// Seven days.
    Week,
    /// Thirty days, or a calendar month.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    pub(crate) const ALL: [(Self, &'static str); 7] = [
        (Self::Second, "second"),
        (Self::Minute, "minute"),
        (Self::Hour, "hour"),
        (Self::Day, "day"),
        (Self::Week, "week"),
        (Self::Month, "month"),
        (Self::Year, "year"),
    ];

    /// Returns the length of a window of the original.
    #[must_use]
    pub const fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        }
    }

    /// Returns the name in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(unit, _)| *unit == self).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Unit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(text));
        found.map(|(unit, _)| *unit).ok_or_else(|| {
            let names = Self::ALL.map(|(_, name)| name).join(", ");
            format!("unit {text:?} is none of {names}")
        })
    }
}

impl DomainFile {
    /// Parses `text`, the contents of the YAML file called `source`.
    ///
    /// # Errors
    /// If it is not valid YAML, has an unknown key, or a value of a wrong type.
    pub fn parse(source: &str, text: &str) -> Result<Self, ConfigError> {
        let root = yaml::parse(source, text)?;
        if root.is_null() {
            let message = "the file is empty; start it with domain: NAME, or remove it";
            return Err(ConfigError::whole(source, message));
        }
        let mut reader = Reader { file: source, warnings: Vec::new() };
        let fields = reader.fields(&root, "the file", ROOT, &[DESCRIPTOR, RATE_LIMIT])?;
        let domain = fields.text("domain")?;
        let descriptors = reader.descriptors(&fields)?;
        Ok(Self { source: source.to_owned(), domain, descriptors, warnings: reader.warnings })
    }
}

struct Reader<'a> {
    file: &'a str,
    warnings: Vec<ConfigError>,
}

impl<'a> Reader<'a> {
    /// Keys of `others` are known to the original in every place, so they are warnings.
    fn fields(
        &mut self,
        node: &'a Node,
        what: &str,
        known: &[&'static str],
        others: &[&[&str]],
    ) -> Result<Fields<'a>, ConfigError> {
        let elsewhere = |name: &str| {
            let is_known = others.iter().any(|keys| keys.contains(&name));
            is_known.then_some(match name {
                "domain" => "at the top of the file",
                _ if RATE_LIMIT.contains(&name) => "to rate_limit",
                _ => "to a descriptor",
            })
        };
        Fields::read(self.file, node, what, known, elsewhere, &mut self.warnings)
    }

    fn descriptors(&mut self, fields: &Fields<'a>) -> Result<Vec<Descriptor>, ConfigError> {
        fields.list("descriptors")?.iter().map(|node| self.descriptor(node)).collect()
    }

    fn descriptor(&mut self, node: &'a Node) -> Result<Descriptor, ConfigError> {
        let fields = self.fields(node, "a descriptor", DESCRIPTOR, &[ROOT, RATE_LIMIT])?;
        let rate_limit = fields.get("rate_limit").map(|node| self.rate_limit(node)).transpose()?;
        Ok(Descriptor {
            line: fields.line(),
            key: fields.text("key")?,
            value: fields.text("value")?,
            rate_limit,
            descriptors: self.descriptors(&fields)?,
            shadow_mode: fields.flag("shadow_mode")?,
            quota_mode: fields.flag("quota_mode")?,
            detailed_metric: fields.flag("detailed_metric")?,
            value_to_metric: fields.flag("value_to_metric")?,
            share_threshold: fields.flag("share_threshold")?,
            metadata: fields.object("metadata")?,
        })
    }

    fn rate_limit(&mut self, node: &'a Node) -> Result<RateLimit, ConfigError> {
        let fields = self.fields(node, "rate_limit", RATE_LIMIT, &[ROOT, DESCRIPTOR])?;
        let unit = fields.text("unit")?;
        let unit = match unit.as_str() {
            "" => None,
            text => Some(text.parse().map_err(|message: String| fields.error("unit", message))?),
        };
        let unlimited = fields.flag("unlimited")?;
        match unit {
            Some(_) if unlimited => {
                let message = "unlimited: true has no unit; remove one of the two";
                return Err(fields.error("unit", message));
            }
            None if !unlimited => {
                let message = "rate_limit needs unit, as in unit: minute, or unlimited: true";
                return Err(fields.error("unit", message));
            }
            _ => {}
        }
        let requests = fields.number("requests_per_unit", &u32::MAX)?;
        if requests.is_none() && !unlimited {
            let message = "requests_per_unit is missing, which means 0: every request is refused";
            self.warnings.push(fields.error("requests_per_unit", message));
        }
        let mut replaces = Vec::new();
        for node in fields.list("replaces")? {
            let entry = self.fields(node, "an element of replaces", REPLACES, &[])?;
            replaces.push(entry.text("name")?);
        }
        Ok(RateLimit {
            unit,
            requests_per_unit: requests.unwrap_or(0),
            unlimited,
            name: fields.text("name")?,
            replaces,
        })
    }
}
