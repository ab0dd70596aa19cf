//! The error of this crate.

use std::error::Error as StdError;
use std::fmt;

use crate::error_body::ErrorCode;

/// Why a call, a request or a setting was rejected. The text says what was wrong and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    text: String,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A call or a feature that the dialect does not cover, such as batches, files or a realtime connection.
    Unsupported,
    /// The body of a request is not JSON of the expected shape.
    Request,
    /// A setting is invalid: the name of a dialect, a usage expression, a price.
    Setting,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    pub(crate) fn unsupported(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, text)
    }

    pub(crate) fn request(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Request, text)
    }

    pub(crate) fn setting(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Setting, text)
    }

    /// Returns the kind.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the code under which a gateway answers this error to its client.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self.kind {
            ErrorKind::Unsupported => ErrorCode::NotFound,
            ErrorKind::Request | ErrorKind::Setting => ErrorCode::InvalidRequest,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for Error {}
