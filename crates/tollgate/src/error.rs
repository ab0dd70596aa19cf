//! The one error of this crate and of every gate.
//!
//! An error means "could not decide". Fallback, retry and alarms look at [`Error::kind`], never at the text.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use tollgate_core as core;

/// Why a gate could not decide. Cheap to clone, and one pointer wide.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    text: String,
    is_unattributed: bool,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The input was wrong. Nothing changed; asking again will not help.
    Invalid,
    /// The caller may not do this. Nothing changed; asking again will not help.
    Forbidden,
    /// No policy has this name.
    UnknownPolicy,
    /// The id was used before with other costs.
    Conflict,
    /// The subject cannot be served right now: its row is locked or hot, or a bound was reached that time will lift.
    /// Other subjects are served; ask again later.
    Contended,
    /// The permit or its slot is too old.
    Expired,
    /// Stored state does not decode.
    Corrupt,
    /// The store is full of entries that all hold something back.
    Full,
    /// The store could not be reached.
    Unavailable,
    /// The store refuses for its own load, although it can be reached.
    Throttled,
    /// The store did not answer in time. Whether it was carried out is not known.
    TimedOut,
    /// The store can be reached but does not serve this program: wrong credentials, missing permissions, an untrusted
    /// certificate, the wrong server, a missing schema. Only the operator can change that.
    Misconfigured,
}

impl Error {
    /// Creates an error of `kind`. `text` names the operation and its object, and the remedy if there is one.
    #[must_use]
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, text: text.into(), is_unattributed: false, source: None }))
    }

    /// Sets the cause.
    #[must_use]
    pub fn caused_by(self, source: impl StdError + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { source: Some(Arc::new(source)), ..(*self.0).clone() }))
    }

    /// Marks the error as one of the subject or of the store: a lock timed out, which may be on more than the subject. A
    /// fallback probes the store to find out.
    #[must_use]
    pub fn unattributed(self) -> Self {
        Self(Arc::new(Inner { is_unattributed: true, ..(*self.0).clone() }))
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns whether the store gave no answer, so that another gate might.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Unavailable
                | ErrorKind::Full
                | ErrorKind::Misconfigured
                | ErrorKind::TimedOut
                | ErrorKind::Throttled
        )
    }

    /// Returns whether one subject may be the cause: the store is slow or throttles, or a lock
    /// timed out, and other subjects may be served.
    #[must_use]
    pub fn may_be_of_subject(&self) -> bool {
        matches!(self.kind(), ErrorKind::TimedOut | ErrorKind::Throttled) || self.0.is_unattributed
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

impl From<core::Error> for Error {
    #[cold]
    fn from(error: core::Error) -> Self {
        let kind = match error.kind() {
            core::ErrorKind::Conflict => ErrorKind::Conflict,
            core::ErrorKind::Contended => ErrorKind::Contended,
            core::ErrorKind::Expired => ErrorKind::Expired,
            core::ErrorKind::Corrupt => ErrorKind::Corrupt,
            _ => ErrorKind::Invalid,
        };
        Self::new(kind, error.to_string())
    }
}
