//! Permit tokens.
#![allow(clippy::unwrap_used, reason = "tests")]

mod permit_tokens;
mod relayed_permits;
