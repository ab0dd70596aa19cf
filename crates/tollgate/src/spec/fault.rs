//! Mistakes in a spec, each with its path.
//!
//! A file has lines and a JSON body has none, so a fault has a path; the parser of the text turns the
//! path into a line.

use std::fmt;

use crate::error::{Error, ErrorKind};
use crate::internal::nearest;

/// A step of a path from a policy's spec to the value at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The value of a field.
    Field(&'static str),
    /// The value of a key of a table that may have any.
    Key(String),
    /// An element of a list, counted from 0.
    Element(usize),
}

/// A mistake in a spec: its path, and a text with the expected value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    path: Vec<Step>,
    text: String,
}

impl Fault {
    /// Returns a fault of the whole spec; [`in_element`](Self::in_element) adds the path to it.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { path: Vec::new(), text: text.into() }
    }

    /// Returns a fault of the value of `field`.
    pub(crate) fn at(field: &'static str, text: impl Into<String>) -> Self {
        Self { path: vec![Step::Field(field)], text: text.into() }
    }

    /// Prepends element `index` of the list in `field` to the path, and `name` to the text.
    pub(crate) fn in_element(mut self, field: &'static str, index: usize, name: &str) -> Self {
        self.path.splice(0..0, [Step::Field(field), Step::Element(index)]);
        self.text = format!("{name}: {}", self.text);
        self
    }

    /// Prepends the kind and the name of a table to the text.
    pub(crate) fn in_table(mut self, kind: &str, name: &str) -> Self {
        self.text = format!("{kind} {name:?}: {}", self.text);
        self
    }

    /// Replaces the path by `path`.
    pub(crate) fn relocated(self, path: Vec<Step>) -> Self {
        Self { path, ..self }
    }

    /// Replaces the element of the list in `field` by element `index`.
    pub(crate) fn moved(mut self, field: &'static str, index: usize) -> Self {
        if let [Step::Field(list), Step::Element(element), ..] = self.path.as_mut_slice()
            && *list == field
        {
            *element = index;
        }
        self
    }

    /// Returns the path from the policy's spec to the value at fault. The path of a missing field ends at its parent.
    #[must_use]
    pub fn path(&self) -> &[Step] {
        &self.path
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Fault {}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::new(ErrorKind::Invalid, fault.text)
    }
}

/// Turns serde's complaint about an unknown field into one sentence with the likeliest name, or returns nothing if
/// `message` is about something else. Serde gives the names only as text, in every format alike.
fn explain_unknown(message: &str) -> Option<String> {
    let rest = message.strip_prefix("unknown field `")?;
    let (given, rest) = rest.split_once('`')?;
    // Every second part between back quotes is a name; the parts between them are "or" and commas.
    let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    let likely = nearest(given, known.iter().copied());
    let likely = likely.map(|name| format!("did you mean {name}? ")).unwrap_or_default();
    Some(format!("there is no {given:?} here; {likely}known: {}", known.join(", ")))
}

/// Rewords an error of serde without Rust's names of types. `object` is what the
/// format calls a structure.
#[must_use]
pub fn reword_serde_error(message: &str, object: &str) -> String {
    if let Some(text) = explain_unknown(message) {
        return text;
    }
    let Some((found, expected)) = message.split_once(", expected ") else {
        return message.to_owned();
    };
    let expected = match expected {
        "u64" | "u32" => "an unsigned whole number",
        "a string" => "text in quotes",
        "a boolean" => "true or false",
        "a sequence" => "a list in [ ]",
        other if other.starts_with("struct ") => object,
        other => other,
    };
    format!("{found}, expected {expected}")
}
