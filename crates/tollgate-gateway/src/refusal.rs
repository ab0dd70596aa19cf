//! Responses of the gateway itself, in the shape of the client's dialect.

use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Response};
use tollgate::{Denial, Error, ErrorKind, Span};
use tollgate_providers::{Dialect, ErrorCode, error_body};

use crate::bounds::RETRY_MAX;
use crate::observe::RefusalReason;
use crate::relay::GatewayBody;

static RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
static SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Why the gateway does not pass a call on, or has no response to it.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: ErrorCode,
    pub(crate) reason: RefusalReason,
    message: String,
    retry: Retry,
}

/// Whether another attempt makes sense.
#[derive(Clone, Copy, Debug)]
enum Retry {
    /// As the client likes.
    Unknown,
    After(Span),
    Never,
}

impl Refusal {
    pub(crate) fn new(code: ErrorCode, reason: RefusalReason, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), retry: Retry::Unknown }
    }

    pub(crate) fn retry_after(mut self, wait: Span) -> Self {
        self.retry = Retry::After(wait);
        self
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidRequest, RefusalReason::Invalid, message)
    }

    pub(crate) fn stopping() -> Self {
        let text = "the gateway is stopping; send the call again";
        Self::new(ErrorCode::Overloaded, RefusalReason::Stopping, text)
            .retry_after(Span::from_secs(1))
    }

    pub(crate) fn full(what: &str) -> Self {
        let text = format!("the gateway holds as many {what} as it may; try again later");
        Self::new(ErrorCode::Overloaded, RefusalReason::QueueFull, text)
            .retry_after(Span::from_secs(1))
    }

    /// A limit denied the call.
    pub(crate) fn denied(denial: &Denial) -> Self {
        let (code, retry) = match denial.retry_after() {
            Some(wait) => (ErrorCode::RateLimited, Retry::After(wait)),
            None => (ErrorCode::NeverFits, Retry::Never),
        };
        Self { code, reason: RefusalReason::Limit, message: denial.to_string(), retry }
    }

    /// The gate could not decide.
    pub(crate) fn undecided(error: &Error) -> Self {
        if error.kind() == ErrorKind::Contended {
            return Self::new(ErrorCode::RateLimited, RefusalReason::QueueFull, error.to_string())
                .retry_after(Span::from_secs(1));
        }
        if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::UnknownPolicy) {
            return Self::new(ErrorCode::Internal, RefusalReason::Store, error.to_string());
        }
        // The text may name hosts of the store.
        let text = "the gateway could not decide on this call, so it was not sent";
        Self::new(ErrorCode::Overloaded, RefusalReason::Store, text).retry_after(Span::from_secs(1))
    }

    /// Returns the response in the shape of `dialect`.
    pub(crate) fn response(&self, dialect: Dialect) -> Response<GatewayBody> {
        let wait = match self.retry {
            Retry::After(wait) => Some(wait.max(Span::from_millis(1))),
            Retry::Unknown | Retry::Never => None,
        };
        let body = error_body(dialect, self.code, &self.message, wait);
        let mut response = Response::new(GatewayBody::Own(Some(Bytes::from(body))));
        *response.status_mut() = self.code.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(wait) = wait {
            headers.insert(RETRY_AFTER, wait.as_secs_ceil().into());
            headers.insert(&RETRY_AFTER_MS, wait.as_millis_ceil().into());
        }
        self.advise(wait, headers);
        response
    }

    /// SDKs would wait for an hour, or repeat a call that never fits.
    fn advise(&self, wait: Option<Span>, headers: &mut HeaderMap) {
        let is_long = wait.is_some_and(|wait| RETRY_MAX < wait);
        if is_long || matches!(self.retry, Retry::Never) {
            headers.insert(&SHOULD_RETRY, HeaderValue::from_static("false"));
        }
    }
}
