//! Errors as statuses.
//!
//! Codes are few, so the kind goes along in a trailer, in the word that problem documents use.

use axum::http::Response;
use tollgate::{Error, ErrorKind};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::failures;
use crate::wire::{KIND_TRAILER, caller_text, kind_name};

/// `error` as a status, logged if it is the server's own trouble.
pub(super) fn of(error: &Error) -> Status {
    let name = kind_name(error.kind());
    let code = code_of(error.kind());
    failures::log(error);
    let mut status = Status::new(code, caller_text(error));
    status.metadata_mut().insert(KIND_TRAILER, MetadataValue::from_static(name));
    status
}

/// Turns what tonic says of bytes that are no message, an error of its own, into one of the caller.
pub(super) fn blame_caller<B>(response: &mut Response<B>) {
    let undecoded = |status: &Status| {
        status.code() == Code::Internal
            && status.message().starts_with("failed to decode Protobuf message")
    };
    if let Some(status) = Status::from_header_map(response.headers()).filter(undecoded) {
        let status = Status::invalid_argument(status.message());
        // Only a message that is no header value fails, and this one just was one.
        drop(status.add_header(response.headers_mut()));
    }
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
        ErrorKind::Full
        | ErrorKind::Throttled
        | ErrorKind::TimedOut
        | ErrorKind::Misconfigured
        | ErrorKind::Unavailable => Code::Unavailable,
        _ => Code::Internal,
    }
}
