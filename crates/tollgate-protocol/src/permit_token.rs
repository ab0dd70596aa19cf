//! Permit tokens: permits as text that cannot be forged.
//!
//! A permit refunds quota, so a caller that could forge one could refund what it never paid. A token therefore carries a
//! MAC with a key that the brokers of one fleet share. Its contents are not secret from its holder.
//!
//! ```text
//! base64url, unpadded:  version (1 byte) | body (postcard) | HMAC-SHA256 over version and body (32 bytes)
//! body:                 policy, numbers, subject, [(unit, amount)], at, stamp, use_by?, expires_at?, degraded
//! ```
//! The token of an ask with an id has version 3 and the id after the body, so that a release can forget it. Older brokers,
//! which read only versions 1 and 2, get tokens [without ids](Key::without_ids).
//!
//! The token of an ask with several charges has version 4:
//! ```text
//! base64url, unpadded:  version 4 (1 byte) | [(body, has_own_costs)], id? (postcard) | HMAC-SHA256 over version and contents
//! ```
//! That of an ask that names its tenant has version 5, and the tenant after the contents of version 4, also if it has one
//! charge.
//!
//! Amounts are keyed by unit, so that a token survives a change of its policy. `numbers` is a hash of the policy's numbers:
//! if they have changed, the refund cannot be computed, and the permit returns nothing. Numbers with exact logs count as
//! equal, because older versions had those; a converted entry knows which of its permits are older.
//!
//! A broker whose store is another broker wraps the token of that broker with a MAC of its own:
//! ```text
//! base64url, unpadded:  version 2 (1 byte) | the other's token, decoded | HMAC-SHA256 over version and token
//! ```
//! Each broker verifies its own MAC, and neither needs the key of the other.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use tollgate::core::Grant;
use tollgate::core::bounds::{
    CHARGES_MAX, ID_BYTES_MAX, NAME_BYTES_MAX, SUBJECT_BYTES_MAX, UNITS_MAX,
};
use tollgate::{Costs, Error, ErrorKind, Permit, Policy, Timestamp};

/// The length of a permit key.
pub const KEY_BYTES: usize = 32;

/// A permit key with its precomputed MAC state.
///
/// ```
/// let key = tollgate_protocol::permit_token::Key::from([7; 32]);
/// ```
#[derive(Clone)]
pub struct Key {
    mac: Hmac<Sha256>,
    without_ids: bool,
}

impl From<[u8; KEY_BYTES]> for Key {
    fn from(bytes: [u8; KEY_BYTES]) -> Self {
        Self { mac: keyed(&derive(&bytes, LABEL)), without_ids: false }
    }
}

impl Key {
    /// Omits ids from tokens, for a store that is shared with older brokers. Releasing such a permit does not forget its id.
    #[must_use]
    pub fn without_ids(self) -> Self {
        Self { without_ids: true, ..self }
    }
}

/// Omits the key.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// The most permit keys that are accepted at once.
pub const KEYS_MAX: usize = 4;

/// The permit key that seals, and earlier keys that are still accepted.
#[derive(Clone, Debug)]
pub struct Keys {
    sealing: Key,
    earlier: Vec<Key>,
}
impl Keys {
    /// Creates a set with one key, which seals.
    #[must_use]
    pub fn new(key: [u8; KEY_BYTES]) -> Self {
        Self { sealing: key.into(), earlier: Vec::new() }
    }

    /// Returns the same keys, sealing [without ids](Key::without_ids).
    pub fn without_ids(&self) -> Self {
        Self { sealing: self.sealing.clone().without_ids(), earlier: self.earlier.clone() }
    }

    /// Returns the keys with `key` as the one that seals.
    pub fn renewed(&self, key: [u8; KEY_BYTES]) -> Self {
        let mut earlier = vec![self.sealing.clone()];
        earlier.extend(self.earlier.iter().take(KEYS_MAX - 2).cloned());
        let sealing = Key { without_ids: self.sealing.without_ids, ..Key::from(key) };
        Self { sealing, earlier }
    }

    /// Returns the key that seals new permits.
    #[must_use]
    pub const fn sealing(&self) -> &Key {
        &self.sealing
    }

