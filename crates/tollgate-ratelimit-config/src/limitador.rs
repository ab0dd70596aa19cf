//! The limits file of Limitador.

use crate::ConfigError;
use crate::fields::Fields;
use crate::yaml::{self, Kind, Node};

const LIMIT: &[&str] =
    &["id", "namespace", "max_value", "seconds", "name", "conditions", "variables"];

/// One limit as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The line in the file.
    pub line: usize,
    /// The namespace, which is the domain of Envoy's requests.
    pub namespace: String,
    /// How much a window admits.
    pub max_value: u64,
    /// The length of a window.
    pub seconds: u64,
    /// The name, if it has one.
    pub name: Option<String>,
    /// What must be true for the limit to apply.
    pub conditions: Vec<Condition>,
    /// The keys whose values are counted apart.
    pub variables: Vec<String>,
}

/// A condition of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The value of a key must be equal to a text.
    Equals {
        /// The key.
        key: String,
        /// The text.
        value: String,
    },
    /// Anything else, such as an expression.
    Other(String),
}

/// Parses `text`, the contents of `file`.
///
/// # Errors
/// If it is not valid YAML, has an unknown key, or a value of a wrong type.
pub fn parse(file: &str, text: &str) -> Result<Vec<Limit>, ConfigError> {
    let root = yaml::parse(file, text)?;
    match &root.kind {
        Kind::List(list) => list.iter().map(|node| limit(file, node)).collect(),
        _ if root.is_null() => Ok(Vec::new()),
        _ => {
            let message = format!("the file must be a list of limits, not {}", root.kind_name());
            Err(ConfigError::at(file, root.line, message))
        }
    }
}

fn limit(file: &str, node: &Node) -> Result<Limit, ConfigError> {
    let fields = Fields::read(file, node, "a limit", LIMIT, |_| None, &mut Vec::new())?;
    let need = |name: &str| fields.error(name, format!("a limit needs {name}"));
    let namespace = fields.text("namespace")?;
    if namespace.is_empty() {
        return Err(need("namespace"));
    }
    let number = |name: &str| fields.number(name, &u64::MAX)?.ok_or_else(|| need(name));
    let texts = |name: &str| {
        let text = |node: &Node| match &node.kind {
            Kind::Scalar { text, .. } => Ok(text.clone()),
            _ => Err(ConfigError::at(
                file,
                node.line,
                format!("{name} are texts, not {}", node.kind_name()),
            )),
        };
        fields.list(name)?.iter().map(text).collect::<Result<Vec<_>, _>>()
    };
    Ok(Limit {
        line: fields.line(),
        namespace,
        max_value: number("max_value")?,
        seconds: number("seconds")?,
        name: Some(fields.text("name")?).filter(|name| !name.is_empty()),
        conditions: texts("conditions")?.iter().map(|text| condition(text)).collect(),
        variables: texts("variables")?.iter().map(|text| key(text)).collect(),
    })
}

/// Reads `key == 'value'`; newer versions write `descriptors[0]['key'] == 'value'`, or with a dot.
fn condition(text: &str) -> Condition {
    let other = || Condition::Other(text.to_owned());
    let Some((left, right)) = text.split_once("==") else { return other() };
    let right = right.trim();
    let quoted = |quote: char| right.strip_prefix(quote)?.strip_suffix(quote);
    match quoted('\'').or_else(|| quoted('"')) {
        Some(value) if !value.contains(['\'', '"']) && is_key(&key(left)) => {
            Condition::Equals { key: key(left), value: value.to_owned() }
        }
        _ => other(),
    }
}

/// Returns the key that `text` names, or `text` if it is an expression.
fn key(text: &str) -> String {
    let text = text.trim();
    let Some(inner) = text.strip_prefix("descriptors[0]") else { return text.to_owned() };
    let quoted =
        |quote: &str| inner.strip_prefix(&format!("[{quote}"))?.strip_suffix(&format!("{quote}]"));
    let inner = quoted("'").or_else(|| quoted("\"")).or_else(|| inner.strip_prefix('.'));
    inner.filter(|key| is_key(key)).unwrap_or(text).to_owned()
}

/// Returns whether `text` is the key of a descriptor, and not an expression.
#[must_use]
pub fn is_key(text: &str) -> bool {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/');
    !text.is_empty() && text.chars().all(is_plain)
}
