//! Where a value stands in the text.

use std::ops::Range;

use tollgate::spec::{Step, in_words};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::blame::Blame;
use super::file::File;

/// A text that is valid TOML, and the place of each of its values.
#[derive(Debug)]
pub(super) struct Text<'a> {
    file: &'a str,
    source: &'a str,
    tree: Spanned<DeTable<'a>>,
}

impl<'a> Text<'a> {
    /// Reads `source`, the contents of `file`, as TOML.
    pub(super) fn parse(file: &'a str, source: &'a str) -> Result<Self, Blame> {
        let tree = DeTable::parse(source).map_err(|error| of_toml(file, source, &error))?;
        Ok(Self { file, source, tree })
    }

    /// The name of the file.
    pub(super) const fn file(&self) -> &str {
        self.file
    }

    /// The text as structures.
    pub(super) fn structure(&self) -> Result<File, Blame> {
        for name in ["policy", "key"] {
            let found = self.tree.get_ref().get(name);
            if let Some(table) = found.filter(|it| it.get_ref().is_table()) {
                let what = format!("a {name} is written with two brackets, as in [[{name}]]");
                return Err(Blame::at(self.file, self.source, table.span(), what));
            }
        }
        toml::from_str(self.source).map_err(|error| of_toml(self.file, self.source, &error))
    }

    /// A message about the value that `path` leads to from the root.
    pub(super) fn blame(&self, path: &[&str], text: impl Into<String>) -> Blame {
        let mut span = self.tree.span();
        let mut table = Some(self.tree.get_ref());
        for key in path {
            let Some(value) = table.and_then(|table| table.get(*key)) else { break };
            span = value.span();
            table = value.get_ref().as_table();
        }
        Blame::at(self.file, self.source, span, text)
    }

    /// A message about the value that `path` leads to from the policy at `index`.
    pub(super) fn blame_policy(
        &self,
        index: usize,
        path: &[Step],
        text: impl Into<String>,
    ) -> Blame {
        self.blame_element("policy", index, path, text)
    }

    /// A message about the value that `path` leads to from the element at `index` of the list `name`.
    pub(super) fn blame_element(
        &self,
        name: &str,
        index: usize,
        path: &[Step],
        text: impl Into<String>,
    ) -> Blame {
        let list = self.tree.get_ref().get(name);
        let element = list.and_then(|list| list.get_ref().get(index));
        let span = element.map_or(self.tree.span(), |element| span_of(element, path));
        Blame::at(self.file, self.source, span, text)
    }
}

/// The place of the value that `path` leads to, or of the last one on the way that is there.
fn span_of(root: &Spanned<DeValue<'_>>, path: &[Step]) -> Range<usize> {
    let mut value = root;
    for step in path {
        let next = match step {
            Step::Field(name) => value.get_ref().get(*name),
            Step::Element(index) => value.get_ref().get(*index),
        };
        match next {
            Some(next) => value = next,
            None => break,
        }
    }
    value.span()
}

/// What toml or serde complains about, in the words of a person.
fn of_toml(file: &str, source: &str, error: &toml::de::Error) -> Blame {
    let text = in_words(error.message(), "a table");
    match error.span() {
        Some(span) => Blame::at(file, source, span, text),
        None => Blame::whole(file, text),
    }
}
