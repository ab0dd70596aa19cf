//! Limits on message sizes that clients and servers share.

use crate::permit_token::TOKEN_CHARS_MAX;

/// The longest argument of a command of the Redis protocol, in bytes: a permit token at its longest.
pub const ARG_BYTES_MAX: usize = TOKEN_CHARS_MAX;

/// The most overrides of one policy that are listed.
pub const OVERRIDES_SHOWN_MAX: usize = 1_000;
