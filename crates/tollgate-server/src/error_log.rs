//! Rate-limited logging of errors: one line per kind every few seconds.

use tollgate::clock::SystemClock;
use tollgate::internal::LogLimit;
use tollgate::{Clock, Error, ErrorKind};

use tollgate_protocol::json::{KINDS_MAX, kind_index, kind_name, status_of};

static LIMITS: [LogLimit; KINDS_MAX] = [const { LogLimit::new() }; KINDS_MAX];

/// Logs `error` if the server is at fault.
pub(crate) fn log(error: &Error) {
    if status_of(error.kind()) < 500 {
        return;
    }
    log_as(error, "could not answer");
}

/// Logs `error` with the message `what`.
pub(crate) fn log_as(error: &Error, what: &str) {
    let limit = &LIMITS[kind_index(error.kind())];
    let Some(suppressed) = limit.pass(SystemClock.now()) else { return };
    let kind = kind_name(error.kind());
    if error.kind() == ErrorKind::Contended {
        tracing::warn!(kind, %error, suppressed, "{what}");
    } else {
        tracing::error!(kind, %error, suppressed, "{what}");
    }
}
