//! Usage that a provider reports, and which of it counts into which unit.

use std::fmt;
use std::sync::Arc;

use tollgate_core::Costs;

use crate::bounds::{USAGE_BYTES_MAX, USAGE_FIELDS_MAX};
use crate::call::Endpoint;
use crate::error::Error;
use crate::json::{JsonError, Kind, Names, Scanner};

/// The unit of all tokens that the provider counts against one limit.
pub const TOKENS: &str = "tokens";
/// The unit of input tokens.
pub const INPUT_TOKENS: &str = "input_tokens";
/// The unit of output tokens.
pub const OUTPUT_TOKENS: &str = "output_tokens";
/// The unit of money, in millionths of a dollar.
pub const USD_MICROS: &str = "usd_micros";

/// The numbers of a provider's usage object, by dotted name such as `prompt_tokens_details.cached_tokens`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageFields {
    /// The names of all fields, one after the other: every response is read, and a text for each field would be an allocation.
    names: String,
    /// Where the name of each field ends, and its value.
    fields: Vec<(usize, u64)>,
}

impl UsageFields {
    /// Flattens a usage object. Lists and texts in it are ignored, as is everything if `json` is not an object.
    #[must_use]
    pub fn from_json(json: &str) -> Self {
        let mut fields = Self::default();
        if json.len() <= USAGE_BYTES_MAX {
            let mut scanner = Scanner::new(json, Names::Exact);
            // What was read before an error is as good as without it.
            let _ = fields.flatten(&mut scanner, &mut String::new());
        }
        fields
    }

    /// Adds the numbers of the next value, if it is an object. `path` is the name of the object, which names its fields.
    fn flatten(&mut self, scanner: &mut Scanner<'_>, path: &mut String) -> Result<(), JsonError> {
        if scanner.kind()? != Kind::Object {
            return scanner.skip();
        }
        let start = path.len();
        scanner.object(|scanner, key| {
            path.truncate(start);
            path.push_str(&key.unescaped());
            match scanner.kind()? {
                Kind::Object => {
                    path.push('.');
                    self.flatten(scanner, path)
                }
                Kind::Number => {
                    if let Some(value) = scanner.number()? {
                        self.set(path, value);
                    }
                    Ok(())
                }
                _ => scanner.skip(),
            }
        })
    }

    fn set(&mut self, name: &str, value: u64) {
        let known = self.iter().position(|(field, _)| field == name);
        if let Some((_, old)) = known.and_then(|index| self.fields.get_mut(index)) {
            *old = value;
        } else if self.fields.len() < USAGE_FIELDS_MAX {
            self.names.push_str(name);
            self.fields.push((self.names.len(), value));
        }
    }

    /// Takes the fields of a later report. Reports are cumulative: a field that it lacks, or has a smaller number of, keeps its value.
    pub(crate) fn update(&mut self, later: &Self) {
        for (name, value) in later.iter() {
            let value = value.max(self.get(name).unwrap_or(0));
            self.set(name, value);
        }
    }

    /// Returns the field `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find(|(field, _)| *field == name).map(|(_, value)| value)
    }

    /// Returns whether there is no field.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Returns every field with its value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        let mut start = 0;
        self.fields.iter().map(move |(end, value)| {
            let name = self.names.get(start..*end).unwrap_or_default();
            start = *end;
            (name, *value)
        })
    }
}

/// Which usage fields count into which unit: data, not code.
///
/// ```
/// use tollgate_providers::{UsageFields, UsageMap};
///
/// let map = UsageMap::parse([("input_tokens", "prompt_tokens - prompt_tokens_details.cached_tokens")])?;
/// let usage = UsageFields::from_json(r#"{"prompt_tokens": 900, "prompt_tokens_details": {"cached_tokens": 512}}"#);
/// assert_eq!(map.costs(&usage).get("input_tokens"), Some(388));
/// # Ok::<(), tollgate_providers::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct UsageMap(Vec<(Arc<str>, Vec<Term>)>);

#[derive(Clone, PartialEq, Eq)]
struct Term {
    is_negative: bool,
    field: String,
}

