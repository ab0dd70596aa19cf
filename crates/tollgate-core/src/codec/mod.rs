//! Entries as bytes: a version, the shape of the policy, then the states.
//!
//! ```text
//! [version 2][length of shape][shape: the limits and their numbers][at, stamps, states, settled, closed, changed]
//! ```
//! The shape is what makes an entry readable on its own: when a policy's numbers change, the old numbers are still there
//! to say what was used. Where the shape equals that of the policy at hand, it is compared and not decoded. Bytes of
//! any earlier version decode; random bytes are an error, never a panic.

mod body;
mod shape;

use serde::Serialize;
use serde::de::DeserializeOwned;

use self::body::{Body, Body1};
use self::shape::Shape;
use crate::entry::Entry;
use crate::error::{Error, ErrorKind};
use crate::policy::{Limit, Policy};
use crate::time::Span;

/// The version that [`encode`] writes.
pub const VERSION: u8 = 2;

/// Appends `entry` to `bytes`.
pub fn encode(entry: &Entry, bytes: &mut Vec<u8>) {
    let shape = entry.policy().shape();
    bytes.push(VERSION);
    let length = u16::try_from(shape.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(shape);
    write(&Body::from(entry), bytes);
}

/// Reads an entry that [`encode`] wrote, in the numbers it was written with.
///
/// `policy` is the policy now in force under the entry's name. Its numbers may have changed since; then the entry keeps
/// its old ones until it is next [applied](crate::apply) to.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the bytes are not an entry.
pub fn decode(bytes: &[u8], policy: &Policy) -> Result<Entry, Error> {
    let Stored { version, shape, body } = split(bytes)?;
    if shape == policy.shape() {
        return read_body(version, body)?.into_entry(policy).ok_or_else(mismatch);
    }
    decode_any(bytes, policy.name())
}

/// Reads an entry of a policy called `name` that may be configured no more.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the bytes are not an entry.
pub fn decode_any(bytes: &[u8], name: &str) -> Result<Entry, Error> {
    let Stored { version, shape, body } = split(bytes)?;
    let policy = decode_shape(name, shape)?;
    read_body(version, body)?.into_entry(&policy).ok_or_else(mismatch)
}

fn read_body(version: u8, body: &[u8]) -> Result<Body, Error> {
    if version == 1 { read::<Body1>(body).map(Body::from) } else { read(body) }
}

/// A stored entry, cut into its parts.
struct Stored<'a> {
    version: u8,
    shape: &'a [u8],
    body: &'a [u8],
}

/// The policy called `name` with the numbers in `shape`.
pub(crate) fn decode_shape(name: &str, shape: &[u8]) -> Result<Policy, Error> {
    let shape = read::<Shape>(shape)?;
    shape.into_policy(name).map_err(|error| corrupt(&error.to_string()))
}

/// The numbers of a policy that its states depend on.
pub(crate) fn encode_shape(limits: &[Limit], block_ttl: Span) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&Shape::new(limits, block_ttl), &mut bytes);
    bytes
}

fn split(bytes: &[u8]) -> Result<Stored<'_>, Error> {
    match bytes {
        [version @ 1..=VERSION, low, high, rest @ ..] => {
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            let (shape, body) =
                rest.split_at_checked(length).ok_or_else(|| corrupt("it ends too early"))?;
            Ok(Stored { version: *version, shape, body })
        }
        [version, ..] if !(1..=VERSION).contains(version) => Err(corrupt(&format!(
            "its version is {version} and this program reads up to {VERSION}; a newer program may have written it"
        ))),
        _ => Err(corrupt("it ends too early")),
    }
}

fn write(value: &impl Serialize, bytes: &mut Vec<u8>) {
    // Writing numbers, texts and lists into a growing buffer has no way to fail.
    let written = postcard::to_extend(value, std::mem::take(bytes));
    *bytes = written.unwrap_or_default();
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(corrupt("bytes are left over")),
        Err(error) => Err(corrupt(&error.to_string())),
    }
}

fn mismatch() -> Error {
    corrupt("its states do not belong to its limits")
}

fn corrupt(why: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("stored entry does not decode: {why}"))
}
