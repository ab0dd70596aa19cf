//! The error of a command, printed once in `main`.

use std::error::Error as _;
use std::fmt;

use tollgate::{Error, ErrorKind};
use tollgate_config::Diagnostic;
use tollgate_protocol::json::Problem;

/// The error of a command. A denial is not an error.
#[derive(Debug)]
pub enum Failure {
    /// The configuration is wrong; the message points at the line.
    Config(Box<Diagnostic>),
    /// A gate, a flag or the machine failed.
    Gate(Error),
    /// The broker responded with a problem.
    Broker(Problem),
}

impl Failure {
    /// Returns a failure of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Gate(Error::new(kind, message))
    }

    /// Returns the failure as the HTTP API would report it.
    #[must_use]
    pub fn problem(&self) -> Problem {
        match self {
            Self::Config(diagnostic) => Problem::invalid(diagnostic.to_string()),
            Self::Gate(error) => Problem { detail: with_causes(error), ..Problem::from(error) },
            Self::Broker(problem) => problem.clone(),
        }
    }
}

impl fmt::Display for Failure {
    /// A message about a file starts with the file and the line, so that terminals and editors can jump there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(diagnostic) => diagnostic.fmt(f),
            Self::Gate(error) => write!(f, "tollgate: {}", with_causes(error)),
            Self::Broker(problem) => write!(f, "tollgate: {}", problem.detail),
        }
    }
}

/// Returns the message of `error` and of its causes, each once.
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

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Gate(error)
    }
}

impl From<Diagnostic> for Failure {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::Config(Box::new(diagnostic))
    }
}
