//! The failure of one attempt, the same for every operation.

use std::fmt;

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use serde::Serialize;
use serde_json::Value;
use tollgate::Span;
use tollgate_aws::{RETRY_AFTER_MAX, is_throttling};

use crate::error::Error;

/// Quotas that have room again when jobs end: concurrent jobs, and servers in all jobs.
pub const JOB_QUOTAS: [&str; 2] = ["L-D88FAC3A", "L-05AFA8C6"];

/// The code of an attempt that timed out.
pub const TIMED_OUT: &str = "RequestTimeout";

/// The code of an attempt whose connection failed.
pub const CONNECTION_LOST: &str = "ConnectionError";

/// The code of an attempt that found no credentials.
pub const NO_CREDENTIALS: &str = "NoCredentials";

const MISSING_CREDENTIALS: &str = "there are no AWS credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run it where a role provides them";

/// One failed attempt. Serializes as the error of a log line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The name of the error, as in `ThrottlingException`.
    pub code: String,
    /// The message of the service.
    pub message: String,
    /// The HTTP status, if there was a response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The `Retry-After` of the service; serializes as seconds.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_seconds")]
    pub retry_after: Option<Span>,
    /// The quota that was reached, as in `L-D88FAC3A`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_code: Option<String>,
}

impl Failure {
    /// Returns the failure of an attempt that timed out after `limit`.
    pub(crate) fn timed_out(limit: Span) -> Self {
        Self::without_response(TIMED_OUT, format!("no response within {limit}"))
    }

    fn without_response(code: &str, message: String) -> Self {
        Self { code: code.to_owned(), message, status: None, retry_after: None, quota_code: None }
    }

    /// Returns the last failure behind `error`, or the error itself as one.
    pub(crate) fn from_error(error: &Error) -> Self {
        let own = || Self::without_response(error.code(), error.to_string());
        error.failure().cloned().unwrap_or_else(own)
    }

    pub(crate) fn from_sdk_error<E>(error: &SdkError<E, HttpResponse>) -> Self
    where
        E: std::error::Error + ProvideErrorMetadata + 'static,
    {
        let code = match error {
            // A truncated or unreadable response does not say whether the call was carried out.
            SdkError::ServiceError(said) if said.raw().status().is_success() => {
                Some(CONNECTION_LOST)
            }
            SdkError::ResponseError(_) => Some(CONNECTION_LOST),
            SdkError::ServiceError(_) => None,
            SdkError::TimeoutError(_) => Some(TIMED_OUT),
            SdkError::DispatchFailure(failure) if failure.is_timeout() => Some(TIMED_OUT),
            // A connection that ends before the response is of another kind in the SDK.
            SdkError::DispatchFailure(failure)
                if failure.is_io() || failure.as_other().is_some() =>
            {
                Some(CONNECTION_LOST)
            }
            _ => Some("ClientError"),
        };
        let (None, Some(response)) = (code, error.raw_response()) else {
            let chain = chain(error);
            // The type of the error is not exported by the SDK.
            if chain.contains("credential provider was not enabled") {
                return Self::without_response(NO_CREDENTIALS, MISSING_CREDENTIALS.to_owned());
            }
            return Self::without_response(code.unwrap_or("ClientError"), chain);
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
            .map_or_else(|| code_from_status(status), str::to_owned);
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

    /// Returns whether the service throttled the call.
    #[must_use]
    pub fn is_throttling(&self) -> bool {
        self.status == Some(429) || is_throttling(&self.code)
    }

    /// Returns whether a quota is reached that has room again when jobs end.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_quota() && self.quota_code.as_deref().is_some_and(|code| JOB_QUOTAS.contains(&code))
    }

    /// Returns whether a quota is reached.
    #[must_use]
    pub fn is_quota(&self) -> bool {
        self.status == Some(402) || self.code == "ServiceQuotaExceededException"
    }

    /// Returns whether metrics count it as a rate limit: throttling, or a quota.
    #[must_use]
    pub fn is_rate_limit(&self) -> bool {
        self.is_throttling() || self.is_quota()
    }

    /// Returns whether the call may have been carried out.
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

fn as_seconds<S: serde::Serializer>(span: &Option<Span>, to: S) -> Result<S::Ok, S::Error> {
    span.map(Span::as_secs_ceil).serialize(to)
}

/// Returns the messages of `error` and of its sources, each once.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        source = error.source();
    }
    text
}

/// Returns the code of a response that names no error.
fn code_from_status(status: u16) -> String {
    match status {
        429 => "ThrottlingException".to_owned(),
        500 => "InternalServerException".to_owned(),
        502..=504 => "ServiceUnavailable".to_owned(),
        other => format!("Http{other}"),
    }
}
