//! Errors as gRPC statuses. A trailer carries the kind in the word that problem documents use, since codes are few.

use axum::http::Response;
use tollgate::{Error, ErrorKind};
use tollgate_protocol::json::{KIND_TRAILER, caller_text, kind_name};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::error_log;

/// Converts `error`, and logs it if the server is at fault.
pub(super) fn from_error(error: &Error) -> Status {
    let name = kind_name(error.kind());
    let code = code_of(error.kind());
    error_log::log(error);
    let mut status = Status::new(code, caller_text(error));
    status.metadata_mut().insert(KIND_TRAILER, MetadataValue::from_static(name));
    status
}

/// Corrects the code of a message that does not decode: tonic reports it as its own error, but it is the caller's.
pub(super) fn correct_decode_error<B>(response: &mut Response<B>) {
    let undecoded = |status: &Status| {
        status.code() == Code::Internal
            && status.message().starts_with("failed to decode Protobuf message")
    };
    if let Some(status) = Status::from_header_map(response.headers()).filter(undecoded) {
        let status = Status::invalid_argument(status.message());
        // Only a message that is not a header value fails, and this one was one.
        drop(status.add_header(response.headers_mut()));
    }
}

const fn code_of(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::Forbidden => Code::PermissionDenied,
        ErrorKind::UnknownPolicy => Code::NotFound,
        ErrorKind::Conflict => Code::AlreadyExists,
        // The one bound that a retry may not hit again.
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
