//! Builder of expressions with placeholders for names and values, so that neither reserved words nor text of callers are part
//! of an expression.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;

/// The clauses of one write.
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
    /// Returns the placeholder of the attribute `name`.
    pub(crate) fn name(&mut self, name: &str) -> String {
        if let Some(known) = self.placeholders.get(name) {
            return known.clone();
        }
        let placeholder = format!("#{}", self.placeholders.len());
        self.placeholders.insert(name.to_owned(), placeholder.clone());
        self.names.insert(placeholder.clone(), name.to_owned());
        placeholder
    }

    /// Returns the placeholder of `value`.
    pub(crate) fn value(&mut self, value: AttributeValue) -> String {
        let placeholder = format!(":{}", self.values.len());
        self.values.insert(placeholder.clone(), value);
        placeholder
    }

    /// Returns the placeholder of a number.
    pub(crate) fn number(&mut self, number: u128) -> String {
        self.value(to_number(number))
    }

    /// Sets `name` to `value`.
    pub(crate) fn set(&mut self, name: &str, value: AttributeValue) {
        let (name, value) = (self.name(name), self.value(value));
        self.sets.push(format!("{name}={value}"));
    }

    /// Sets `name` to the expression `right`.
    pub(crate) fn set_to(&mut self, name: &str, right: &str) {
        let name = self.name(name);
        self.sets.push(format!("{name}={right}"));
    }

    /// Adds `amount` to the number `name`, which defaults to zero.
    pub(crate) fn add(&mut self, name: &str, amount: i128) {
        let amount = AttributeValue::N(amount.to_string());
        let (name, amount) = (self.name(name), self.value(amount));
        self.adds.push(format!("{name} {amount}"));
    }

    /// Removes `name`.
    pub(crate) fn remove(&mut self, name: &str) {
        let name = self.name(name);
        self.removes.push(name);
    }

    /// Removes `name` unless it is used already.
    pub(crate) fn remove_once(&mut self, name: &str) {
        if !self.placeholders.contains_key(name) {
            self.remove(name);
        }
    }

    /// Adds a condition.
    pub(crate) fn only_if(&mut self, condition: String) {
        self.conditions.push(condition);
    }

    /// Requires that `name` is missing or at most `most`.
    pub(crate) fn only_if_at_most(&mut self, name: &str, most: u128) {
        let (name, most) = (self.name(name), self.number(most));
        self.only_if(format!("(attribute_not_exists({name}) OR {name}<={most})"));
    }

    /// Requires that `name` is this number.
    pub(crate) fn only_if_is(&mut self, name: &str, number: u128) {
        self.only_if_equal(name, to_number(number));
    }

    /// Requires that `name` is `value`.
    pub(crate) fn only_if_equal(&mut self, name: &str, value: AttributeValue) {
        let (name, value) = (self.name(name), self.value(value));
        self.only_if(format!("{name}={value}"));
    }

    /// Requires that `name` is missing.
    pub(crate) fn only_if_missing(&mut self, name: &str) {
        let name = self.name(name);
        self.only_if(format!("attribute_not_exists({name})"));
    }

    /// Returns the update expression.
    pub(crate) fn update(&self) -> String {
        let clauses = [("SET", &self.sets), ("ADD", &self.adds), ("REMOVE", &self.removes)];
        let written = clauses.iter().filter(|(_, clauses)| !clauses.is_empty());
        written
            .map(|(word, clauses)| format!("{word} {}", clauses.join(",")))
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Returns the condition expression.
    pub(crate) fn condition(&self) -> String {
        self.conditions.join(" AND ")
    }

    /// Returns the number of attributes written.
    pub(crate) fn writes(&self) -> usize {
        self.sets.len() + self.adds.len() + self.removes.len()
    }

    /// Returns the names and values of the placeholders.
    pub(crate) fn into_parts(self) -> (HashMap<String, String>, HashMap<String, AttributeValue>) {
        (self.names, self.values)
    }
}

/// Converts a number to an attribute.
pub(crate) fn to_number(number: u128) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// Converts bytes to an attribute.
pub(crate) fn to_bytes(bytes: Vec<u8>) -> AttributeValue {
    AttributeValue::B(Blob::new(bytes))
}