    /// Decodes a token of any of the keys, as [`decode`].
    ///
    /// # Errors
    /// As [`decode`].
    pub fn decode(
        &self,
        text: &str,
        lookup: impl Fn(&str) -> Result<Policy, Error>,
    ) -> Result<Permit, Error> {
        if self.earlier.is_empty() {
            return decode(text, &self.sealing, lookup);
        }
        let bytes = token_bytes(text)?;
        let (sealed, mac) = bytes.split_at(bytes.len() - MAC_BYTES);
        let is_sealed = |key: &&Key| mac_of(sealed, key).verify_slice(mac).is_ok();
        decode(text, self.earlier.iter().find(is_sealed).unwrap_or(&self.sealing), lookup)
    }
}

/// The longest token, in characters: the most charges, every name and number at its longest, wrapped by [`RELAYS_MAX`]
/// brokers.
pub const TOKEN_CHARS_MAX: usize = (2
    + CHARGES_MAX * BODY_BYTES_MAX
    + ID_BYTES_MAX
    + SUBJECT_BYTES_MAX
    + NUMBER_BYTES_MAX
    + MAC_BYTES
    + RELAYS_MAX * (1 + MAC_BYTES))
    .div_ceil(3)
    * 4;

/// The most brokers in a row that wrap tokens.
pub const RELAYS_MAX: usize = 4;

const VERSION: u8 = 1;
/// The version of a wrapped token of another broker.
const RELAYED: u8 = 2;
/// The version of a token with an ask id after its body.
const WITH_ID: u8 = 3;
/// The version of a token of several charges.
const JOINT: u8 = 4;
/// The version of a token with the tenant after its charges.
const WITH_TENANT: u8 = 5;
const MAC_BYTES: usize = 32;
const NUMBER_BYTES_MAX: usize = 10;
const BODY_BYTES_MAX: usize = NAME_BYTES_MAX
    + SUBJECT_BYTES_MAX
    + UNITS_MAX * (NAME_BYTES_MAX + 1 + NUMBER_BYTES_MAX)
    + 7 * NUMBER_BYTES_MAX;

/// The usual length of a token without its names.
const TOKEN_BYTES: usize = 128;

/// Separates the MAC of permits from other uses of the same key.
const LABEL: &[u8] = b"tollgate permit";

/// Separates permit keys from other uses of the same secret.
const KEY_LABEL: &[u8] = b"tollgate permit key";

/// Derives a permit key from `secret`: brokers that share an API key of another broker derive the same permit key.
///
/// ```
/// use tollgate_protocol::permit_token::key_from;
///
/// assert_eq!(key_from("tg_secret"), key_from("tg_secret"));
/// assert_ne!(key_from("tg_secret"), key_from("tg_other"));
/// ```
#[must_use]
pub fn key_from(secret: &str) -> [u8; KEY_BYTES] {
    derive(secret.as_bytes(), KEY_LABEL)
}

/// Derives the key for the purpose `label`.
fn derive(secret: &[u8], label: &[u8]) -> [u8; KEY_BYTES] {
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
    /// Zero for a permit of shadow mode, which charged nothing.
    stamp: u64,
    use_by: Option<u64>,
    expires_at: Option<u64>,
    degraded: bool,
}

/// The contents of a token of several charges.
#[derive(Serialize, Deserialize)]
struct JointBody<'a> {
    /// Each charge, and whether it has costs of its own.
    #[serde(borrow)]
    charges: Vec<(Body<'a>, bool)>,
    id: Option<&'a str>,
}

/// Encodes `permit`, sealed with `key`. The token of another broker is wrapped.
///
/// ```
/// use tollgate::core::{Amounts, Grant};
/// use tollgate::{Limit, Permit, Policy, Timestamp, TokenBucket};
/// use tollgate_protocol::permit_token;
///
/// let policy = Policy::new("api", [Limit::new("burst", "requests", TokenBucket::per_second(10))])?;
/// let grant = Grant { at: Timestamp::from_secs(1), stamp: 1, use_by: None, expires_at: None };
/// let permit = Permit::new(&policy, "alice", Amounts::default(), grant);
///
/// let text = permit_token::encode(&permit, &[7; 32].into());
/// assert_eq!(permit_token::decode(&text, &[7; 32].into(), |_| Ok(policy.clone()))?, permit);
/// assert!(permit_token::decode(&text, &[8; 32].into(), |_| Ok(policy.clone())).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn encode(permit: &Permit, key: &Key) -> String {
    BASE64URL.encode(seal(permit, key))
}

