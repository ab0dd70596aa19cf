//! The error of this crate.
//!
//! Programs match [`Error::kind`], never the text. The text says what was wrong, where, and how to fix it. A bad translation is not an
//! error but a [`Fault`](crate::Fault).

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed. Cheap to clone, and one pointer wide.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    text: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Invalid input: a setting, a glossary, a language. Nothing changed.
    Invalid,
    /// The format, the encoding or the structure of the document is not supported.
    Document,
    /// A job could not be loaded or stored.
    Store,
    /// The server of the job store was unavailable for longer than a call waits.
    Unavailable,
}

impl Error {
    /// Returns an error of `kind`; `text` says what was wrong and how to fix it.
    #[must_use]
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, text: text.into(), source: None }))
    }

    /// Sets the cause.
    #[must_use]
    pub fn caused_by(self, source: impl StdError + Send + Sync + 'static) -> Self {
        let (kind, text) = (self.kind(), self.0.text.clone());
        Self(Arc::new(Inner { kind, text, source: Some(Arc::new(source)) }))
    }

    /// Returns the kind.
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

/// Converts a type to and from a stored text, by its `Display` and `FromStr`.
macro_rules! stored_as_text {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = $crate::Error;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    };
}

pub(crate) use stored_as_text;
