//! Why a command failed: printed once, in `main`.

use std::error::Error as _;
use std::fmt;

use tollgate::{Error, ErrorKind};
use tollgate_server::wire::Problem;

use crate::config::Blame;

/// Why a command could not do its work. A denial is not one.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The configuration is wrong; the message shows where.
    Config(Box<Blame>),
    /// The gate, the flags or the machine.
    Gate(Error),
    /// The broker said so.
    Broker(Problem),
}

impl Failure {
    /// A failure of `kind` with `text`.
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self::Gate(Error::new(kind, text))
    }

    /// The failure as the HTTP API would say it.
    pub(crate) fn problem(&self) -> Problem {
        match self {
            Self::Config(blame) => Problem::invalid(blame.to_string()),
            Self::Gate(error) => Problem { detail: with_causes(error), ..Problem::from(error) },
            Self::Broker(problem) => problem.clone(),
        }
    }
}

impl fmt::Display for Failure {
    /// A message about a file starts with the file and the line, so that terminals and editors can jump there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(blame) => blame.fmt(f),
            Self::Gate(error) => write!(f, "tollgate: {}", with_causes(error)),
            Self::Broker(problem) => write!(f, "tollgate: {}", problem.detail),
        }
    }
}

/// The text of `error` and of everything that caused it, each said once.
fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let why = error.to_string();
        if !text.contains(&why) {
            text += &format!(": {why}");
        }
        cause = error.source();
    }
    text
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Gate(error)
    }
}

impl From<Blame> for Failure {
    fn from(blame: Blame) -> Self {
        Self::Config(Box::new(blame))
    }
}
