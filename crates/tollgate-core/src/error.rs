//! The one error of this crate.
//!
//! An error means "could not decide", never "denied": a denial is an answer. Callers look at [`Error::kind`], people
//! read the text, which names what was wrong and what would be right.

use std::fmt;

/// Why the core could not decide. One pointer wide, so that an answer that is not an error costs nothing extra.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    kind: ErrorKind,
    text: String,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input was wrong: a policy, an ask, a name or a number. Nothing changed.
    Invalid,
    /// The id was used before with other costs.
    Conflict,
    /// A bound was reached that time will lift, such as too many ids in one entry. Ask again later.
    Contended,
    /// The permit or its slot is too old to be settled, released or renewed.
    Expired,
    /// Stored bytes do not decode.
    Corrupt,
}

impl Error {
    #[cold]
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, text)
    }

    /// An error of `kind` with a text that says what was tried and what would be right.
    #[must_use]
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, text: text.into() }))
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

impl std::error::Error for Error {}
