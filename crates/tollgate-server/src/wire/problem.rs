//! Errors as problem documents (RFC 9457).

use serde::{Deserialize, Serialize};
use tollgate::{Error, ErrorKind};

/// The media type of a problem document.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// The registered problem type of a refusal.
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The trailer of gRPC with the kind of an error, as [`kind_name`] says it.
pub const KIND_TRAILER: &str = "tollgate-kind";

/// The kind of a call under a host that is not the server's.
pub const MISDIRECTED: &str = "misdirected";

/// Why a call could not be answered.
///
/// Programs look at `kind`, people read `detail`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "serve", derive(schemars::JsonSchema))]
pub struct Problem {
    /// The problem type; `about:blank` says that the status tells it all.
    #[serde(rename = "type")]
    pub type_uri: String,
    /// The status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What kind of trouble it is, in one word that does not change.
    pub kind: String,
    /// What was wrong, and what would be right.
    pub detail: String,
}

impl Problem {
    /// A problem with `status`, whose `title` is the status in words.
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

    /// Bad input, which `detail` names together with what would be right.
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

/// The text of `error` for a caller. How the broker reaches its store is not for callers: the log has it.
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

/// The HTTP status that an error of `kind` is answered with.
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

/// The one word for `kind` that answers carry.
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

/// The kind that [`kind_name`] calls `name`; nothing if it names none.
///
/// ```
/// use tollgate::ErrorKind;
/// use tollgate_server::wire::{kind_name, kind_of};
///
/// assert_eq!(kind_of(kind_name(ErrorKind::Full)), Some(ErrorKind::Full));
/// assert_eq!(kind_of("not-found"), None);
/// ```
#[must_use]
pub fn kind_of(name: &str) -> Option<ErrorKind> {
    KINDS.into_iter().find(|kind| kind_name(*kind) == name)
}

/// Every kind.
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

/// How many places [`kind_place`] has.
#[cfg(feature = "serve")]
pub(crate) const KINDS_MAX: usize = KINDS.len() + 1;

/// A place for each kind; the last is for those without a word.
#[cfg(feature = "serve")]
pub(crate) fn kind_place(kind: ErrorKind) -> usize {
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
