//! The behaviour of a policy if the store cannot answer, and its names in files and protocols.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The behaviour of a policy if the store cannot answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum OnStoreFailure {
    /// Decide by the instance's own share of the limits.
    Fallback,
    /// Admit, without any bound.
    Open,
    /// Answer with an error.
    #[default]
    Closed,
}

impl FromStr for OnStoreFailure {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "fallback" => Ok(Self::Fallback),
            "open" => Ok(Self::Open),
            "closed" => Ok(Self::Closed),
            _ => Err(Error::invalid(format!("{text:?} is not one of fallback, open or closed"))),
        }
    }
}

impl fmt::Display for OnStoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fallback => "fallback",
            Self::Open => "open",
            Self::Closed => "closed",
        })
    }
}
