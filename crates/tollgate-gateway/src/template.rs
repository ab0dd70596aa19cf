//! Subjects with placeholders.

use hyper::HeaderMap;
use hyper::header::HeaderName;
use tollgate::internal::nearest;
use tollgate::{Error, ErrorKind};

use crate::options::GatewayKey;

/// The names of placeholders, apart from headers.
const KNOWN: [&str; 5] = ["key.subject", "key.team", "key.name", "upstream", "model"];

/// A parsed subject of a [`ChargeTemplate`](crate::ChargeTemplate).
#[derive(Clone, Debug)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    KeySubject,
    KeyTeam,
    KeyName,
    Upstream,
    Model,
    Header(HeaderName),
}

/// The values of placeholders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Values<'a> {
    pub(crate) key: &'a GatewayKey,
    pub(crate) upstream: &'a str,
    pub(crate) model: &'a str,
    pub(crate) headers: &'a HeaderMap,
}

impl Template {
    /// Parses `text`; braces are placeholders.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if `text` is empty, or has an unknown placeholder.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let invalid = |why: String| Error::new(ErrorKind::Invalid, why);
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let (name, after) = after.split_once('}').ok_or_else(|| {
                invalid(format!("subject {text:?} has no closing brace after {{{after}"))
            })?;
            parts.push(Part::parse(name).ok_or_else(|| {
                let hint = nearest(name, KNOWN).map(|name| format!(" did you mean {{{name}}}?"));
                invalid(format!(
                    "subject {text:?} has an unknown placeholder {{{name}}};{} use {{key.subject}}, {{key.team}}, {{key.name}}, \
                     {{upstream}}, {{model}} or {{header.NAME}}",
                    hint.unwrap_or_default()
                ))
            })?);
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        if parts.is_empty() {
            return Err(invalid("a subject must not be empty; write \"{key.subject}\"".to_owned()));
        }
        Ok(Self(parts))
    }

    /// Returns whether the subject differs between upstreams.
    #[must_use]
    pub fn names_upstream(&self) -> bool {
        self.0.contains(&Part::Upstream)
    }

    /// Returns whether it names the team of the key.
    #[must_use]
    pub fn names_team(&self) -> bool {
        self.0.contains(&Part::KeyTeam)
    }

    /// Returns whether it names a header, which only trusted keys may send.
    #[must_use]
    pub fn names_header(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Header(_)))
    }

    /// Fills the placeholders in. The error says what is missing.
    pub(crate) fn fill(&self, values: &Values<'_>) -> Result<String, String> {
        let mut subject = String::with_capacity(32);
        for part in &self.0 {
            subject.push_str(part.fill(values)?);
        }
        Ok(subject)
    }
}

impl Part {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "key.subject" => Self::KeySubject,
            "key.team" => Self::KeyTeam,
            "key.name" => Self::KeyName,
            "upstream" => Self::Upstream,
            "model" => Self::Model,
            _ => Self::Header(name.strip_prefix("header.")?.parse().ok()?),
        })
    }

    fn fill<'a>(&'a self, values: &Values<'a>) -> Result<&'a str, String> {
        Ok(match self {
            Self::Text(text) => text,
            Self::KeySubject => &values.key.subject,
            Self::KeyTeam => match &values.key.team {
                Some(team) => team,
                None => {
                    return Err(format!(
                        "the key {:?} has no team, which this route charges",
                        values.key.name
                    ));
                }
            },
            Self::KeyName => &values.key.name,
            Self::Upstream => values.upstream,
            Self::Model => values.model,
            Self::Header(name) if values.key.trusted => {
                let value = values.headers.get(name).and_then(|value| value.to_str().ok());
                value.filter(|value| !value.is_empty()).ok_or_else(|| {
                    format!(
                        "this route charges by the header {name}, which the request does not have"
                    )
                })?
            }
            Self::Header(name) => {
                return Err(format!(
                    "this route charges by the header {name}, which only a trusted key may send"
                ));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use tollgate_server::keys::KeyHash;

    use super::*;

    #[test]
    fn placeholders_are_filled_and_unknown_ones_rejected() {
        let mut key = GatewayKey::new("ci", KeyHash::from_key("k"));
        key.team = Some("t7".to_owned());
        let mut headers = HeaderMap::new();
        headers.insert("x-user", "u1".parse().unwrap());
        let fill = |text: &str, key: &GatewayKey| {
            let values = Values { key, upstream: "main", model: "gpt-4o", headers: &headers };
            Template::parse(text).unwrap().fill(&values)
        };
        assert_eq!(fill("{key.team}/{key.name}", &key).unwrap(), "t7/ci");
        assert_eq!(fill("{upstream}:{model}", &key).unwrap(), "main:gpt-4o");
        assert!(fill("{header.x-user}", &key).unwrap_err().contains("trusted"));
        key.trusted = true;
        assert_eq!(fill("u-{header.x-user}", &key).unwrap(), "u-u1");
        assert!(fill("{header.x-other}", &key).unwrap_err().contains("x-other"));
        for bad in ["{key}", "{header.}", "{key.team", ""] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }
}
