//! Maps errors of PostgreSQL to error kinds, with the next step.

use std::error::Error as _;
use std::io;

use tokio_postgres::error::{DbError, SqlState};
use tollgate::{Error, ErrorKind};

/// Returns the server's error behind `error`, if it rolled back the statement.
pub(crate) fn refusal(error: &Error) -> Option<&DbError> {
    let source = error.source()?.downcast_ref::<tokio_postgres::Error>()?;
    source.as_db_error().filter(|refusal| refusal.severity() == "ERROR")
}

/// Whether a lock timed out.
pub(crate) fn is_locked(error: &Error) -> bool {
    refusal(error).is_some_and(|refusal| *refusal.code() == SqlState::LOCK_NOT_AVAILABLE)
}

/// Describes a failed connection or statement on the server at `place`.
pub(crate) fn explain(place: &str, doing: &str, error: tokio_postgres::Error) -> Error {
    let (kind, why) = match error.as_db_error() {
        Some(answer) => refused(answer.code(), answer.message()),
        None => unreachable(&error),
    };
    let error = Error::new(kind, format!("postgres at {place}: {doing}: {why}")).caused_by(error);
    // The lock may be on the whole table.
    if is_locked(&error) { error.unattributed() } else { error }
}

fn refused(code: &SqlState, message: &str) -> (ErrorKind, String) {
    let unavailable = ErrorKind::Unavailable;
    match *code {
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => (
            ErrorKind::Misconfigured,
            format!("the server does not accept the user or the password ({message}); check both in the url"),
        ),
        SqlState::INVALID_CATALOG_NAME => (
            ErrorKind::Misconfigured,
            format!("{message}; create it with CREATE DATABASE, or name another at the end of the url"),
        ),
        SqlState::INSUFFICIENT_PRIVILEGE => (
            ErrorKind::Misconfigured,
            format!(
                "{message}; let the owner run `tollgate postgres install`. For a quota over your own rows it prints the GRANT \
                 statements; the tables of a store need GRANT USAGE on the schema and SELECT, INSERT, UPDATE, DELETE on its tables"
            ),
        ),
        SqlState::UNDEFINED_TABLE | SqlState::INVALID_SCHEMA_NAME | SqlState::UNDEFINED_FUNCTION => (
            ErrorKind::Misconfigured,
            format!("{message}; the tables are not there or not of this version: run `tollgate postgres install`"),
        ),
        SqlState::UNDEFINED_COLUMN => {
            (ErrorKind::Invalid, format!("{message}; name a column that the table has"))
        }
        SqlState::LOCK_NOT_AVAILABLE => (
            ErrorKind::Contended,
            "another transaction holds the row, or the table, longer than lock_timeout; retry, and look for a transaction that stays open"
                .to_owned(),
        ),
        SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED => {
            (ErrorKind::Contended, format!("{message}; retry"))
        }
        SqlState::TOO_MANY_CONNECTIONS => (
            unavailable,
            format!("{message}; lower connections_max, or raise max_connections of the server"),
        ),
        // A statement of this session is missing in the next transaction, or another client prepared it there.
        SqlState::INVALID_SQL_STATEMENT_NAME
        | SqlState::DUPLICATE_PSTATEMENT
        | SqlState::PROTOCOL_VIOLATION => (
            ErrorKind::Misconfigured,
            format!(
                "{message}; a pooler such as pgbouncer in transaction mode gives each transaction another session: set \
                 transaction_pooling = true in [store]"
            ),
        ),
        SqlState::READ_ONLY_SQL_TRANSACTION => (
            unavailable,
            format!(
                "{message}; if this is a standby, name the primary in the url; otherwise reset \
                 default_transaction_read_only of the database or the role"
            ),
        ),
        SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN | SqlState::CANNOT_CONNECT_NOW => {
            (unavailable, format!("{message}; retry when the server is back"))
        }
        // A statement_timeout, or the statement was cancelled.
        SqlState::QUERY_CANCELED => {
            (ErrorKind::TimedOut, format!("{message}; the server gave up on the statement"))
        }
        // Raised by the trigger of a quota over rows.
        _ if code.code() == "RL429" => (ErrorKind::Contended, message.to_owned()),
        _ => (unavailable, format!("{message} (SQLSTATE {})", code.code())),
    }
}

fn unreachable(error: &tokio_postgres::Error) -> (ErrorKind, String) {
    let unavailable = ErrorKind::Unavailable;
    if error.is_closed() {
        return (unavailable, "the server closed the connection; retry".to_owned());
    }
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<io::Error>() {
            let kind = match io.kind() {
                io::ErrorKind::InvalidData => ErrorKind::Misconfigured,
                _ => unavailable,
            };
            return (kind, network(io));
        }
        cause = inner.source();
    }
    let detail =
        error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
    if detail.contains("password missing") {
        let why =
            "the server wants a password and the url has none; add it as in user:password@host";
        return (ErrorKind::Misconfigured, why.to_owned());
    }
    (unavailable, detail)
}

fn network(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "nothing listens there; check host and port, and that the server runs".to_owned()
        }
        io::ErrorKind::TimedOut => {
            "no answer in time; check host and port, and firewalls between".to_owned()
        }
        io::ErrorKind::InvalidData => {
            format!(
                "the TLS handshake failed ({error}); check the certificate, or name its authority"
            )
        }
        _ => format!("{error}; check host and port"),
    }
}
