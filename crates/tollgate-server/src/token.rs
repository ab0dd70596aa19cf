//! Permits that cross a wire, as text that cannot be forged.
//!
//! A permit refunds quota, so a caller that could write one could refund what it never paid. A token therefore carries
//! a MAC with a key that the brokers of one fleet share: any of them can read what another gave out, and nobody else
//! can make one. What is inside is not secret from its holder, who asked for it.
//!
//! ```text
//! base64url, unpadded:  version (1 byte) | body (postcard) | HMAC-SHA256 over version and body (32 bytes)
//! body:                 policy, numbers, subject, [(unit, amount)], at, stamp, use_by?, expires_at?, degraded
//! ```
//! The token of an ask with an id is of version 3 and has the id behind the body, so that a release can forget it. Brokers
//! that read no other version than 1 and 2 get tokens [without ids](Key::without_ids).
//!
//! Amounts go by the name of their unit, not by place, so that a token outlives a change of its policy. `numbers` is a
//! hash of the policy's numbers: if they are others now, nobody can tell what time has given back already, and the
//! permit gives nothing back. Numbers with exact logs count as the same, since programs from before the grid had those;
//! an entry that was carried over from them knows which of its permits are older.
//!
//! A broker whose store is another broker hands on what that one gave it, with a MAC of its own around it:
//! ```text
//! base64url, unpadded:  version 2 (1 byte) | the other's token, decoded | HMAC-SHA256 over version and token
//! ```
//! So each of them checks its own MAC, and neither needs the key of the other.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use tollgate::core::bounds::{ID_BYTES_MAX, NAME_BYTES_MAX, SUBJECT_BYTES_MAX, UNITS_MAX};
use tollgate::{Costs, Error, ErrorKind, Grant, Permit, Policy, Timestamp};

/// The length of a permit key.
pub const KEY_BYTES: usize = 32;

/// A permit key, made ready once for all the permits that are sealed with it.
///
/// ```
/// let key = tollgate_server::token::Key::from([7; 32]);
/// ```
#[derive(Clone)]
pub struct Key {
    mac: Hmac<Sha256>,
    without_ids: bool,
}

impl From<[u8; KEY_BYTES]> for Key {
    fn from(bytes: [u8; KEY_BYTES]) -> Self {
        Self { mac: keyed(&labelled(&bytes, LABEL)), without_ids: false }
    }
}

impl Key {
    /// The same key for a store that is shared with brokers that read no ids in permits: it seals permits without them.
    /// Releasing such a permit leaves its id remembered.
    #[must_use]
    pub fn without_ids(self) -> Self {
        Self { without_ids: true, ..self }
    }
}

/// Without the key, which must not end up in a log.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// The most permit keys that are accepted at the same time.
pub const KEYS_MAX: usize = 4;

/// The permit key that seals, and those before it that are still accepted.
#[cfg(feature = "serve")]
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    sealing: Key,
    earlier: Vec<Key>,
}

#[cfg(feature = "serve")]
impl Keys {
    pub(crate) fn new(key: [u8; KEY_BYTES]) -> Self {
        Self { sealing: key.into(), earlier: Vec::new() }
    }

    /// The same keys, sealing permits [without ids](Key::without_ids).
    pub(crate) fn without_ids(&self) -> Self {
        Self { sealing: self.sealing.clone().without_ids(), earlier: self.earlier.clone() }
    }

    /// The keys after `key` replaced the one that seals.
    pub(crate) fn renewed(&self, key: [u8; KEY_BYTES]) -> Self {
        let mut earlier = vec![self.sealing.clone()];
        earlier.extend(self.earlier.iter().take(KEYS_MAX - 2).cloned());
        let sealing = Key { without_ids: self.sealing.without_ids, ..Key::from(key) };
        Self { sealing, earlier }
    }

    pub(crate) const fn sealing(&self) -> &Key {
        &self.sealing
    }

