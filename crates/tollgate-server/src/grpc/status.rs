//! Errors as statuses.
//!
//! Codes are few, so the kind goes along in a trailer, in the word that problem documents use.

use tollgate::{Error, ErrorKind};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::wire::{KIND_TRAILER, kind_name};

/// `error` as a status. What is the server's own trouble is logged, without what callers sent.
pub(super) fn of(error: &Error) -> Status {
    let name = kind_name(error.kind());
    let code = code_of(error.kind());
    if matches!(code, Code::Unavailable | Code::DataLoss | Code::Internal) {
        tracing::error!(kind = name, %error, "could not answer");
    }
    let mut status = Status::new(code, error.to_string());
    status.metadata_mut().insert(KIND_TRAILER, MetadataValue::from_static(name));
    status
}

const fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::Forbidden => Code::PermissionDenied,
        ErrorKind::UnknownPolicy => Code::NotFound,
        ErrorKind::Conflict => Code::AlreadyExists,
        // The one bound that asking again soon gets around.
        ErrorKind::Contended => Code::ResourceExhausted,
        ErrorKind::Expired => Code::FailedPrecondition,
        ErrorKind::Corrupt => Code::DataLoss,
        ErrorKind::Full | ErrorKind::Throttled | ErrorKind::Unavailable => Code::Unavailable,
        _ => Code::Internal,
    }
}
