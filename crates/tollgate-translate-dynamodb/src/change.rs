//! A conditional update of one item, as expressions of DynamoDB.
//!
//! Names are written `#name` and values `:name`, so that no attribute collides with a reserved word.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;

/// The attribute that says which update was the last.
pub(crate) const TOKEN: &str = "token";

#[derive(Clone, Debug, Default)]
pub(crate) struct Change {
    sets: Vec<String>,
    removes: Vec<String>,
    condition: Option<String>,
    names: HashMap<String, String>,
    values: HashMap<String, AttributeValue>,
}

/// What a request takes of a [`Change`].
#[derive(Clone, Debug)]
pub(crate) struct Expressions {
    pub(crate) update: String,
    pub(crate) condition: Option<String>,
    pub(crate) names: HashMap<String, String>,
    pub(crate) values: HashMap<String, AttributeValue>,
}

impl Change {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Sets `name` to `value`.
    pub(crate) fn set(self, name: &str, value: AttributeValue) -> Self {
        self.set_to(name, &format!(":{name}")).value(&format!(":{name}"), value)
    }

    /// Sets `name` to an expression.
    pub(crate) fn set_to(mut self, name: &str, expression: &str) -> Self {
        self.sets.push(format!("#{name} = {expression}"));
        self.named(&format!("#{name} {expression}"))
    }

    /// Adds `number` to `name`, which counts as 0 where it is missing.
    pub(crate) fn add(self, name: &str, number: u64) -> Self {
        let value = format!(":{name}_more");
        let expression = format!("if_not_exists(#{name}, :zero) + {value}");
        let zero = AttributeValue::N("0".to_owned());
        let more = AttributeValue::N(number.to_string());
        self.set_to(name, &expression).value(":zero", zero).value(&value, more)
    }

    pub(crate) fn remove(mut self, name: &str) -> Self {
        self.removes.push(format!("#{name}"));
        self.named(&format!("#{name}"))
    }

    pub(crate) fn set_or_remove(self, name: &str, value: Option<AttributeValue>) -> Self {
        match value {
            Some(value) => self.set(name, value),
            None => self.remove(name),
        }
    }

    /// Changes the item only if `condition` holds.
    pub(crate) fn when(mut self, condition: &str) -> Self {
        self.condition = Some(condition.to_owned());
        self.named(condition)
    }

    /// What `name`, as in `:now`, stands for.
    pub(crate) fn value(mut self, name: &str, value: AttributeValue) -> Self {
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

    pub(crate) fn expressions(self) -> Expressions {
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