impl UsageMap {
    /// Parses pairs of a unit and a sum of fields, such as
    /// `("input_tokens", "prompt_tokens - prompt_tokens_details.cached_tokens")`.
    ///
    /// # Errors
    /// [`ErrorKind::Setting`](crate::ErrorKind::Setting) if an expression is not a sum of fields, or a unit occurs twice or is not
    /// counted from usage.
    pub fn parse<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, Error> {
        let mut map = Self::default();
        for (unit, expression) in entries {
            if ![TOKENS, INPUT_TOKENS, OUTPUT_TOKENS].contains(&unit) {
                return Err(Error::setting(format!(
                    "unknown unit {unit:?} of usage; use \"{TOKENS}\", \"{INPUT_TOKENS}\" or \"{OUTPUT_TOKENS}\""
                )));
            }
            if map.units().any(|known| known == unit) {
                return Err(Error::setting(format!("the unit {unit:?} occurs twice; keep one")));
            }
            map.0.push((unit.into(), parse_sum(unit, expression)?));
        }
        Ok(map)
    }

    /// Parses a map that is part of this crate, whose tests parse it.
    pub(crate) fn built_in(entries: &[(&str, &str)]) -> Self {
        Self::parse(entries.iter().copied()).unwrap_or_default()
    }

    /// Returns the units that have an expression.
    pub fn units(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(unit, _)| &**unit)
    }

    /// Returns this map with the expressions of `other` in place of its own for the units that `other` has.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        self.0.retain(|(unit, _)| other.units().all(|replaced| replaced != &**unit));
        self.0.extend(other.0);
        self
    }

    /// Returns the amount of each unit. A unit of whose fields none is reported is left out: its usage is unknown, not zero.
    #[must_use]
    pub fn costs(&self, fields: &UsageFields) -> Costs {
        let mut costs = Costs::new();
        for (unit, terms) in &self.0 {
            let (mut plus, mut minus, mut is_known) = (0_u64, 0_u64, false);
            for term in terms {
                let Some(value) = fields.get(&term.field) else { continue };
                let sum = if term.is_negative { &mut minus } else { &mut plus };
                *sum = sum.saturating_add(value);
                is_known |= !term.is_negative;
            }
            if is_known {
                costs.set(Arc::clone(unit), plus.saturating_sub(minus));
            }
        }
        costs
    }
}

fn parse_sum(unit: &str, expression: &str) -> Result<Vec<Term>, Error> {
    let wrong = |what: String| {
        Error::setting(format!(
            "usage of {unit}: {what} in {expression:?}; write field names joined by + and -, as in \
             \"prompt_tokens - prompt_tokens_details.cached_tokens\""
        ))
    };
    let mut terms = Vec::new();
    let mut rest = expression.trim();
    let mut is_negative = false;
    loop {
        let end = rest.find(['+', '-']).unwrap_or(rest.len());
        let field = rest[..end].trim();
        let is_word = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        if field.is_empty() {
            return Err(wrong("a field is missing".to_owned()));
        }
        if !field.split('.').all(is_word) {
            return Err(wrong(format!("{field:?} is not a field name")));
        }
        terms.push(Term { is_negative, field: field.to_owned() });
        if end == rest.len() {
            break;
        }
        is_negative = rest[end..].starts_with('-');
        rest = &rest[end + 1..];
    }
    Ok(terms)
}

impl fmt::Debug for UsageMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |terms: &[Term]| {
            let sum = terms.iter().map(|term| {
                format!("{} {}", if term.is_negative { " -" } else { " +" }, term.field)
            });
            sum.collect::<String>().trim_start_matches(" + ").to_owned()
        };
        f.debug_map().entries(self.0.iter().map(|(unit, terms)| (unit, text(terms)))).finish()
    }
}

