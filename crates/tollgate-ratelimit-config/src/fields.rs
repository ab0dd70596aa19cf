//! The fields of a YAML map, read strictly: an unknown key, or a value of another type, is an error.

use serde_json::{Map, Number, Value};
use tollgate::internal::nearest;

use crate::ConfigError;
use crate::yaml::{Key, Kind, Node};

/// The fields of one map.
pub(crate) struct Fields<'a> {
    file: &'a str,
    line: usize,
    entries: &'a [(Key, Node)],
}

impl<'a> Fields<'a> {
    /// Reads `node`, which must be a map of `known` keys. A key for which `elsewhere` returns the place where it belongs is a
    /// warning.
    pub(crate) fn read(
        file: &'a str,
        node: &'a Node,
        what: &str,
        known: &[&'static str],
        elsewhere: impl Fn(&str) -> Option<&'static str>,
        warnings: &mut Vec<ConfigError>,
    ) -> Result<Self, ConfigError> {
        let Kind::Map(entries) = &node.kind else {
            let message =
                format!("{what} must be a map of {}, not {}", known.join(", "), node.kind_name());
            return Err(ConfigError::at(file, node.line, message));
        };
        for (key, _) in entries {
            let name = key.name.as_str();
            if !key.is_text() {
                let message = format!("the key {name:?} is not text; known: {}", known.join(", "));
                return Err(ConfigError::at(file, key.line, message));
            }
            if known.contains(&name) {
                continue;
            }
            if let Some(place) = elsewhere(name) {
                let message = format!("{name} has no effect here; it belongs {place}");
                warnings.push(ConfigError::at(file, key.line, message));
                continue;
            }
            let likely = nearest(name, known.iter().copied());
            let likely = likely.map(|name| format!("did you mean {name}? ")).unwrap_or_default();
            let message =
                format!("{what} has no key {name:?}; {likely}known: {}", known.join(", "));
            return Err(ConfigError::at(file, key.line, message));
        }
        Ok(Self { file, line: node.line, entries })
    }

    pub(crate) const fn line(&self) -> usize {
        self.line
    }

    pub(crate) fn error(&self, name: &str, message: impl Into<String>) -> ConfigError {
        let line = self.find(name).map_or(self.line, |node| node.line);
        ConfigError::at(self.file, line, message)
    }

    /// Returns the value of `name`, unless it is null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Node> {
        self.find(name).filter(|node| !node.is_null())
    }

    fn find(&self, name: &str) -> Option<&'a Node> {
        self.entries.iter().find(|(key, _)| key.name == name).map(|(_, node)| node)
    }

    /// Returns the text of `name`, empty if it is missing.
    pub(crate) fn text(&self, name: &str) -> Result<String, ConfigError> {
        let Some(node) = self.get(name) else { return Ok(String::new()) };
        match &node.kind {
            Kind::Scalar { text, .. } => Ok(text.clone()),
            _ => Err(self.error(name, format!("{name} must be a text, not {}", node.kind_name()))),
        }
    }

    /// Returns the boolean `name`, false if it is missing. The words are those of YAML 1.1, as the original reads them.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, ConfigError> {
        let Some(node) = self.get(name) else { return Ok(false) };
        if let Kind::Scalar { text, plain: true } = &node.kind {
            match text.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "y" => return Ok(true),
                "false" | "no" | "off" | "n" => return Ok(false),
                _ => {}
            }
        }
        Err(self.error(name, format!("{name} must be true or false")))
    }

    /// Returns the number `name`, if it is given.
    pub(crate) fn number<T: TryFrom<u64> + std::fmt::Display>(
        &self,
        name: &str,
        most: &T,
    ) -> Result<Option<T>, ConfigError> {
        let Some(node) = self.get(name) else { return Ok(None) };
        let number = match &node.kind {
            Kind::Scalar { text, plain: true } => integer(text),
            _ => None,
        };
        let number = number.and_then(|number| T::try_from(number).ok());
        number.map(Some).ok_or_else(|| {
            self.error(name, format!("{name} must be a whole number from 0 to {most}"))
        })
    }

    /// Returns the elements of the list `name`, none if it is missing.
    pub(crate) fn list(&self, name: &str) -> Result<&'a [Node], ConfigError> {
        let Some(node) = self.get(name) else { return Ok(&[]) };
        match &node.kind {
            Kind::List(list) => Ok(list),
            _ => Err(self.error(name, format!("{name} must be a list, not {}", node.kind_name()))),
        }
    }

    /// Returns the free-form map `name`.
    pub(crate) fn object(&self, name: &str) -> Result<Option<Map<String, Value>>, ConfigError> {
        let Some(node) = self.get(name) else { return Ok(None) };
        match json(node) {
            Value::Object(map) => Ok(Some(map)),
            _ => Err(self.error(name, format!("{name} must be a map, not {}", node.kind_name()))),
        }
    }
}

fn integer(text: &str) -> Option<u64> {
    let digits = text.replace('_', "");
    match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
}

fn json(node: &Node) -> Value {
    match &node.kind {
        Kind::Map(entries) => Value::Object(
            entries.iter().map(|(key, node)| (key.name.clone(), json(node))).collect(),
        ),
        Kind::List(list) => Value::Array(list.iter().map(json).collect()),
        Kind::Scalar { text, plain: false } => Value::String(text.clone()),
        Kind::Scalar { .. } if node.is_null() => Value::Null,
        Kind::Scalar { text, .. } => match text.as_str() {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            _ => text
                .parse::<i64>()
                .map(Number::from)
                .ok()
                .or_else(|| text.parse::<f64>().ok().and_then(Number::from_f64))
                .map_or_else(|| Value::String(text.clone()), Value::Number),
        },
    }
}
