//! Items: keys, attributes, and conditional updates as expressions of DynamoDB.
//!
//! In expressions, names are written `#name` and values `:name`, so that no attribute collides with a reserved word.

use std::collections::HashMap;

use crate::Error;
use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::internal::edge;

use super::table::unusable;

pub(super) type Item = HashMap<String, AttributeValue>;

/// The key of an item.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) pk: String,
    pub(super) sk: String,
}

impl Key {
    pub(super) fn new(pk: impl Into<String>, sk: impl Into<String>) -> Self {
        Self { pk: pk.into(), sk: sk.into() }
    }

    pub(super) fn item(&self) -> Item {
        [("pk".to_owned(), string(&self.pk)), ("sk".to_owned(), string(&self.sk))].into()
    }
}

pub(super) fn string(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

pub(super) fn integer(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// Returns the string attribute `name`.
pub(super) fn text(item: &Item, name: &str) -> Result<String, Error> {
    let value = item.get(name).and_then(|value| value.as_s().ok());
    value.cloned().ok_or_else(|| unusable(format!("an item has no attribute {name}")))
}

/// Returns the number attribute `name`, if it exists.
pub(super) fn optional(item: &Item, name: &str) -> Option<u64> {
    item.get(name).and_then(|value| value.as_n().ok()).and_then(|number| number.parse().ok())
}

/// Returns the number attribute `name`, or 0.
pub(super) fn number(item: &Item, name: &str) -> u64 {
    optional(item, name).unwrap_or(0)
}

/// Returns a unique name: 64 random bits.
pub(super) fn unique() -> String {
    format!("{:08x}{:08x}", edge::random(), edge::random())
}

/// The attribute with the token of the last update.
pub(super) const TOKEN: &str = "token";

/// A conditional update of one item.
#[derive(Clone, Debug, Default)]
pub(super) struct Change {
    sets: Vec<String>,
    removes: Vec<String>,
    condition: Option<String>,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
}

/// The parts of a request for a [`Change`].
#[derive(Clone, Debug)]
pub(super) struct Expressions {
    pub(super) update: String,
    pub(super) condition: Option<String>,
    pub(super) names: HashMap<String, String>,
    pub(super) values: HashMap<String, AttributeValue>,
}

impl Change {
    /// Sets `name` to `value`.
    pub(super) fn set(self, name: &str, value: AttributeValue) -> Self {
        self.set_to(name, &format!(":{name}")).value(&format!(":{name}"), value)
    }

    /// Sets `name` to an expression.
    pub(super) fn set_to(mut self, name: &str, expression: &str) -> Self {
        self.sets.push(format!("#{name} = {expression}"));
        self.named(&format!("#{name} {expression}"))
    }

    /// Adds `number` to `name`, which counts as 0 where it is missing.
    pub(super) fn add(self, name: &str, number: u64) -> Self {
        let value = format!(":{name}_more");
        let expression = format!("if_not_exists(#{name}, :zero) + {value}");
        let zero = AttributeValue::N("0".to_owned());
        let more = AttributeValue::N(number.to_string());
        self.set_to(name, &expression).value(":zero", zero).value(&value, more)
    }

    pub(super) fn remove(mut self, name: &str) -> Self {
        self.removes.push(format!("#{name}"));
        self.named(&format!("#{name}"))
    }

    pub(super) fn set_or_remove(self, name: &str, value: Option<AttributeValue>) -> Self {
        match value {
            Some(value) => self.set(name, value),
            None => self.remove(name),
        }
    }

    /// Sets the condition of the update.
    pub(super) fn when(mut self, condition: &str) -> Self {
        self.condition = Some(condition.to_owned());
        self.named(condition)
    }

    /// Sets the value of `name`, as in `:now`.
    pub(super) fn value(mut self, name: &str, value: AttributeValue) -> Self {
        self.values.insert(name.to_owned(), value);
        self
    }

    fn named(mut self, expression: &str) -> Self {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        for (at, _) in expression.match_indices('#') {
            let name: String = expression[at + 1..].chars().take_while(|c| is_part(*c)).collect();
            self.names.insert(format!("#{name}"), name);
        }
        self
    }

    pub(super) fn expressions(self) -> Expressions {
        let Self { sets, removes, condition, names, values } = self;
        let mut update = String::new();
        if !sets.is_empty() {
            update += &format!("SET {}", sets.join(", "));
        }
        if !removes.is_empty() {
            update += &format!(" REMOVE {}", removes.join(", "));
        }
        Expressions { update, condition, names, values }
    }
}