pub(crate) fn read_response(endpoint: Endpoint, body: &[u8]) -> Option<UsageFields> {
    let name = match endpoint {
        Endpoint::OpenAiChat
        | Endpoint::OpenAiResponses
        | Endpoint::OpenAiEmbeddings
        | Endpoint::AnthropicMessages => "usage",
        Endpoint::GeminiGenerate | Endpoint::GeminiEmbed | Endpoint::GeminiBatchEmbed => {
            "usageMetadata"
        }
        Endpoint::AnthropicCount | Endpoint::GeminiCount | Endpoint::Models => return None,
    };
    let mut scanner = Scanner::of_body(body, Names::Exact).ok()?;
    let mut usage = UsageFields::default();
    // Nothing is charged by a body that breaks off, whatever it reported.
    let read = scanner.members(&[name], |scanner, _| {
        let range = scanner.range()?;
        usage = UsageFields::from_json(scanner.slice(range));
        Ok::<_, JsonError>(())
    });
    read.ok()?;
    (!usage.is_empty()).then_some(usage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Dialect;

    #[test]
    fn an_expression_is_a_sum_of_fields_or_an_error_that_shows_one() {
        for (expression, wanted) in [
            ("", "a field is missing"),
            ("prompt_tokens +", "a field is missing"),
            ("- prompt_tokens", "a field is missing"),
            ("2 * prompt_tokens", "\"2 * prompt_tokens\" is not a field name"),
            ("a..b", "\"a..b\" is not a field name"),
        ] {
            let error = UsageMap::parse([("tokens", expression)]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("usage of tokens: {wanted}")), "{error}");
            assert!(error.contains("joined by + and -"), "{error}");
        }
        let error = UsageMap::parse([("usd", "a")]).unwrap_err().to_string();
        assert!(error.contains("use \"tokens\", \"input_tokens\" or"), "{error}");
        assert!(UsageMap::parse([("tokens", "a"), ("tokens", "b")]).is_err());
    }

    #[test]
    fn a_unit_without_a_reported_field_is_unknown_and_a_difference_is_never_negative() {
        let map = UsageMap::parse([
            ("tokens", "total"),
            ("input_tokens", "in - cached"),
            ("output_tokens", "out + more.thoughts"),
        ])
        .unwrap();
        let costs = |json: &str| {
            let costs = map.costs(&UsageFields::from_json(json));
            ["tokens", "input_tokens", "output_tokens"].map(|unit| costs.get(unit))
        };
        assert_eq!(costs(r#"{"in":5,"cached":7,"out":1}"#), [None, Some(0), Some(1)]);
        assert_eq!(costs(r#"{"cached":7,"more":{"thoughts":3}}"#), [None, None, Some(3)]);
        assert_eq!(
            costs(r#"{"total":18446744073709551615,"in":null}"#),
            [Some(u64::MAX), None, None]
        );
        assert_eq!(costs("[]"), [None, None, None]);
    }

    #[test]
    fn built_in_maps_parse_and_a_user_replaces_single_units() {
        for dialect in Dialect::ALL {
            let units: Vec<_> = dialect.usage_map().units().map(str::to_owned).collect();
            assert_eq!(units, [TOKENS, INPUT_TOKENS, OUTPUT_TOKENS]);
        }
        let map = Dialect::OpenAi.usage_map();
        let map = map.with(UsageMap::parse([(TOKENS, "a - b")]).unwrap());
        let text = format!("{map:?}");
        assert!(text.contains(r#""tokens": "a - b""#), "{text}");
        assert!(text.contains(r#""input_tokens": "prompt_tokens + input_tokens""#), "{text}");
    }

    #[test]
    fn fields_of_nested_objects_have_dotted_names_and_a_repeated_one_its_last_value() {
        let json = r#"{"a":1,"b":{"c":{"d":2,"e":"x"},"f":3},"g":4,"a":5,"h":{"c":6}}"#;
        let fields = UsageFields::from_json(json);
        let wanted = [("a", 5), ("b.c.d", 2), ("b.f", 3), ("g", 4), ("h.c", 6)];
        assert_eq!(fields.iter().collect::<Vec<_>>(), wanted);
        assert_eq!((fields.get("b.f"), fields.get("b"), fields.get("")), (Some(3), None, None));
    }

    #[test]
    fn fields_are_bounded() {
        let many: Vec<String> = (0..200).map(|index| format!("\"f{index}\":{index}")).collect();
        let fields = UsageFields::from_json(&format!("{{{}}}", many.join(",")));
        assert_eq!(fields.iter().count(), USAGE_FIELDS_MAX);
        let huge = format!("{{\"a\":1,\"b\":\"{}\"}}", "x".repeat(USAGE_BYTES_MAX));
        assert!(UsageFields::from_json(&huge).is_empty());
    }
}
