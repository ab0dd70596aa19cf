//! API keys and their scopes.
//!
//! A key is 256 random bits as text; the server stores its SHA-256. A slow hash protects passwords that can be guessed, and
//! 256 bits cannot; a hash on every request must be fast. Hashes are compared in constant time, with every key.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::jwt::TokenFault;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, DnsName, ServerName};
use rustls::server::ParsedCertificate;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;
use tollgate::core::matches_pattern;
use tollgate::{Error, ErrorKind, Timestamp};

/// What a key allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Acquire, settle, release and renew.
    Acquire,
    /// Read standings, policies, counts and the dashboard.
    Inspect,
    /// Override and reset subjects, charge, close limits.
    Administer,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 3] = [Self::Acquire, Self::Inspect, Self::Administer];

    /// Returns its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Inspect => "inspect",
            Self::Administer => "administer",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl FromStr for Scope {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|scope| scope.name() == text).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::new(ErrorKind::Invalid, format!("unknown scope {text:?}; known: {known}"))
        })
    }
}

/// A set of scopes. No scope includes another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// Returns all scopes, as on a server without keys.
    #[must_use]
    pub fn all() -> Self {
        Scope::ALL.into_iter().collect()
    }

    /// Returns whether the set contains `scope`.
    #[must_use]
    pub const fn contains(self, scope: Scope) -> bool {
        self.0 & scope.bit() != 0
    }

    /// Checks that the set contains `scope`.
    ///
    /// # Errors
    /// [`Refused::Scope`] if it does not.
    pub const fn check(self, scope: Scope) -> Result<(), Refused> {
        if self.contains(scope) { Ok(()) } else { Err(Refused::Scope(scope)) }
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }
}

/// The SHA-256 of a key. As text it is `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Debug)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Hashes a key.
    #[must_use]
    pub fn from_key(key: &str) -> Self {
        Self(Sha256::digest(key).into())
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for KeyHash {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || {
            let text =
                "is not \"sha256:\" and 64 hexadecimal digits; make a key with tollgate keys new";
            Error::new(ErrorKind::Invalid, text)
        };
        let digits = text.strip_prefix("sha256:").ok_or_else(invalid)?.as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(invalid());
        }
        let mut hash = [0; 32];
        for (byte, digits) in hash.iter_mut().zip(digits.chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| invalid())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| invalid())?;
        }
        Ok(Self(hash))
    }
}

/// Formats `random` bits as a key.
#[must_use]
pub fn key_text(random: &[u8; 32]) -> String {
    format!("tg_{}", BASE64_URL_SAFE_NO_PAD.encode(random))
}

/// An accepted key.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its name in audit, metrics and logs.
    pub name: String,
    /// Its hash.
    pub hash: KeyHash,
    /// Its scopes.
    pub scopes: Scopes,
    /// When it expires.
    pub expires: Option<Timestamp>,
    /// The policies that it is bound to; empty for all.
    pub policies: Vec<String>,
    /// Patterns of the subjects that it is bound to, with `*` as a wildcard; empty for all.
    pub subjects: Vec<String>,
    /// Patterns of the tenants that its asks may name, with `*` as a wildcard; empty for none.
    pub tenants: Vec<String>,
}

impl Key {
    /// Creates a key that does not expire, for every policy and subject.
    #[must_use]
    pub fn new(name: impl Into<String>, hash: KeyHash, scopes: Scopes) -> Self {
        let name = name.into();
        let (policies, subjects, tenants) = Default::default();
        Self { name, hash, scopes, expires: None, policies, subjects, tenants }
    }

    pub(crate) fn check_expiry(&self, now: Timestamp) -> Result<(), Refused> {
        match self.expires {
            Some(until) if until <= now => Err(Refused::Expired(until)),
            _ => Ok(()),
        }
    }

    /// Returns whether it is bound to some policies or subjects.
    pub(crate) const fn is_bound(&self) -> bool {
        !self.policies.is_empty() || !self.subjects.is_empty()
    }

    pub(crate) fn covers_policy(&self, policy: &str) -> bool {
        self.policies.is_empty() || self.policies.iter().any(|own| own == policy)
    }

    pub(crate) fn covers(&self, policy: &str, subject: &str) -> bool {
        self.covers_policy(policy)
            && (self.subjects.is_empty()
                || self.subjects.iter().any(|pattern| matches_pattern(pattern, subject)))
    }

    pub(crate) fn may_name(&self, tenant: &str) -> bool {
        self.tenants.iter().any(|pattern| matches_pattern(pattern, tenant))
    }
}

