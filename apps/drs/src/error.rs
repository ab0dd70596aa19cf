//! The error of this crate.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use tollgate::retry::Stopped;
use tollgate_aws::RateLimitTimeout;

use crate::failure::Failure;
use crate::throttle::JobCapacityTimeout;

/// Why a call did not succeed. Cheap to clone.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No token became available in time, so the call did not go out.
    RateLimitTimeout(RateLimitTimeout),
    /// The service refused the call, and a retry would not help.
    Refused(Arc<Refused>),
    /// All retries were used.
    RetryExhausted(Arc<RetryExhausted>),
    /// The response was lost, and it is unknown whether the call was carried out. It was not sent again.
    Ambiguous(Arc<Ambiguous>),
    /// No job slot became free in time.
    JobCapacityTimeout(JobCapacityTimeout),
    /// The gate of tokens or slots could not decide.
    Gate(tollgate::Error),
    /// The input was invalid, so no call was made.
    Invalid(String),
}

/// The identity of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Context {
    /// The operation, as in `StartRecovery`.
    pub operation: &'static str,
    /// The region.
    pub region: Arc<str>,
    /// The account, as the client was configured.
    pub account: Arc<str>,
    /// The id of all attempts and log lines of one call.
    pub correlation_id: Arc<str>,
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, region, account, correlation_id } = self;
        write!(f, "{operation} in {region} of account {account} ({correlation_id})")
    }
}

/// The service refused the call.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Which call it was.
    pub context: Context,
    /// Why.
    pub failure: Failure,
}

/// All retries were used.
#[derive(Clone, Debug)]
pub struct RetryExhausted {
    /// Which call it was.
    pub context: Context,
    /// Why the last attempt failed.
    pub last: Failure,
    /// How many attempts there were.
    pub attempts: u32,
    /// Why there was no further attempt.
    pub stopped: Stopped,
}

/// It is unknown whether the call was carried out.
#[derive(Clone, Debug)]
pub struct Ambiguous {
    /// Which call it was.
    pub context: Context,
    /// How the response was lost.
    pub failure: Failure,
    /// Why the job could not be looked up.
    pub lookup: Error,
    /// The value of the tag [`REQUEST_TAG`](crate::client::REQUEST_TAG) by which a job can be found later; `None` if the
    /// operation takes no tags.
    pub request_id: Option<String>,
}

impl Error {
    /// Returns the code for metrics and logs: that of the service where there is one.
    #[must_use]
    pub fn code(&self) -> &str {
        match self {
            Self::RateLimitTimeout(_) => "RateLimitTimeout",
            Self::Refused(refused) => &refused.failure.code,
            Self::RetryExhausted(exhausted) => &exhausted.last.code,
            Self::Ambiguous(_) => "Ambiguous",
            Self::JobCapacityTimeout(_) => "JobCapacityTimeout",
            Self::Gate(_) => "GateError",
            Self::Invalid(_) => "Invalid",
        }
    }

    /// Returns the last failure of an attempt, if there was one.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Refused(refused) => Some(&refused.failure),
            Self::RetryExhausted(exhausted) => Some(&exhausted.last),
            Self::Ambiguous(ambiguous) => Some(&ambiguous.failure),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RateLimitTimeout(timeout) => timeout.fmt(f),
            Self::Refused(refused) => write!(f, "{}: {}", refused.context, refused.failure),
            Self::RetryExhausted(exhausted) => {
                let RetryExhausted { context, last, attempts, stopped } = &**exhausted;
                let why = match stopped {
                    Stopped::DeadlineExceeded => "the next wait would pass the deadline",
                    Stopped::BudgetSpent => "the retry budget is spent",
                    Stopped::Fatal | Stopped::Exhausted => "all retries were used",
                };
                write!(
                    f,
                    "{context}: gave up after {attempts} attempts, {why}; the last one: {last}"
                )
            }
            Self::Ambiguous(ambiguous) => {
                let Ambiguous { context, failure, lookup, request_id } = &**ambiguous;
                write!(
                    f,
                    "{context}: the response was lost ({failure}), and whether the call was carried out could not be looked up ({lookup}); it was not sent again"
                )?;
                match request_id {
                    Some(id) => {
                        write!(
                            f,
                            ". A job it started has the tag {}={id}",
                            crate::client::REQUEST_TAG
                        )
                    }
                    None => Ok(()),
                }
            }
            Self::JobCapacityTimeout(timeout) => timeout.fmt(f),
            Self::Gate(_) => f.write_str("the gate could not decide, so the call did not go out"),
            Self::Invalid(text) => f.write_str(text),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Gate(error) => Some(error),
            Self::Ambiguous(ambiguous) => Some(&ambiguous.lookup),
            _ => None,
        }
    }
}

impl From<tollgate::Error> for Error {
    fn from(error: tollgate::Error) -> Self {
        Self::Gate(error)
    }
}

impl From<tollgate_aws::Error> for Error {
    fn from(error: tollgate_aws::Error) -> Self {
        match error {
            tollgate_aws::Error::RateLimitTimeout(timeout) => Self::RateLimitTimeout(timeout),
            tollgate_aws::Error::Gate(error) => Self::Gate(error),
            other => Self::Invalid(other.to_string()),
        }
    }
}

#[cfg(feature = "command")]
impl From<Error> for tollgate_terminal::Failure {
    fn from(error: Error) -> Self {
        use tollgate::ErrorKind;

        match error {
            Error::Gate(error) => Self::Gate(error),
            Error::Invalid(message) => Self::new(ErrorKind::Invalid, message),
            other if other.code() == crate::NO_CREDENTIALS => {
                let message = other.failure().map_or_else(String::new, |why| why.message.clone());
                Self::new(ErrorKind::Misconfigured, message)
            }
            other => Self::new(ErrorKind::Unavailable, other.to_string()),
        }
    }
}
