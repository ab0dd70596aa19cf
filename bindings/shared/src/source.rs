//! What a gate is opened from: a file, configuration text, or values.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tollgate_config::{Config, Diagnostic};

use crate::Error;

/// A checked configuration. Sections of other programs, such as `[server]`, are ignored.
#[derive(Clone, Debug)]
pub struct Source {
    pub(crate) config: Arc<Config>,
}

impl Source {
    /// Reads the file `path`, a `tollgate.toml`.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) with the line, what is wrong and what would be right.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        Ok(Self { config: Arc::new(Config::load(Some(path))?) })
    }

    /// Parses `text`, which is written like a `tollgate.toml`. Relative paths start from the working folder.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    pub fn from_text(text: &str) -> Result<Self, Error> {
        let config = Config::parse(Some(Path::new("configuration")), text)?;
        Ok(Self { config: Arc::new(config) })
    }

    /// Checks `values`: the sections of a `tollgate.toml` as an object, such as
    /// `{"store": {"kind": "redis", "url": "…"}, "strategy": {…}, "policy": […]}`. Nulls count as left out.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) with what is wrong and what would be right. The message shows no values of
    /// `store`, which may be secrets.
    pub fn from_values(values: &Value) -> Result<Self, Error> {
        let not_an_object =
            || Error::invalid("a configuration is an object, as in {\"policy\": [...]}");
        let values = without_nulls(values).filter(Value::is_object).ok_or_else(not_an_object)?;
        let text = toml::to_string(&values).map_err(|error| {
            Error::invalid(format!("the values cannot be written as a configuration: {error}"))
        })?;
        let config = Config::parse(Some(Path::new("arguments")), &text);
        let config = config.map_err(|error: Diagnostic| Error::invalid(error.message()))?;
        Ok(Self { config: Arc::new(config) })
    }
}

/// TOML has no null.
fn without_nulls(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Array(elements) => {
            Some(Value::Array(elements.iter().filter_map(without_nulls).collect()))
        }
        Value::Object(fields) => {
            let fields = fields.iter().filter_map(|(name, value)| {
                without_nulls(value).map(|value| (name.clone(), value))
            });
            Some(Value::Object(fields.collect()))
        }
        other => Some(other.clone()),
    }
}
