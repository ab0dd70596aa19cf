//! What one attempt got instead of an answer, the same for every operation.

use std::fmt;

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::{DispatchFailure, SdkError};
use aws_smithy_types::error::display::DisplayErrorContext;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use aws_smithy_types::retry::ErrorKind;
use serde_json::Value;
use tollgate::Span;

/// Quotas that free themselves: concurrent jobs, and servers in all jobs.
pub const JOB_QUOTAS: [&str; 2] = ["L-D88FAC3A", "L-05AFA8C6"];

/// The code of an attempt that got no answer in time.
pub const TIMED_OUT: &str = "RequestTimeout";

/// The code of an attempt whose connection failed.
pub const CONNECTION_LOST: &str = "ConnectionError";

/// The longest `Retry-After` that is believed.
pub const RETRY_AFTER_MAX: Span = Span::from_mins(15);

/// One failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The name of the error, as in `ThrottlingException`.
    pub code: String,
    /// What the service said about it.
    pub message: String,
    /// The status of HTTP, if there was an answer.
    pub status: Option<u16>,
    /// How long the service asked us to wait (`Retry-After`).
    pub retry_after: Option<Span>,
    /// The quota that was reached, as in `L-D88FAC3A`.
    pub quota_code: Option<String>,
}

impl Failure {
    /// An attempt that got no answer within `limit`.
    pub(crate) fn timed_out(limit: Span) -> Self {
        Self::without_answer(TIMED_OUT, format!("no answer within {limit}"))
    }

    fn without_answer(code: &str, message: String) -> Self {
        Self { code: code.to_owned(), message, status: None, retry_after: None, quota_code: None }
    }

    pub(crate) fn of<E>(error: &SdkError<E, HttpResponse>) -> Self
    where
        E: std::error::Error + ProvideErrorMetadata + 'static,
    {
        let Some(response) = error.raw_response() else {
            let code = match error {
                SdkError::TimeoutError(_) => TIMED_OUT,
                SdkError::DispatchFailure(failure) if failure.is_timeout() => TIMED_OUT,
                SdkError::DispatchFailure(failure) if failure.is_io() || is_lost(failure) => {
                    CONNECTION_LOST
                }
                SdkError::ResponseError(_) => CONNECTION_LOST,
                _ => "ClientError",
            };
            return Self::without_answer(code, DisplayErrorContext(error).to_string());
        };
        let status = response.status().as_u16();
        let body: Value = response
            .body()
            .bytes()
            .and_then(|bytes| serde_json::from_slice(bytes).ok())
            .unwrap_or_default();
        let known = error.as_service_error();
        let code = known
            .and_then(ProvideErrorMetadata::code)
            .map_or_else(|| code_of(status), str::to_owned);
        let message = known.and_then(ProvideErrorMetadata::message);
        let message =
            message.or_else(|| body["message"].as_str()).unwrap_or("no message").to_owned();
        let retry_after =
            response.headers().get("retry-after").and_then(|text| text.trim().parse().ok());
        Self {
            code,
            message,
            status: Some(status),
            retry_after: retry_after.map(|seconds| Span::from_secs(seconds).min(RETRY_AFTER_MAX)),
            quota_code: body["quotaCode"].as_str().map(str::to_owned),
        }
    }

    /// Whether the service refused for the rate of calls.
    #[must_use]
    pub fn is_throttling(&self) -> bool {
        self.status == Some(429) || is_throttling(&self.code)
    }

    /// Whether a quota is reached that jobs free again when they end.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_quota() && self.quota_code.as_deref().is_some_and(|code| JOB_QUOTAS.contains(&code))
    }

    /// Whether any quota is reached.
    #[must_use]
    pub fn is_quota(&self) -> bool {
        self.status == Some(402) || self.code == "ServiceQuotaExceededException"
    }

    /// Whether it is a rate limit in the sense of the metrics: the rate of calls, or a quota.
    #[must_use]
    pub fn is_rate_limit(&self) -> bool {
        self.is_throttling() || self.is_quota()
    }

    /// Whether the call may have been carried out all the same.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        match self.status {
            Some(status) => 500 <= status,
            None => self.code == TIMED_OUT || self.code == CONNECTION_LOST,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)?;
        match &self.quota_code {
            Some(quota) => write!(f, " (quota {quota})"),
            None => Ok(()),
        }
    }
}

/// A connection that ends while a request is under way is, to the HTTP client, no matter of input and output.
fn is_lost(failure: &DispatchFailure) -> bool {
    failure.as_other() == Some(ErrorKind::TransientError)
}

/// Whether `code` is one of the names that AWS services have for "too many calls".
pub(crate) fn is_throttling(code: &str) -> bool {
    const NAMES: [&str; 6] = [
        "Throttl",
        "TooManyRequests",
        "RequestLimitExceeded",
        "ProvisionedThroughputExceeded",
        "SlowDown",
        "BandwidthLimitExceeded",
    ];
    NAMES.iter().any(|name| code.contains(name))
}

/// The name of an answer that names no error.
fn code_of(status: u16) -> String {
    match status {
        429 => "ThrottlingException".to_owned(),
        500 => "InternalServerException".to_owned(),
        502..=504 => "ServiceUnavailable".to_owned(),
        other => format!("Http{other}"),
    }
}
