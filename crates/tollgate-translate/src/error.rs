//! The one error of this crate.
//!
//! Programs look at [`Error::kind`], never at the text. The text says what was wrong, where, and what would be right. A chunk
//! whose translation is bad is no error: that is a [`Fault`](crate::Fault), and the ladder deals with it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// Why something could not be done. Cheap to clone, and one pointer wide.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    text: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// What kind of trouble an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input was wrong: a setting, a glossary, a language. Nothing changed.
    Invalid,
    /// The document is of a kind, an encoding or a shape that is not translated.
    Document,
    /// A job could not be read or kept.
    Store,
    /// The server that keeps the jobs was away for longer than a call waits.
    Unavailable,
}

impl Error {
    /// An error of `kind`; `text` says what was wrong and what would be right.
    #[must_use]
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, text: text.into(), source: None }))
    }

    /// The same error, caused by `source`.
    #[must_use]
    pub fn caused_by(self, source: impl StdError + Send + Sync + 'static) -> Self {
        let (kind, text) = (self.kind(), self.0.text.clone());
        Self(Arc::new(Inner { kind, text, source: Some(Arc::new(source)) }))
    }

    /// What kind of trouble this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, text)
    }

    pub(crate) fn store(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Store, text)
    }

    pub(crate) fn unavailable(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, text)
    }

    pub(crate) fn document(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Document, text)
    }
}

/// The quota's store could not be told something.
impl From<tollgate::Error> for Error {
    fn from(error: tollgate::Error) -> Self {
        Self::store(error.to_string()).caused_by(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}
