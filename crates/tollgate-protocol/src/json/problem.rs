//! Errors as problem documents (RFC 9457).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate::{Error, ErrorKind};

/// The media type of a problem document.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// The registered problem type of a denial.
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The gRPC trailer with the [`kind_name`] of an error.
pub const KIND_TRAILER: &str = "tollgate-kind";

/// The kind of a call to another host.
pub const MISDIRECTED: &str = "misdirected";

/// An error. Programs look at `kind`, people read `detail`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// The problem type; `about:blank` means that of the status.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// The reason phrase of the status.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The kind of error, a stable word.
    pub kind: String,
    /// What is wrong, and what would be right.
    pub detail: String,
}

impl Problem {
    /// Creates a problem with the title of `status`.
    #[must_use]
    pub fn new(status: u16, kind: &str, detail: impl Into<String>) -> Self {
        Self {
            type_uri: "about:blank".to_owned(),
            title: title_of(status).to_owned(),
            status,
            kind: kind.to_owned(),
            detail: detail.into(),
        }
    }

    /// Creates a problem of invalid input.
    #[must_use]
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(400, kind_name(ErrorKind::Invalid), detail)
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        Self::new(status_of(error.kind()), kind_name(error.kind()), caller_text(error))
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

/// Returns the text of `error` for a caller. How the broker reaches its store is only logged.
#[must_use]
pub fn caller_text(error: &Error) -> String {
    match error.kind() {
        ErrorKind::Misconfigured => {
            "the store does not serve this broker; its operator finds the cause in the broker's log"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

/// Returns the HTTP status of an error of `kind`.
#[must_use]
pub const fn status_of(kind: ErrorKind) -> u16 {
    match kind {
        ErrorKind::Invalid => 400,
        ErrorKind::Forbidden => 403,
        ErrorKind::UnknownPolicy => 404,
        ErrorKind::Conflict => 409,
        ErrorKind::Expired => 410,
        ErrorKind::Contended
        | ErrorKind::Full
        | ErrorKind::Throttled
        | ErrorKind::TimedOut
        | ErrorKind::Misconfigured
        | ErrorKind::Unavailable => 503,
        _ => 500,
    }
}

/// Returns the name of `kind` in responses.
#[must_use]
pub const fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid",
        ErrorKind::Forbidden => "forbidden",
        ErrorKind::UnknownPolicy => "unknown-policy",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Contended => "contended",
        ErrorKind::Expired => "expired",
        ErrorKind::Corrupt => "corrupt",
        ErrorKind::Full => "full",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Throttled => "throttled",
        ErrorKind::TimedOut => "timed-out",
        ErrorKind::Misconfigured => "misconfigured",
        _ => "internal",
    }
}

/// Returns the kind with this [`kind_name`].
///
/// ```
/// use tollgate::ErrorKind;
/// use tollgate_protocol::json::{kind_name, kind_of};
///
/// assert_eq!(kind_of(kind_name(ErrorKind::Full)), Some(ErrorKind::Full));
/// assert_eq!(kind_of("not-found"), None);
/// ```
#[must_use]
pub fn kind_of(name: &str) -> Option<ErrorKind> {
    KINDS.into_iter().find(|kind| kind_name(*kind) == name)
}

const KINDS: [ErrorKind; 12] = [
    ErrorKind::Invalid,
    ErrorKind::Forbidden,
    ErrorKind::UnknownPolicy,
    ErrorKind::Conflict,
    ErrorKind::Contended,
    ErrorKind::Expired,
    ErrorKind::Corrupt,
    ErrorKind::Full,
    ErrorKind::Unavailable,
    ErrorKind::Throttled,
    ErrorKind::TimedOut,
    ErrorKind::Misconfigured,
];

/// The number of values of [`kind_index`].
pub const KINDS_MAX: usize = KINDS.len() + 1;

/// Returns an index for each kind; the last is for unnamed kinds.
pub fn kind_index(kind: ErrorKind) -> usize {
    KINDS.into_iter().position(|known| known == kind).unwrap_or(KINDS.len())
}

const fn title_of(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}