    /// As [`decode`], with any of the keys.
    pub(crate) fn decode(
        &self,
        text: &str,
        lookup: impl Fn(&str) -> Result<Policy, Error>,
    ) -> Result<Permit, Error> {
        if self.earlier.is_empty() {
            return decode(text, &self.sealing, lookup);
        }
        let bytes = bytes_of(text)?;
        let (sealed, mac) = bytes.split_at(bytes.len() - MAC_BYTES);
        let is_sealed = |key: &&Key| mac_of(sealed, key).verify_slice(mac).is_ok();
        decode(text, self.earlier.iter().find(is_sealed).unwrap_or(&self.sealing), lookup)
    }
}

/// The longest token, in characters: every name and number at its longest, handed on by [`RELAYS_MAX`] brokers.
pub const TOKEN_CHARS_MAX: usize =
    (1 + BODY_BYTES_MAX + MAC_BYTES + RELAYS_MAX * (1 + MAC_BYTES)).div_ceil(3) * 4;

/// The most brokers in a row that hand on the permits of another.
pub const RELAYS_MAX: usize = 4;

const VERSION: u8 = 1;
/// The version of a token with another broker's token in it.
const RELAYED: u8 = 2;
/// The version of a token with an ask id behind its body.
const WITH_ID: u8 = 3;
const MAC_BYTES: usize = 32;
const NUMBER_BYTES_MAX: usize = 10;
const BODY_BYTES_MAX: usize = NAME_BYTES_MAX
    + SUBJECT_BYTES_MAX
    + UNITS_MAX * (NAME_BYTES_MAX + 1 + NUMBER_BYTES_MAX)
    + ID_BYTES_MAX
    + 7 * NUMBER_BYTES_MAX;

/// What a token takes mostly, but for the names in it.
const TOKEN_BYTES: usize = 128;

/// Keeps the MAC of a permit from being that of anything else made with the same key.
const LABEL: &[u8] = b"tollgate permit";

/// The same for a permit key that is made from a secret.
const KEY_LABEL: &[u8] = b"tollgate permit key";

/// A permit key that everybody who has `secret` can make: brokers that ask another one with the same API key hand out
/// permits that each of them takes back.
///
/// ```
/// use tollgate_server::token::key_from;
///
/// assert_eq!(key_from("tg_secret"), key_from("tg_secret"));
/// assert_ne!(key_from("tg_secret"), key_from("tg_other"));
/// ```
#[must_use]
pub fn key_from(secret: &str) -> [u8; KEY_BYTES] {
    labelled(secret.as_bytes(), KEY_LABEL)
}

/// A key that is good for nothing but what `label` says.
fn labelled(secret: &[u8], label: &[u8]) -> [u8; KEY_BYTES] {
    keyed(secret).chain_update(label).finalize().into_bytes().into()
}

fn keyed(secret: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(secret).expect("HMAC takes a key of any length")
}

#[derive(Serialize, Deserialize)]
struct Body<'a> {
    policy: &'a str,
    numbers: u64,
    subject: &'a str,
    #[serde(borrow)]
    amounts: Vec<(&'a str, u64)>,
    at: u64,
    /// Zero for the permit of the shadow mode, which charged nothing.
    stamp: u64,
    use_by: Option<u64>,
    expires_at: Option<u64>,
    degraded: bool,
}

/// `permit` as text, sealed with `key`. One that another broker sealed already is handed on as that broker sealed it,
/// inside a seal of its own.
///
/// ```
/// use tollgate::{Amounts, Grant, Limit, Permit, Policy, Timestamp, TokenBucket};
/// use tollgate_server::token;
///
/// let policy = Policy::new("api", [Limit::new("burst", "requests", TokenBucket::per_second(10))])?;
/// let grant = Grant { at: Timestamp::from_secs(1), stamp: 1, use_by: None, expires_at: None };
/// let permit = Permit::new(&policy, "alice", Amounts::default(), grant);
///
/// let text = token::encode(&permit, &[7; 32].into());
/// assert_eq!(token::decode(&text, &[7; 32].into(), |_| Ok(policy.clone()))?, permit);
/// assert!(token::decode(&text, &[8; 32].into(), |_| Ok(policy.clone())).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn encode(permit: &Permit, key: &Key) -> String {
    BASE64URL.encode(sealed(permit, key))
}

