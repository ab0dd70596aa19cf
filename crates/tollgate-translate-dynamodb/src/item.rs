//! Items, their keys and their attributes.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use tollgate::edge;
use tollgate_translate::Error;

use crate::table::unusable;

pub(crate) type Item = HashMap<String, AttributeValue>;

/// The key of an item.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) pk: String,
    pub(crate) sk: String,
}

impl Key {
    pub(crate) fn new(pk: impl Into<String>, sk: impl Into<String>) -> Self {
        Self { pk: pk.into(), sk: sk.into() }
    }

    pub(crate) fn item(&self) -> Item {
        [("pk".to_owned(), string(&self.pk)), ("sk".to_owned(), string(&self.sk))].into()
    }
}

pub(crate) fn string(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

pub(crate) fn integer(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// The string attribute `name`.
pub(crate) fn text(item: &Item, name: &str) -> Result<String, Error> {
    let value = item.get(name).and_then(|value| value.as_s().ok());
    value.cloned().ok_or_else(|| unusable(format!("an item has no attribute {name}")))
}

/// The number attribute `name`, if it is there.
pub(crate) fn optional(item: &Item, name: &str) -> Option<u64> {
    item.get(name).and_then(|value| value.as_n().ok()).and_then(|number| number.parse().ok())
}

/// The number attribute `name`, 0 if it is missing.
pub(crate) fn number(item: &Item, name: &str) -> u64 {
    optional(item, name).unwrap_or(0)
}

/// A text that nothing else has: 64 random bits.
pub(crate) fn unique() -> String {
    format!("{:08x}{:08x}", edge::random(), edge::random())
}
