//! Maps errors of SQLite to error kinds, with the file and the next step.

use std::path::Path;

use rusqlite::ErrorCode;
use tollgate::{Error, ErrorKind};

/// Describes a failure to `act` on the database at `path`.
pub(crate) fn fault(act: &str, path: &Path, error: rusqlite::Error) -> Error {
    let path = path.display();
    let (kind, advice) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => (ErrorKind::Corrupt, DAMAGED),
        Some(ErrorCode::DiskFull) => {
            (ErrorKind::Unavailable, "free some disk space and open the store again")
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
            (ErrorKind::Unavailable, "make the data folder and its files writable for this user")
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ErrorKind::Unavailable,
            "another program holds the database; end it and open the store again",
        ),
        _ => (ErrorKind::Unavailable, "check the disk and open the store again"),
    };
    let what = if kind == ErrorKind::Corrupt { "is damaged: " } else { "" };
    Error::new(kind, format!("could not {act} {path}: {what}{error}; {advice}")).caused_by(error)
}

/// The advice for a damaged file.
pub(crate) const DAMAGED: &str =
    "restore the data folder from a backup, or move it away to start with nothing used";

/// Describes damage that SQLite does not detect.
pub(crate) fn damaged(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{} is damaged: {why}; {DAMAGED}", path.display()))
}