/// Appends the result of [`encode`] to `text`.
pub fn append(permit: &Permit, key: &Key, text: &mut Vec<u8>) {
    let bytes = seal(permit, key);
    let start = text.len();
    text.resize(start + bytes.len().div_ceil(3) * 4, 0);
    let length = BASE64URL.encode_slice(&bytes, &mut text[start..]);
    text.truncate(start + length.expect("four characters for every three bytes are enough"));
}

/// Returns the bytes of a token.
fn seal(permit: &Permit, key: &Key) -> Vec<u8> {
    let relayed = permit.seal().and_then(|seal| BASE64URL.decode(seal).ok());
    let mut bytes = match relayed {
        Some(inner) => [vec![RELAYED], inner].concat(),
        None => {
            let id = permit.id().filter(|_| !key.without_ids);
            // Brokers of the version before do not read a tenant either.
            let tenant = permit.named_tenant().filter(|_| !key.without_ids);
            body_bytes(permit, id, tenant.map(|(tenant, _)| tenant))
        }
    };
    let mac = mac_of(&bytes, key).finalize().into_bytes();
    bytes.extend_from_slice(&mac);
    bytes
}

fn body_bytes(permit: &Permit, id: Option<&str>, tenant: Option<&str>) -> Vec<u8> {
    let room = TOKEN_BYTES + permit.policy().name().len() + permit.subject().len();
    let mut bytes = Vec::with_capacity(room);
    let written = if permit.has_several_charges() || tenant.is_some() {
        bytes.push(if tenant.is_some() { WITH_TENANT } else { JOINT });
        let costs: Vec<Costs> = charges_of(permit).map(Permit::costs).collect();
        let charges = charges_of(permit).zip(&costs);
        let charges =
            charges.map(|(permit, costs)| (Body::new(permit, costs), permit.has_own_costs()));
        postcard::to_extend(&JointBody { charges: charges.collect(), id }, bytes).map(
            |mut bytes| {
                bytes.extend_from_slice(tenant.unwrap_or_default().as_bytes());
                bytes
            },
        )
    } else {
        bytes.push(if id.is_some() { WITH_ID } else { VERSION });
        postcard::to_extend(&Body::new(permit, &permit.costs()), bytes).map(|mut bytes| {
            bytes.extend_from_slice(id.unwrap_or_default().as_bytes());
            bytes
        })
    };
    written.expect("writing a body to a vector cannot fail")
}

/// Returns the permits of the charges, without a copy: the first is `permit` itself, of which only the first charge is
/// meant.
pub fn charges_of(permit: &Permit) -> impl Iterator<Item = &Permit> {
    permit.charges()
}

impl<'a> Body<'a> {
    fn new(permit: &'a Permit, costs: &'a Costs) -> Self {
        let grant = permit.grant();
        let numbers = permit.policy().shape_hash();
        Self {
            policy: permit.policy().name(),
            // For a permit from other numbers, any other hash will do.
            numbers: if permit.charged().same_numbers { numbers } else { !numbers },
            subject: permit.subject(),
            amounts: costs.iter().filter(|(_, amount)| *amount != 0).collect(),
            at: grant.at.as_micros(),
            stamp: if permit.shadow_denied.is_none() { grant.stamp } else { 0 },
            use_by: grant.use_by.map(Timestamp::as_micros),
            expires_at: grant.expires_at.map(Timestamp::as_micros),
            degraded: permit.degraded,
        }
    }
}

/// Decodes and verifies `text`; `lookup` finds its policy. Standings and the denial of shadow mode are not in a token.
///
/// # Errors
/// [`ErrorKind::Invalid`] unless `text` is a result of [`encode`] with the same key, and the errors of `lookup`.
pub fn decode(
    text: &str,
    key: &Key,
    lookup: impl Fn(&str) -> Result<Policy, Error>,
) -> Result<Permit, Error> {
    let bytes = token_bytes(text)?;
    let (sealed, mac) = bytes.split_at(bytes.len() - MAC_BYTES);
    // Constant time, so that a forged MAC cannot be found byte by byte.
    mac_of(sealed, key).verify_slice(mac).map_err(|_| {
        invalid("the permit was changed, or given out under another permit key; send it unchanged to a server with the same key")
    })?;
    let policy_of = |_, name: &str| lookup(name);
    match sealed.split_first() {
        // The other broker verifies its own MAC.
        Some((&RELAYED, inner)) => {
            let (permits, id) = parse(unwrap(inner)?, policy_of)?;
            Ok(joined(permits, id, Some(&BASE64URL.encode(inner))))
        }
        _ => {
            let (permits, id) = parse(sealed, policy_of)?;
            Ok(joined(permits, id, None))
        }
    }
}

