//! The one error of this crate: what was tried, for whom, and why it did not work.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use tollgate::Span;
use tollgate::retry::Stopped;

use crate::failure::Failure;
use crate::throttle::JobCapacityTimeout;

/// Why a call did not succeed. Cheap to clone.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No token came in time, so the call did not go out.
    RateLimitTimeout(RateLimitTimeout),
    /// The service said no, and asking again would not help.
    Refused(Arc<Refused>),
    /// Everything was tried as often as allowed.
    RetryExhausted(Arc<RetryExhausted>),
    /// The answer was lost, and it could not be found out whether the call was carried out. It was not sent again.
    Ambiguous(Arc<Ambiguous>),
    /// No place for a job became free in time.
    JobCapacityTimeout(JobCapacityTimeout),
    /// The gate that tokens or slots come from could not decide.
    Gate(tollgate::Error),
    /// The input was wrong. Nothing was called.
    Invalid(String),
}

/// Which call it was.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Context {
    /// The operation, as in `StartRecovery`.
    pub operation: &'static str,
    /// The region.
    pub region: Arc<str>,
    /// The account, as the client knows it.
    pub account: Arc<str>,
    /// The same for all attempts and all log lines of one call.
    pub correlation_id: Arc<str>,
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, region, account, correlation_id } = self;
        write!(f, "{operation} in {region} of account {account} ({correlation_id})")
    }
}

/// No token came in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitTimeout {
    /// The account.
    pub account: Arc<str>,
    /// The region.
    pub region: Arc<str>,
    /// Which of its buckets: the service, or the service and an operation.
    pub class: Arc<str>,
    /// How long a call may wait for a token.
    pub wait_max: Span,
}

/// The service said no.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Which call it was.
    pub context: Context,
    /// What the service said.
    pub failure: Failure,
}

/// Everything was tried as often as allowed.
#[derive(Clone, Debug)]
pub struct RetryExhausted {
    /// Which call it was.
    pub context: Context,
    /// What the last attempt got.
    pub last: Failure,
    /// How many attempts there were.
    pub attempts: u32,
    /// Why there was no further one.
    pub stopped: Stopped,
}

/// Nobody knows whether the call was carried out.
#[derive(Clone, Debug)]
pub struct Ambiguous {
    /// Which call it was.
    pub context: Context,
    /// What was lost.
    pub failure: Failure,
    /// Why it could not be looked up.
    pub lookup: Error,
    /// The value of the tag [`REQUEST_TAG`](crate::drs::REQUEST_TAG) by which a job can be found later; nothing where the
    /// operation takes no tags.
    pub request_id: Option<String>,
}

impl Error {
    /// The error of this crate somewhere below `error`: what a guarded SDK client failed with.
    #[must_use]
    pub fn below<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<Self>() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }

    /// A word for it in metrics and logs: the code of the service where there is one.
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

    /// What the service said last, where it said something.
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
            Self::RateLimitTimeout(timeout) => {
                let RateLimitTimeout { account, region, class, wait_max } = timeout;
                write!(
                    f,
                    "no token for {class} in {region} of account {account} within {wait_max}; the call did not go out"
                )
            }
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
                    "{context}: the answer was lost ({failure}), and whether it was carried out could not be looked up ({lookup}); it was not sent again"
                )?;
                match request_id {
                    Some(id) => {
                        write!(f, ". A job it started has the tag {}={id}", crate::drs::REQUEST_TAG)
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
