//! A TOML file, and where each of its values is.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::{DeserializeOwned, IntoDeserializer as _};
use tollgate::Span;
use tollgate::internal::{Step, reword_serde_error};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::Diagnostic;

/// The text of a configuration that is valid TOML.
///
/// Sections that only one program knows, such as `[server]`, are read by that program with [`section`](Self::section).
/// Errors point at the line of the value that they are about.
#[derive(Clone)]
pub struct Document {
    file: Option<PathBuf>,
    name: String,
    source: String,
}

impl Document {
    /// Parses `source`, the contents of `file`, as TOML.
    pub(crate) fn parse(file: Option<&Path>, source: &str) -> Result<Self, Diagnostic> {
        let name =
            file.map_or_else(|| "built-in sample".to_owned(), |file| file.display().to_string());
        let document = Self { file: file.map(Path::to_owned), name, source: source.to_owned() };
        match DeTable::parse(source) {
            Ok(_) => Ok(document),
            Err(error) => Err(document.toml_error(&error)),
        }
    }

    /// Returns the path of the file; `None` for the built-in sample.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Returns the folder that relative paths in the file start from.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.file().and_then(Path::parent).unwrap_or(Path::new(""))
    }

    /// Deserializes the whole file.
    pub(crate) fn deserialize<T: DeserializeOwned>(&self) -> Result<T, Diagnostic> {
        toml::from_str(&self.source).map_err(|error| self.toml_error(&error))
    }

    /// Deserializes the section `name`; `None` if the file does not have it.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Diagnostic> {
        let Some(value) = self.tree().and_then(|tree| tree.into_inner().remove(name)) else {
            return Ok(None);
        };
        T::deserialize(value.into_deserializer()).map(Some).map_err(|error| self.toml_error(&error))
    }

    /// Returns the keys that are set in the section `name`.
    #[must_use]
    pub fn keys(&self, name: &str) -> Vec<String> {
        let tree = self.tree();
        let section = tree.as_ref().and_then(|tree| tree.get_ref().get(name)?.get_ref().as_table());
        section.into_iter().flatten().map(|(key, _)| key.get_ref().to_string()).collect()
    }

    /// Returns whether the value that `path` leads to from the root is a table.
    #[must_use]
    pub fn is_table(&self, path: &[&str]) -> bool {
        let tree = self.tree();
        let mut table = tree.as_ref().map(Spanned::get_ref);
        for key in path {
            table = table.and_then(|table| table.get(*key)?.get_ref().as_table());
        }
        table.is_some()
    }

    /// Returns an error if one of the lists `names` is written with one pair of brackets.
    pub(crate) fn check_lists(&self, names: &[&str]) -> Result<(), Diagnostic> {
        let Some(tree) = self.tree() else { return Ok(()) };
        for name in names {
            let found = tree.get_ref().get(*name);
            if let Some(table) = found.filter(|value| value.get_ref().is_table()) {
                let message = format!("a {name} is written with two brackets, as in [[{name}]]");
                return Err(self.error_at(table.span(), message));
            }
        }
        Ok(())
    }

    /// Returns an error about the file as a whole.
    #[must_use]
    pub fn whole_error(&self, message: impl Into<String>) -> Diagnostic {
        Diagnostic::whole(&self.name, message)
    }

    /// Returns an error about the value that `path` leads to from the root.
    #[must_use]
    pub fn error(&self, path: &[&str], message: impl Into<String>) -> Diagnostic {
        let tree = self.tree();
        let mut span = tree.as_ref().map_or(0..0, Spanned::span);
        let mut table = tree.as_ref().map(Spanned::get_ref);
        for key in path {
            let Some(value) = table.and_then(|table| table.get(*key)) else { break };
            span = value.span();
            table = value.get_ref().as_table();
        }
        self.error_at(span, message)
    }

    /// Returns an error about the value that `path` leads to from the element at `index` of the list `name`.
    #[must_use]
    pub fn element_error(
        &self,
        name: &str,
        index: usize,
        path: &[Step],
        message: impl Into<String>,
    ) -> Diagnostic {
        self.nested_error(name, &[&[Step::Element(index)], path].concat(), message)
    }

    /// Returns an error about the value that `path` leads to from the section `name`.
    #[must_use]
    pub fn nested_error(
        &self,
        name: &str,
        path: &[Step],
        message: impl Into<String>,
    ) -> Diagnostic {
        let tree = self.tree();
        let section = tree.as_ref().and_then(|tree| tree.get_ref().get(name));
        self.error_at(section.map_or(0..0, |section| innermost_span(section, path)), message)
    }

    /// Parses `text`, the value of the key `path`, as a duration in `range`.
    pub fn duration(
        &self,
        path: &[&str],
        text: &str,
        range: [Span; 2],
    ) -> Result<Span, Diagnostic> {
        let key = path.last().copied().unwrap_or_default();
        let error = |message: String| self.error(path, format!("{key} {message}"));
        let span: Span =
            text.parse().map_err(|wrong: tollgate::core::Error| error(wrong.to_string()))?;
        let [least, most] = range;
        if span < least || most < span {
            return Err(error(format!("{span} must be between {least} and {most}")));
        }
        Ok(span)
    }

    /// Parses the source again: only errors and sections need the tree, and it borrows from the source.
    fn tree(&self) -> Option<Spanned<DeTable<'_>>> {
        DeTable::parse(&self.source).ok()
    }

    fn error_at(&self, span: Range<usize>, message: impl Into<String>) -> Diagnostic {
        Diagnostic::at(&self.name, &self.source, span, message)
    }

    /// Rewords an error of toml or serde, to whose readers Rust's names of types mean nothing.
    fn toml_error(&self, error: &toml::de::Error) -> Diagnostic {
        let message = reword_serde_error(error.message(), "a table");
        match error.span() {
            Some(span) => self.error_at(span, message),
            None => self.whole_error(message),
        }
    }
}

impl fmt::Debug for Document {
    /// Leaves the source out, which may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Document").field(&self.name).finish()
    }
}

/// Returns the span of the value that `path` leads to, or of the last value on the way that exists.
fn innermost_span(root: &Spanned<DeValue<'_>>, path: &[Step]) -> Range<usize> {
    let mut value = root;
    for step in path {
        let next = match step {
            Step::Field(name) => value.get_ref().get(*name),
            Step::Key(key) => value.get_ref().get(key.as_str()),
            Step::Element(index) => value.get_ref().get(*index),
        };
        match next {
            Some(next) => value = next,
            None => break,
        }
    }
    value.span()
}