/// Decodes `text` without verifying it, for a client that just received it. Its charges are under `policies`, in the order
/// of the ask; `complete` adds to each what a token lacks. The permit, and each of its [parts](Permit::parts), carries
/// `text` as its [seal](Permit::seal).
///
/// # Errors
/// [`ErrorKind::Invalid`] if this version cannot read it, and the errors of `complete`.
pub fn read<'a>(
    text: &str,
    policies: impl IntoIterator<Item = &'a Policy>,
    mut complete: impl FnMut(usize, &mut Permit) -> Result<(), Error>,
) -> Result<Permit, Error> {
    let bytes = token_bytes(text)?;
    let policies: Vec<&Policy> = policies.into_iter().collect();
    let (mut permits, id) = parse(unwrap(&bytes)?, |index: usize, _: &str| {
        let policy = policies.get(index).ok_or_else(|| wrong_count(policies.len()))?;
        Ok((*policy).clone())
    })?;
    if permits.len() != policies.len() {
        return Err(wrong_count(policies.len()));
    }
    for (index, permit) in permits.iter_mut().enumerate() {
        complete(index, permit)?;
    }
    Ok(joined(permits, id, Some(text)))
}

/// Decodes the token of an admission as [`read`] does. `complete` adds to each charge what the response says of it: one of
/// `charges`, or `first` if the ask had one charge.
pub(crate) fn read_admission<'a, T>(
    text: &str,
    policies: impl IntoIterator<Item = &'a Policy>,
    first: T,
    charges: Vec<T>,
    mut complete: impl FnMut(T, &mut Permit) -> Result<(), Error>,
) -> Result<Permit, Error> {
    let charges = if charges.is_empty() { vec![first] } else { charges };
    let mut charges = charges.into_iter();
    read(text, policies, |_, permit| match charges.next() {
        Some(charge) => complete(charge, permit),
        None => Err(crate::unexpected("an admission without the standing of a charge")),
    })
}

#[cold]
fn wrong_count(charges: usize) -> Error {
    invalid(format!("the permit is not that of an ask with {charges} charges"))
}

fn joined(mut permits: Vec<Permit>, id: Option<&str>, seal: Option<&str>) -> Permit {
    if let Some(seal) = seal {
        permits = permits.into_iter().map(|permit| permit.with_seal(seal)).collect();
    }
    match <[Permit; 1]>::try_from(permits) {
        Ok([permit]) => permit.with_id(id),
        Err(permits) => Permit::joined(permits).with_id(id),
    }
}

/// Returns the index of the charge of `permit` in its [seal](Permit::seal), if it is a [part](Permit::parts) of the permit
/// that the seal is of.
#[must_use]
pub fn part_index(permit: &Permit) -> Option<usize> {
    let bytes = token_bytes(permit.seal()?).ok()?;
    let sealed = unwrap(&bytes).ok().filter(|_| !permit.has_several_charges())?;
    let (&(JOINT | WITH_TENANT), contents) = sealed.split_first()? else { return None };
    let (JointBody { charges, .. }, _) = postcard::take_from_bytes(contents).ok()?;
    if charges.len() == 1 {
        return None;
    }
    let of_permit = (permit.policy().name(), permit.subject());
    charges.iter().position(|(body, _)| (body.policy, body.subject) == of_permit)
}

/// Unwraps the innermost version and body of a token with its MAC.
fn unwrap(mut bytes: &[u8]) -> Result<&[u8], Error> {
    loop {
        let (sealed, _) = bytes.split_at(bytes.len().saturating_sub(MAC_BYTES));
        match sealed.split_first() {
            Some((&RELAYED, inner)) => bytes = inner,
            Some((&(VERSION | WITH_ID | JOINT | WITH_TENANT), _)) => return Ok(sealed),
            _ => return Err(invalid("the permit contains no permit that this version reads")),
        }
    }
}