/// The accepted keys.
#[derive(Clone, Debug, Default)]
pub struct Keys(Vec<Arc<Key>>);

impl FromIterator<Key> for Keys {
    fn from_iter<I: IntoIterator<Item = Key>>(keys: I) -> Self {
        Self(keys.into_iter().map(Arc::new).collect())
    }
}

impl Keys {
    /// Returns the key whose name is a DNS name of `certificate`.
    pub(crate) fn certified(&self, certificate: &CertificateDer<'_>) -> Option<&Arc<Key>> {
        let certificate = ParsedCertificate::try_from(certificate).ok()?;
        self.0.iter().find(|key| {
            DnsName::try_from(key.name.as_str()).is_ok_and(|name| {
                verify_server_name(&certificate, &ServerName::DnsName(name)).is_ok()
            })
        })
    }

    /// Returns the key with this hash.
    ///
    /// # Errors
    /// [`Refused`] if there is none, or if it has expired.
    pub fn find(&self, hash: &KeyHash, now: Timestamp) -> Result<&Arc<Key>, Refused> {
        let mut found = None;
        for key in &self.0 {
            if bool::from(key.hash.0.ct_eq(&hash.0)) {
                found = Some(key);
            }
        }
        let key = found.ok_or(Refused::Wrong)?;
        key.check_expiry(now)?;
        Ok(key)
    }
}

/// Why a caller was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No key was sent.
    Missing,
    /// The key is unknown.
    Wrong,
    /// The key expired at this time.
    Expired(Timestamp),
    /// The key lacks this scope.
    Scope(Scope),
    /// The call concerns every policy and subject, and the key is bound to some.
    Bound,
    /// The JSON Web Token is not valid.
    Token(TokenFault),
}

impl Refused {
    /// Returns the HTTP status.
    #[must_use]
    pub const fn status(self) -> u16 {
        if matches!(self, Self::Scope(_) | Self::Bound) { 403 } else { 401 }
    }

    /// Returns the kind in problem documents.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        if self.status() == 403 { "forbidden" } else { "unauthenticated" }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("this needs a key; send Authorization: Bearer KEY"),
            Self::Wrong => f.write_str("the key is not one of this server's"),
            Self::Token(fault) => fault.fmt(f),
            Self::Expired(at) => write!(f, "the key expired at {at}; ask for a new one"),
            Self::Scope(scope) => {
                write!(f, "the key does not allow this; it needs the scope {}", scope.name())
            }
            Self::Bound => f.write_str(
                "this shows every policy and subject, and the key is bound to some; use a key without policies and subjects",
            ),
        }
    }
}

impl std::error::Error for Refused {}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str, scope: Scope, expires: Option<Timestamp>) -> Key {
        let scopes = [scope].into_iter().collect();
        Key { expires, ..Key::new(text, KeyHash::from_key(text), scopes) }
    }

    #[test]
    fn a_key_is_found_by_its_hash_until_it_expires() {
        let (noon, later) = (Timestamp::from_secs(1_000), Timestamp::from_secs(1_001));
        let keys: Keys = [key("a", Scope::Acquire, None), key("b", Scope::Inspect, Some(later))]
            .into_iter()
            .collect();
        let scopes = |text, now| keys.find(&KeyHash::from_key(text), now).map(|key| key.scopes);
        assert_eq!(scopes("a", later).unwrap().check(Scope::Acquire), Ok(()));
        let inspect = scopes("b", noon).unwrap();
        assert_eq!(inspect.check(Scope::Inspect), Ok(()));
        assert_eq!(inspect.check(Scope::Administer), Err(Refused::Scope(Scope::Administer)));
        assert_eq!(scopes("b", later), Err(Refused::Expired(later)));
        assert_eq!(scopes("c", noon), Err(Refused::Wrong));
    }

    #[test]
    fn a_hash_prints_and_parses_back() {
        let hash = KeyHash::from_key("abc");
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash.to_string(), text);
        assert_eq!(text.parse::<KeyHash>().unwrap().0, hash.0);
        for bad in [&text[7..], &text[..70], &text.replace("ba", "+a"), "md5:00"] {
            assert!(bad.parse::<KeyHash>().is_err(), "{bad}");
        }
    }

    #[test]
    fn two_keys_are_two_texts_of_43_digits() {
        let (one, two) = (key_text(&[0; 32]), key_text(&[255; 32]));
        assert_ne!(one, two);
        assert_eq!(one.len(), 3 + 43);
    }
}