/// Puts what [`encode`] makes behind `text`.
#[cfg(feature = "serve")]
pub(crate) fn append(permit: &Permit, key: &Key, text: &mut Vec<u8>) {
    let bytes = sealed(permit, key);
    let start = text.len();
    text.resize(start + bytes.len().div_ceil(3) * 4, 0);
    let length = BASE64URL.encode_slice(&bytes, &mut text[start..]);
    text.truncate(start + length.expect("four characters for every three bytes are enough"));
}

/// What a token is before it is text.
fn sealed(permit: &Permit, key: &Key) -> Vec<u8> {
    let relayed = permit.seal().and_then(|seal| BASE64URL.decode(seal).ok());
    let mut bytes = match relayed {
        Some(inner) => [vec![RELAYED], inner].concat(),
        None => written(permit, permit.id().filter(|_| !key.without_ids)),
    };
    let mac = mac_of(&bytes, key).finalize().into_bytes();
    bytes.extend_from_slice(&mac);
    bytes
}

fn written(permit: &Permit, id: Option<&str>) -> Vec<u8> {
    let (costs, grant) = (permit.costs(), permit.grant());
    let numbers = permit.policy().shape_hash();
    let body = Body {
        policy: permit.policy().name(),
        // Of a permit from other numbers it is only known that they are not these.
        numbers: if permit.charged().same_numbers { numbers } else { !numbers },
        subject: permit.subject(),
        amounts: costs.iter().filter(|(_, amount)| *amount != 0).collect(),
        at: grant.at.as_micros(),
        stamp: if permit.shadow_denied.is_none() { grant.stamp } else { 0 },
        use_by: grant.use_by.map(Timestamp::as_micros),
        expires_at: grant.expires_at.map(Timestamp::as_micros),
        degraded: permit.degraded,
    };
    let mut bytes = Vec::with_capacity(TOKEN_BYTES + body.policy.len() + body.subject.len());
    bytes.push(if id.is_some() { WITH_ID } else { VERSION });
    let mut bytes = postcard::to_extend(&body, bytes)
        .expect("a body has no part that postcard cannot write, and a vector has room");
    bytes.extend_from_slice(id.unwrap_or_default().as_bytes());
    bytes
}

/// The permit that `text` stands for; `lookup` finds its policy. What the token does not carry (standings, the denial
/// of the shadow mode) is absent.
///
/// # Errors
/// [`ErrorKind::Invalid`] unless `text` is what [`encode`] made with the same key in this version, and whatever
/// `lookup` says.
pub fn decode(
    text: &str,
    key: &Key,
    lookup: impl FnOnce(&str) -> Result<Policy, Error>,
) -> Result<Permit, Error> {
    let bytes = bytes_of(text)?;
    let (sealed, mac) = bytes.split_at(bytes.len() - MAC_BYTES);
    // Constant time: how much of a forged MAC is right must not show.
    mac_of(sealed, key).verify_slice(mac).map_err(|_| {
        invalid("the permit was changed, or given out under another permit key; send it unchanged to a server with the same key")
    })?;
    match sealed.split_first() {
        // What is inside is the other broker's to check; it was given it by that one, or the MAC would be wrong.
        Some((&RELAYED, inner)) => {
            Ok(parse(body_of(inner)?, lookup)?.with_seal(BASE64URL.encode(inner)))
        }
        _ => parse(sealed, lookup),
    }
}

/// The permit that `text` stands for under `policy`, without its seal being checked: for whoever was just given it.
/// The permit carries `text` as its [seal](Permit::seal).
///
/// # Errors
/// [`ErrorKind::Invalid`] if `text` is none that this version reads.
pub fn read(text: &str, policy: &Policy) -> Result<Permit, Error> {
    let bytes = bytes_of(text)?;
    let permit = parse(body_of(&bytes)?, |_| Ok(policy.clone()))?;
    Ok(permit.with_seal(text))
}