/// Returns the permits of the charges in `sealed`, and the id; `lookup` finds the policy of each by index and name.
fn parse(
    sealed: &[u8],
    lookup: impl Fn(usize, &str) -> Result<Policy, Error>,
) -> Result<(Vec<Permit>, Option<&str>), Error> {
    let undecodable = |_| invalid("the permit does not decode, although its seal is right");
    let (&version, contents) = sealed
        .split_first()
        .ok_or_else(|| invalid("the permit is cut short; send it unchanged"))?;
    if version == JOINT || version == WITH_TENANT {
        let (body, rest) =
            postcard::take_from_bytes::<JointBody<'_>>(contents).map_err(undecodable)?;
        let has_id = body.id.is_none_or(|id| !id.is_empty() && id.len() <= ID_BYTES_MAX);
        let (least, tenant) = match (version, std::str::from_utf8(rest)) {
            (WITH_TENANT, Ok(tenant)) if (1..=SUBJECT_BYTES_MAX).contains(&tenant.len()) => {
                (1, Some(tenant))
            }
            (JOINT, Ok("")) => (2, None),
            _ => return Err(too_long()),
        };
        if !has_id || !(least..=CHARGES_MAX).contains(&body.charges.len()) {
            return Err(too_long());
        }
        let permits = body.charges.iter().enumerate().map(|(index, (charge, has_own_costs))| {
            let policy = lookup(index, charge.policy)?;
            let permit = permit_of(charge, &policy)?;
            let permit = if *has_own_costs { permit.with_own_costs() } else { permit };
            Ok(match tenant.filter(|_| index == 0) {
                Some(tenant) => permit.with_tenant(tenant, policy.for_subject(tenant).weight()),
                None => permit,
            })
        });
        return Ok((permits.collect::<Result<_, Error>>()?, body.id));
    }
    let (body, rest) = postcard::take_from_bytes::<Body<'_>>(contents).map_err(undecodable)?;
    let id = match (version, std::str::from_utf8(rest)) {
        (WITH_ID, Ok(id)) if !id.is_empty() && id.len() <= ID_BYTES_MAX => Some(id),
        (VERSION, Ok("")) => None,
        _ => return Err(too_long()),
    };
    Ok((vec![permit_of(&body, &lookup(0, body.policy)?)?], id))
}

#[cold]
fn too_long() -> Error {
    invalid("the permit is longer than it should be, although its seal is right")
}

/// Checks that `text` could be a token, under any key.
///
/// # Errors
/// [`ErrorKind::Invalid`] if it could not.
///
/// ```
/// assert!(tollgate_protocol::permit_token::check_shape("garbage").is_err());
/// ```
pub fn check_shape(text: &str) -> Result<(), Error> {
    token_bytes(text).map(drop)
}

/// Returns the bytes of `text`: at least a known version and a MAC.
fn token_bytes(text: &str) -> Result<Vec<u8>, Error> {
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
        Some(&(VERSION | RELAYED | WITH_ID | JOINT | WITH_TENANT)) if MAC_BYTES < bytes.len() => {
            Ok(bytes)
        }
        Some(version) if MAC_BYTES < bytes.len() => Err(invalid(format!(
            "the permit is of version {version}, and versions up to {WITH_TENANT} are read here; acquire a new one"
        ))),
        _ => Err(invalid("the permit is cut short; send it unchanged")),
    }
}

fn permit_of(body: &Body<'_>, policy: &Policy) -> Result<Permit, Error> {
    let policy = policy.for_subject(body.subject);
    let amount = |unit: &str| {
        body.amounts.iter().find(|(name, _)| *name == unit).map_or(0, |(_, amount)| *amount)
    };
    // Every unit of the policy is named, so that none gets its default. A unit that the policy no longer has cannot be
    // refunded.
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

/// Seals arbitrary `bytes` with a valid MAC, which no client can do, for the fuzzer.
#[cfg(fuzzing)]
#[must_use]
pub fn forged(bytes: &[u8], key: &Key) -> String {
    let mac = mac_of(bytes, key).finalize().into_bytes();
    BASE64URL.encode([bytes, &mac].concat())
}
