//! Subjects made of what callers of callers send.
//!
//! A proxy asks for whoever calls it, and whatever that is, it must be some subject: an error would let a caller choose
//! not to be limited, or take the proxy down with it.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use tollgate::core::bounds::SUBJECT_BYTES_MAX;

/// `text`, or its digest if it is empty or too long for a subject.
pub(crate) fn fitting(text: String) -> String {
    if (1..=SUBJECT_BYTES_MAX).contains(&text.len()) { text } else { digest(text.as_bytes()) }
}

/// `sha256:` and 64 hexadecimal digits, which name `bytes` without showing them.
pub(crate) fn digest(bytes: &[u8]) -> String {
    let mut digest = "sha256:".to_owned();
    for byte in Sha256::digest(bytes) {
        let _infallible = write!(digest, "{byte:02x}");
    }
    digest
}
