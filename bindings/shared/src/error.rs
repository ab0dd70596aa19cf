//! The one error of this crate. A denial is not an error.

use std::fmt;

use tollgate::Error as GateError;
use tollgate_config::Diagnostic;

/// Why an operation failed, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The kind of an [`Error`]: one exception class of each package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument or the configuration is wrong. Nothing changed.
    Invalid,
    /// No policy has this name.
    UnknownPolicy,
    /// The broker does not allow this caller to do this.
    Forbidden,
    /// The id was used before with another ask.
    Conflict,
    /// The permit or its slot is too old.
    Expired,
    /// A bound was reached that time lifts, such as the number of waiters; ask again later.
    Contended,
    /// The store could not be reached, did not answer in time, or refuses to serve.
    Unavailable,
    /// Stored state does not decode.
    Corrupt,
    /// The gate is closed.
    Closed,
    /// A permit or a memory store of the process that this one was forked from.
    Forked,
}

impl Error {
    /// Creates an error of `kind`. `message` says what was wrong and what would be right.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Creates an error about an argument.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// Returns the error of a gate with the same meaning.
    pub(crate) fn to_gate_error(&self) -> GateError {
        use tollgate::ErrorKind as Kind;
        let kind = match self.kind {
            ErrorKind::Invalid => Kind::Invalid,
            ErrorKind::UnknownPolicy => Kind::UnknownPolicy,
            ErrorKind::Forbidden => Kind::Forbidden,
            ErrorKind::Conflict => Kind::Conflict,
            ErrorKind::Expired => Kind::Expired,
            ErrorKind::Contended => Kind::Contended,
            ErrorKind::Corrupt => Kind::Corrupt,
            ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::Forked => Kind::Unavailable,
        };
        GateError::new(kind, self.message.clone())
    }

    /// Returns the kind.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<GateError> for Error {
    #[cold]
    fn from(error: GateError) -> Self {
        use tollgate::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::Invalid => ErrorKind::Invalid,
            Kind::UnknownPolicy => ErrorKind::UnknownPolicy,
            Kind::Forbidden => ErrorKind::Forbidden,
            Kind::Conflict => ErrorKind::Conflict,
            Kind::Expired => ErrorKind::Expired,
            Kind::Contended => ErrorKind::Contended,
            Kind::Corrupt => ErrorKind::Corrupt,
            _ => ErrorKind::Unavailable,
        };
        let mut message = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !message.contains(&cause_text) {
                message = format!("{message}: {cause_text}");
            }
            source = cause.source();
        }
        Self { kind, message }
    }
}

impl From<tollgate::core::Error> for Error {
    #[cold]
    fn from(error: tollgate::core::Error) -> Self {
        GateError::from(error).into()
    }
}

impl From<Diagnostic> for Error {
    #[cold]
    fn from(diagnostic: Diagnostic) -> Self {
        Self::invalid(diagnostic.to_string())
    }
}
