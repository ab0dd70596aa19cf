//! Errors about unexpected responses, and renewed permits.

use tollgate::{Error, ErrorKind, Permit};
use tollgate_protocol::permit_token;

/// Returns the error for a response that this version does not understand.
pub(crate) fn unexpected(text: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{text}; is the broker of another version?"))
}

/// Returns `permit` with the grant and the seal of its renewal.
pub(crate) fn renewed(permit: &Permit, seal: &str) -> Result<Permit, Error> {
    let grant = *permit_token::read(seal, permit.policy())?.grant();
    Ok(permit.clone().with_grant(grant).with_seal(seal))
}