/// The innermost version and body in `bytes`, a token with its MAC.
fn body_of(mut bytes: &[u8]) -> Result<&[u8], Error> {
    loop {
        let (sealed, _) = bytes.split_at(bytes.len().saturating_sub(MAC_BYTES));
        match sealed.split_first() {
            Some((&RELAYED, inner)) => bytes = inner,
            Some((&(VERSION | WITH_ID), _)) => return Ok(sealed),
            _ => return Err(invalid("the permit has no permit in it that this version reads")),
        }
    }
}

fn parse(
    sealed: &[u8],
    lookup: impl FnOnce(&str) -> Result<Policy, Error>,
) -> Result<Permit, Error> {
    let (body, rest) = postcard::take_from_bytes::<Body<'_>>(&sealed[1..])
        .map_err(|_| invalid("the permit does not decode, although its seal is right"))?;
    let id = match (sealed[0], std::str::from_utf8(rest)) {
        (WITH_ID, Ok(id)) if !id.is_empty() && id.len() <= ID_BYTES_MAX => Some(id),
        (VERSION, Ok("")) => None,
        _ => {
            let text = "the permit is longer than it should be, although its seal is right";
            return Err(invalid(text));
        }
    };
    Ok(permit_of(&body, &lookup(body.policy)?)?.with_id(id))
}

/// Refuses what is no permit under any key. Whether the rest was given out, [`decode`] knows.
///
/// # Errors
/// [`ErrorKind::Invalid`] with what is wrong.
///
/// ```
/// assert!(tollgate_server::token::check_shape("garbage").is_err());
/// ```
pub fn check_shape(text: &str) -> Result<(), Error> {
    bytes_of(text).map(drop)
}

/// What `text` encodes: at least a version, which is ours, and a MAC.
fn bytes_of(text: &str) -> Result<Vec<u8>, Error> {
    if TOKEN_CHARS_MAX < text.len() {
        return Err(invalid(format!(
            "a permit has at most {TOKEN_CHARS_MAX} characters, not {}",
            text.len()
        )));
    }
    let bytes = BASE64URL.decode(text).map_err(|_| {
        invalid("the permit is not one that was given out; send it unchanged, as one piece of text")
    })?;
    match bytes.first() {
        Some(&(VERSION | RELAYED | WITH_ID)) if MAC_BYTES < bytes.len() => Ok(bytes),
        Some(version) if MAC_BYTES < bytes.len() => Err(invalid(format!(
            "the permit is of version {version}, and versions up to {WITH_ID} are read here; acquire a new one"
        ))),
        _ => Err(invalid("the permit is cut short; send it unchanged")),
    }
}

fn permit_of(body: &Body<'_>, policy: &Policy) -> Result<Permit, Error> {
    let policy = policy.for_subject(body.subject);
    let amount = |unit: &str| {
        body.amounts.iter().find(|(name, _)| *name == unit).map_or(0, |(_, amount)| *amount)
    };
    // Every unit of the policy is named, so that none falls back to its default; a unit that the policy no longer
    // counts has nowhere to be given back to.
    let costs: Costs = policy.units().map(|unit| (unit, amount(unit))).collect();
    let grant = Grant {
        at: Timestamp::from_micros(body.at),
        stamp: body.stamp,
        use_by: body.use_by.map(Timestamp::from_micros),
        expires_at: body.expires_at.map(Timestamp::from_micros),
    };
    let mut permit = Permit::new(policy, body.subject, policy.amounts(&costs)?, grant);
    permit.degraded = body.degraded;
    let known = [policy.shape_hash(), policy.with_exact_logs().shape_hash()];
    Ok(if known.contains(&body.numbers) { permit } else { permit.under_other_numbers() })
}

fn mac_of(sealed: &[u8], key: &Key) -> Hmac<Sha256> {
    let mut mac = key.mac.clone();
    mac.update(sealed);
    mac
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// `bytes`, a version and what it stands for, under a seal that is right: what no client can make, for the fuzzer.
#[cfg(fuzzing)]
pub(crate) fn forged(bytes: &[u8], key: &Key) -> String {
    let mac = mac_of(bytes, key).finalize().into_bytes();
    BASE64URL.encode([bytes, &mac].concat())
}
