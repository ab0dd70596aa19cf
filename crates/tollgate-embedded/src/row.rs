//! One row of the database: its key, and its value with a checksum.
//!
//! ```text
//! key    policy name, a zero byte, subject            (a policy name has no zero byte)
//! value  [CRC-32 of key and body, 4 bytes][body: an entry as tollgate-core encodes it]
//! ```
//! SQLite has no checksums in its data pages. The sum includes the key, so that a value under another key is detected too.

use std::sync::Arc;

use tollgate::core::{self, Entry, codec};
use tollgate::{Error, ErrorKind, Policy};

const CHECKSUM_BYTES: usize = 4;

/// The key of a row. Cloning shares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    bytes: Arc<[u8]>,
    policy_bytes: usize,
}

impl Key {
    pub(crate) fn new(policy: &str, subject: &str) -> Self {
        let bytes = [policy.as_bytes(), &[0], subject.as_bytes()].concat();
        Self { bytes: bytes.into(), policy_bytes: policy.len() }
    }

    /// Parses a stored key.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let policy_bytes = bytes.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(bytes).ok()?;
        Some(Self { bytes: bytes.into(), policy_bytes })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn policy(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.policy_bytes]).unwrap_or_default()
    }

    pub(crate) fn subject(&self) -> &str {
        std::str::from_utf8(&self.bytes[self.policy_bytes + 1..]).unwrap_or_default()
    }

    /// Whether this is the key of `policy` and `subject`.
    pub(crate) fn is(&self, policy: &str, subject: &str) -> bool {
        self.policy_bytes == policy.len()
            && self.bytes.len() == policy.len() + 1 + subject.len()
            && self.bytes[..self.policy_bytes] == *policy.as_bytes()
            && self.bytes[self.policy_bytes + 1..] == *subject.as_bytes()
    }
}

/// Encodes `entry` into `value`, replacing its content.
pub(crate) fn encode(key: &Key, entry: &Entry, value: &mut Vec<u8>) {
    value.clear();
    value.extend_from_slice(&[0; CHECKSUM_BYTES]);
    codec::encode(entry, value);
    let sum = checksum(key.bytes(), &value[CHECKSUM_BYTES..]);
    value[..CHECKSUM_BYTES].copy_from_slice(&sum.to_le_bytes());
}

/// Decodes the entry in `value`, in the numbers it was written with; `policy` is the current one, if it is known.
pub(crate) fn decode(key: &Key, value: &[u8], policy: Option<&Policy>) -> Result<Entry, Error> {
    let corrupt = |why: &str| {
        let (policy, subject) = (key.policy(), key.subject());
        Error::new(ErrorKind::Corrupt, format!("the entry of {policy:?} and {subject:?} {why}"))
    };
    let Some((sum, body)) = value.split_first_chunk::<CHECKSUM_BYTES>() else {
        return Err(corrupt("ends too early"));
    };
    if u32::from_le_bytes(*sum) != checksum(key.bytes(), body) {
        return Err(corrupt("does not match its checksum"));
    }
    let decoded = match policy {
        Some(policy) => codec::decode(body, policy),
        None => codec::decode_any(body, key.policy()),
    };
    decoded.map_err(|error: core::Error| corrupt("does not decode").caused_by(error))
}

/// CRC-32 over the parts, one after the other.
pub(crate) fn checksum(key: &[u8], body: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(key);
    sum.update(body);
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use tollgate::{Limit, Timestamp, TokenBucket};

    use super::*;

    #[test]
    fn every_flipped_bit_of_a_value_is_found() {
        let limit = Limit::new("burst", "requests", TokenBucket::per_second(10));
        let policy = Policy::new("api", [limit]).unwrap();
        let entry = Entry::fresh(&policy, Timestamp::from_secs(1_700_000_000));
        let key = Key::new("api", "alice");
        let mut value = Vec::new();
        encode(&key, &entry, &mut value);
        assert_eq!(decode(&key, &value, Some(&policy)).unwrap(), entry);
        assert_eq!(decode(&key, &value, None).unwrap().at(), entry.at());
        for bit in 0..value.len() * 8 {
            let mut damaged = value.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let error = decode(&key, &damaged, Some(&policy)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "bit {bit}");
        }
        let other = Key::new("api", "bob");
        assert!(decode(&other, &value, Some(&policy)).is_err(), "a value under another key");
    }

    #[test]
    fn keys_come_back_from_bytes() {
        let key = Key::new("api", "a\0b");
        let back = Key::from_bytes(key.bytes()).unwrap();
        assert_eq!((back.policy(), back.subject()), ("api", "a\0b"));
        assert!(back.is("api", "a\0b") && !back.is("ap", "i\0a\0b") && !back.is("api", "a"));
        assert!(Key::from_bytes(b"no zero").is_none());
    }
}
