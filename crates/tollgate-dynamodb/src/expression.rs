//! One write as the service wants it: clauses over placeholders, with the names and values behind them.
//!
//! Every attribute goes through a placeholder, so that no name can be a reserved word and no text of a caller is ever
//! part of an expression.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;

/// The clauses of one `UpdateItem` in the making.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expression {
    names: HashMap<String, String>,
    placeholders: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
    sets: Vec<String>,
    adds: Vec<String>,
    removes: Vec<String>,
    conditions: Vec<String>,
}

impl Expression {
    /// The placeholder of the attribute `name`.
    pub(crate) fn name(&mut self, name: &str) -> String {
        if let Some(known) = self.placeholders.get(name) {
            return known.clone();
        }
        let placeholder = format!("#{}", self.placeholders.len());
        self.placeholders.insert(name.to_owned(), placeholder.clone());
        self.names.insert(placeholder.clone(), name.to_owned());
        placeholder
    }

    /// The placeholder of `value`.
    pub(crate) fn value(&mut self, value: AttributeValue) -> String {
        let placeholder = format!(":{}", self.values.len());
        self.values.insert(placeholder.clone(), value);
        placeholder
    }

    /// The placeholder of a number.
    pub(crate) fn number(&mut self, number: u128) -> String {
        self.value(to_number(number))
    }

    /// Sets `name` to `value`.
    pub(crate) fn set(&mut self, name: &str, value: AttributeValue) {
        let (name, value) = (self.name(name), self.value(value));
        self.sets.push(format!("{name}={value}"));
    }

    /// Sets `name` to what `right` says of placeholders.
    pub(crate) fn set_to(&mut self, name: &str, right: &str) {
        let name = self.name(name);
        self.sets.push(format!("{name}={right}"));
    }

    /// Adds `amount` to the number `name`, which counts as zero where it is missing.
    pub(crate) fn add(&mut self, name: &str, amount: i128) {
        let amount = AttributeValue::N(amount.to_string());
        let (name, amount) = (self.name(name), self.value(amount));
        self.adds.push(format!("{name} {amount}"));
    }

    /// Removes `name`, if it is there.
    pub(crate) fn remove(&mut self, name: &str) {
        let name = self.name(name);
        self.removes.push(name);
    }

    /// Removes `name` unless something is done to it already.
    pub(crate) fn remove_once(&mut self, name: &str) {
        if !self.placeholders.contains_key(name) {
            self.remove(name);
        }
    }

    /// Only if this holds, too.
    pub(crate) fn only_if(&mut self, condition: String) {
        self.conditions.push(condition);
    }

    /// Only if `name` is missing or at most `most`.
    pub(crate) fn only_if_at_most(&mut self, name: &str, most: u128) {
        let (name, most) = (self.name(name), self.number(most));
        self.only_if(format!("(attribute_not_exists({name}) OR {name}<={most})"));
    }

    /// Only if `name` is this number.
    pub(crate) fn only_if_is(&mut self, name: &str, number: u128) {
        let (name, number) = (self.name(name), self.number(number));
        self.only_if(format!("{name}={number}"));
    }

    /// Only if there is no `name`.
    pub(crate) fn only_if_missing(&mut self, name: &str) {
        let name = self.name(name);
        self.only_if(format!("attribute_not_exists({name})"));
    }

    /// The update clauses.
    pub(crate) fn update(&self) -> String {
        let clauses = [("SET", &self.sets), ("ADD", &self.adds), ("REMOVE", &self.removes)];
        let written = clauses.iter().filter(|(_, clauses)| !clauses.is_empty());
        written
            .map(|(word, clauses)| format!("{word} {}", clauses.join(",")))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// The condition.
    pub(crate) fn condition(&self) -> String {
        self.conditions.join(" AND ")
    }

    /// How many attributes it writes.
    pub(crate) fn writes(&self) -> usize {
        self.sets.len() + self.adds.len() + self.removes.len()
    }

    /// The names and values behind the placeholders.
    pub(crate) fn into_parts(self) -> (HashMap<String, String>, HashMap<String, AttributeValue>) {
        (self.names, self.values)
    }
}

/// A number as an attribute.
pub(crate) fn to_number(number: u128) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// Bytes as an attribute.
pub(crate) fn to_bytes(bytes: Vec<u8>) -> AttributeValue {
    AttributeValue::B(Blob::new(bytes))
}
