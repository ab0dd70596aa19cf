//! The log of what could not be answered: one line per kind every few seconds, however many callers ask.

use tollgate::{Clock, Error, ErrorKind, LogLimit, SystemClock};

use crate::wire::{KINDS_MAX, kind_name, kind_place, status_of};

static LIMITS: [LogLimit; KINDS_MAX] = [const { LogLimit::new() }; KINDS_MAX];

/// Logs `error` if it is the server's own trouble, without what callers sent.
pub(crate) fn log(error: &Error) {
    if status_of(error.kind()) < 500 {
        return;
    }
    log_as(error, "could not answer");
}

/// Logs `error` as `what`, bounded by its kind.
pub(crate) fn log_as(error: &Error, what: &str) {
    let limit = &LIMITS[kind_place(error.kind())];
    let Some(suppressed) = limit.pass(SystemClock.now()) else { return };
    let kind = kind_name(error.kind());
    if error.kind() == ErrorKind::Contended {
        tracing::warn!(kind, %error, suppressed, "{what}");
    } else {
        tracing::error!(kind, %error, suppressed, "{what}");
    }
}
