//! The error of a guarded call that did not go out.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use tollgate::Span;

/// Why a call did not go out. Cheap to clone.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No token became available in time.
    RateLimitTimeout(RateLimitTimeout),
    /// The shared gate could not decide.
    Gate(tollgate::Error),
    /// The settings are invalid.
    Invalid(String),
}

/// No token became available in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitTimeout {
    /// The account.
    pub account: Arc<str>,
    /// The region.
    pub region: Arc<str>,
    /// The bucket: the service, or the service and an operation.
    pub class: Arc<str>,
    /// How long a call waits for a token.
    pub wait_max: Span,
}

impl Error {
    /// Finds the error of this crate among the sources of `error`, the error of a guarded SDK client.
    #[must_use]
    pub fn find_source<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<Self>() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }
}

impl fmt::Display for RateLimitTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { account, region, class, wait_max } = self;
        write!(
            f,
            "no token for {class} in {region} of account {account} within {wait_max}; the call did not go out"
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RateLimitTimeout(timeout) => timeout.fmt(f),
            Self::Gate(_) => f.write_str("the gate could not decide, so the call did not go out"),
            Self::Invalid(message) => f.write_str(message),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Gate(error) => Some(error),
            _ => None,
        }
    }
}

impl From<tollgate::Error> for Error {
    fn from(error: tollgate::Error) -> Self {
        Self::Gate(error)
    }
}
