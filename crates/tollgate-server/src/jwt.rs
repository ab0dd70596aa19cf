//! JSON Web Tokens: the subject and the plan of a caller from verified claims.
//!
//! The key set is the issuer's; ring verifies signatures. The algorithm of a token must be that of its key, so a public key is
//! never the secret of an HMAC, and `none` has no key. A token with a key that is not known has the set read again, at most
//! once in [`REFETCH_EVERY`]: the broker that holds the set runs [`JwtVerifier::refetch_wanted`] for that.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tollgate::core::check_subject;
use tollgate::internal::timeout;
use tollgate::{Clock, Error, ErrorKind, Span, Timestamp};

/// The longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 8_192;

/// The most keys of a set.
pub const KEYS_MAX: usize = 100;

/// The largest document of a key set, in bytes.
pub const KEY_SET_BYTES_MAX: usize = 256 * 1_024;

/// The least interval between two reads of the key set because of unknown keys.
pub const REFETCH_EVERY: Span = Span::from_secs(30);

/// How long a token with an unknown key waits for the key set.
const REFETCH_WAIT: Span = Span::from_secs(5);

/// What tokens must say, and which claims are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtOptions {
    /// The value of `iss`.
    pub issuer: String,
    /// One of the values of `aud`.
    pub audience: String,
    /// The claim that is the subject.
    pub subject_claim: String,
    /// The claim that names the plan, if one does.
    pub plan_claim: Option<String>,
    /// How far the clock of the issuer may differ.
    pub leeway: Span,
    /// Whether the key set can be read again when a token has an unknown key.
    pub can_refetch: bool,
}

/// The verified claims of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The subject.
    pub subject: String,
    /// The plan.
    pub plan: Option<String>,
}

/// Why a token was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFault {
    /// It is longer than [`TOKEN_BYTES_MAX`].
    TooLong,
    /// It is not three parts of base64url with JSON objects.
    Malformed,
    /// Its algorithm is not supported.
    Algorithm,
    /// The key set has no key for it.
    UnknownKey,
    /// The signature is wrong.
    Signature,
    /// It has expired, or does not say when it does.
    Expired,
    /// It is not valid yet.
    NotYetValid,
    /// Another issuer made it.
    Issuer,
    /// It is for another audience.
    Audience,
    /// It has no valid subject.
    Subject,
    /// Its plan is not text.
    Plan,
}

impl fmt::Display for TokenFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::TooLong => {
                return write!(f, "the token is longer than {TOKEN_BYTES_MAX} bytes");
            }
            Self::Malformed => "the token is not a signed JSON Web Token",
            Self::Algorithm => "the token must be signed with RS256, ES256 or EdDSA",
            Self::UnknownKey => "the token is signed with a key that is not in the key set",
            Self::Signature => "the signature of the token is wrong",
            Self::Expired => "the token has expired, or has no exp; ask for a new one",
            Self::NotYetValid => "the token is not valid yet",
            Self::Issuer => "the token is of another issuer",
            Self::Audience => "the token is for another audience",
            Self::Subject => "the token has no subject of 1 to 256 bytes",
            Self::Plan => "the plan of the token is not text",
        };
        f.write_str(text)
    }
}

/// The public keys of an issuer.
#[derive(Clone, Debug, Default)]
pub struct KeySet(Vec<VerificationKey>);

#[derive(Clone, Debug)]
struct VerificationKey {
    id: Option<String>,
    key: PublicKey,
}

#[derive(Clone, Debug)]
enum PublicKey {
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// A key as RFC 7517 and 8037 write it; members that are not needed are ignored.
#[derive(Deserialize)]
struct JsonKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Parses a JSON Web Key Set. Keys for other purposes and algorithms are ignored.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) if it is too large, not a key set, has a broken key, or no key that can verify tokens.
    pub fn parse(text: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Document {
            keys: Vec<Value>,
        }
        let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
        if KEY_SET_BYTES_MAX < text.len() {
            return Err(invalid(format!("the key set has more than {KEY_SET_BYTES_MAX} bytes")));
        }
        let document: Document = serde_json::from_str(text).map_err(|error| {
            invalid(format!("is not a JSON Web Key Set, as in {{\"keys\": [...]}}: {error}"))
        })?;
        if KEYS_MAX < document.keys.len() {
            let keys = document.keys.len();
            return Err(invalid(format!("the key set has {keys} keys; at most {KEYS_MAX}")));
        }
        let mut keys = Vec::new();
        for (index, key) in document.keys.into_iter().enumerate() {
            let broken = |what: &str| invalid(format!("key {index} of the key set: {what}"));
            let key: JsonKey =
                serde_json::from_value(key).map_err(|error| broken(&error.to_string()))?;
            if key.purpose.as_deref().is_some_and(|purpose| purpose != "sig") {
                continue;
            }
            keys.extend(key.read().map_err(|what| broken(&what))?);
        }
        if keys.is_empty() {
            return Err(invalid(
                "the key set has no key for RS256, ES256 or EdDSA; name that of your issuer"
                    .to_owned(),
            ));
        }
        Ok(Self(keys))
    }

    /// Returns the key that `header` names: the one of its id, or the only one of its algorithm.
    fn find(&self, algorithm: &str, id: Option<&str>) -> Option<&PublicKey> {
        let mut found = self.0.iter().filter(|key| {
            key.key.algorithm() == algorithm && (id.is_none() || key.id.as_deref() == id)
        });
        match (found.next(), found.next()) {
            (Some(key), None) => Some(&key.key),
            _ => None,
        }
    }
}

impl JsonKey {
    /// Returns the key; nothing if it is of another kind or algorithm.
    fn read(self) -> Result<Option<VerificationKey>, String> {
        let part = |name: &str, text: Option<&String>| {
            let text = text.ok_or_else(|| format!("there is no {name}"))?;
            BASE64_URL_SAFE_NO_PAD.decode(text).map_err(|_| format!("{name} is not base64url"))
        };
        let key = match (&*self.kty, self.crv.as_deref()) {
            ("RSA", _) => PublicKey::Rsa {
                modulus: part("n", self.n.as_ref())?,
                exponent: part("e", self.e.as_ref())?,
            },
            ("EC", Some("P-256")) => {
                // An uncompressed point.
                let (x, y) = (part("x", self.x.as_ref())?, part("y", self.y.as_ref())?);
                if x.len() != 32 || y.len() != 32 {
                    return Err("x and y of P-256 have 32 bytes each".to_owned());
                }
                PublicKey::P256([&[4], &*x, &*y].concat())
            }
            ("OKP", Some("Ed25519")) => PublicKey::Ed25519(part("x", self.x.as_ref())?),
            _ => return Ok(None),
        };
        if self.alg.is_some_and(|algorithm| algorithm != key.algorithm()) {
            return Ok(None);
        }
        Ok(Some(VerificationKey { id: self.kid, key }))
    }
}

impl PublicKey {
    const fn algorithm(&self) -> &'static str {
        match self {
            Self::Rsa { .. } => "RS256",
            Self::P256(_) => "ES256",
            Self::Ed25519(_) => "EdDSA",
        }
    }

    fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Rsa { modulus, exponent } => {
                let key = RsaPublicKeyComponents { n: modulus, e: exponent };
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature).is_ok()
            }
            Self::P256(point) => UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point)
                .verify(message, signature)
                .is_ok(),
            Self::Ed25519(key) => {
                UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok()
            }
        }
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that a reader must know; none is known.
    crit: Option<Value>,
}

/// The parts of a token.
struct Token<'a> {
    header: Header,
    payload: &'a str,
    signed: &'a str,
    signature: Vec<u8>,
}

impl<'a> Token<'a> {
    fn parse(text: &'a str) -> Result<Self, TokenFault> {
        if TOKEN_BYTES_MAX < text.len() {
            return Err(TokenFault::TooLong);
        }
        let (signed, signature) = text.rsplit_once('.').ok_or(TokenFault::Malformed)?;
        let (header, payload) = signed.split_once('.').ok_or(TokenFault::Malformed)?;
        let header: Header = decode(header)?;
        if header.crit.is_some() {
            return Err(TokenFault::Malformed);
        }
        if !["RS256", "ES256", "EdDSA"].contains(&&*header.alg) {
            return Err(TokenFault::Algorithm);
        }
        let signature =
            BASE64_URL_SAFE_NO_PAD.decode(signature).map_err(|_| TokenFault::Malformed)?;
        Ok(Self { header, payload, signed, signature })
    }
}

fn decode<T: for<'de> Deserialize<'de>>(part: &str) -> Result<T, TokenFault> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenFault::Malformed)?;
    serde_json::from_slice(&bytes).map_err(|_| TokenFault::Malformed)
}

/// Returns whether `key` is a token rather than an API key: it has three parts.
pub(crate) fn is_token(key: &str) -> bool {
    key.bytes().filter(|byte| *byte == b'.').count() == 2
}

/// The state of reads because of unknown keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refetches {
    wanted: u64,
    done: u64,
}

/// Verifies tokens.
#[derive(Debug)]
pub struct JwtVerifier {
    options: JwtOptions,
    keys: RwLock<Arc<KeySet>>,
    refetches: watch::Sender<Refetches>,
    /// When the key set was last read because of an unknown key, in microseconds.
    refetched_at: AtomicU64,
}

impl JwtVerifier {
    /// Creates a verifier with `keys`.
    #[must_use]
    pub fn new(options: JwtOptions, keys: KeySet) -> Self {
        Self {
            options,
            keys: RwLock::new(Arc::new(keys)),
            refetches: watch::Sender::default(),
            refetched_at: AtomicU64::new(0),
        }
    }

    /// Replaces the key set.
    pub fn replace_keys(&self, keys: KeySet) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    /// Waits until a token wants the key set to be read again. Call [`refetched`](Self::refetched) after the attempt.
    pub async fn refetch_wanted(&self) {
        let mut refetches = self.refetches.subscribe();
        // The sender is part of this verifier.
        drop(refetches.wait_for(|state| state.done < state.wanted).await);
    }

    /// Ends the wait of tokens for the key set, whether it was read or not.
    pub fn refetched(&self) {
        self.refetches.send_modify(|state| state.done = state.wanted);
    }

    fn keys(&self) -> Arc<KeySet> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has the key set read again if it lacks the key of `token`, and waits for that; returns at once otherwise.
    pub(crate) async fn await_key(&self, token: &str, clock: &dyn Clock) {
        let Ok(Token { header, .. }) = Token::parse(token) else { return };
        if !self.options.can_refetch
            || self.keys().find(&header.alg, header.kid.as_deref()).is_some()
        {
            return;
        }
        let (now, last) = (clock.now().as_micros(), self.refetched_at.load(Ordering::Relaxed));
        let is_due = last == 0 || REFETCH_EVERY.as_micros() <= now.abs_diff(last);
        let order = Ordering::Relaxed;
        if is_due && self.refetched_at.compare_exchange(last, now, order, order).is_ok() {
            self.refetches.send_modify(|state| state.wanted += 1);
        }
        let mut refetches = self.refetches.subscribe();
        let done = async { drop(refetches.wait_for(|state| state.done == state.wanted).await) };
        timeout(clock, REFETCH_WAIT, done).await;
    }

    /// Returns the claims of `token`, if it is valid at `now`.
    ///
    /// # Errors
    /// The first fault, in the order of [`TokenFault`].
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Claims, TokenFault> {
        let token = Token::parse(token)?;
        let keys = self.keys();
        let Header { alg, kid, .. } = &token.header;
        let key = keys.find(alg, kid.as_deref()).ok_or(TokenFault::UnknownKey)?;
        if !key.verifies(token.signed.as_bytes(), &token.signature) {
            return Err(TokenFault::Signature);
        }
        self.check(&decode(token.payload)?, now)
    }

    fn check(&self, claims: &Value, now: Timestamp) -> Result<Claims, TokenFault> {
        let options = &self.options;
        let expires = claims.get("exp").and_then(date).ok_or(TokenFault::Expired)?;
        if expires + options.leeway <= now {
            return Err(TokenFault::Expired);
        }
        if let Some(from) = claims.get("nbf") {
            let from = date(from).ok_or(TokenFault::NotYetValid)?;
            if now + options.leeway < from {
                return Err(TokenFault::NotYetValid);
            }
        }
        if claims.get("iss").and_then(Value::as_str) != Some(&options.issuer) {
            return Err(TokenFault::Issuer);
        }
        let is_own = |audience: &Value| audience.as_str() == Some(&options.audience);
        let is_for_us = match claims.get("aud") {
            Some(Value::Array(audiences)) => audiences.iter().any(is_own),
            Some(audience) => is_own(audience),
            None => false,
        };
        if !is_for_us {
            return Err(TokenFault::Audience);
        }
        let subject = match claims.get(&options.subject_claim) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => return Err(TokenFault::Subject),
        };
        check_subject(&subject).map_err(|_| TokenFault::Subject)?;
        let plan = match options.plan_claim.as_ref().and_then(|claim| claims.get(claim)) {
            None | Some(Value::Null) => None,
            Some(Value::String(plan)) => Some(plan.clone()),
            Some(_) => return Err(TokenFault::Plan),
        };
        Ok(Claims { subject, plan })
    }
}

/// Returns the time of a NumericDate, in whole seconds.
fn date(value: &Value) -> Option<Timestamp> {
    let secs = match value.as_u64() {
        Some(secs) => secs,
        // A fraction of a second is within every leeway.
        None => value.as_number()?.to_string().split('.').next()?.parse().ok()?,
    };
    Some(Timestamp::from_secs(secs.min(u64::from(u32::MAX))))
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{Ed25519KeyPair, KeyPair as _};
    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_794_721_500);

    fn encode(value: &Value) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(value.to_string())
    }

    struct Issuer(Ed25519KeyPair);

    impl Issuer {
        fn new() -> Self {
            let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
            Self(Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap())
        }

        fn keys(&self, id: &str) -> KeySet {
            let x = BASE64_URL_SAFE_NO_PAD.encode(self.0.public_key().as_ref());
            let keys = json!({ "keys": [
                { "kty": "oct", "kid": "hmac", "k": "c2VjcmV0" },
                { "kty": "OKP", "crv": "Ed25519", "kid": id, "x": x, "alg": "EdDSA", "use": "sig" },
            ] });
            KeySet::parse(&keys.to_string()).unwrap()
        }

        fn sign(&self, header: &Value, claims: &Value) -> String {
            let signed = format!("{}.{}", encode(header), encode(claims));
            let signature = BASE64_URL_SAFE_NO_PAD.encode(self.0.sign(signed.as_bytes()));
            format!("{signed}.{signature}")
        }
    }

    fn options() -> JwtOptions {
        JwtOptions {
            issuer: "https://id.example".to_owned(),
            audience: "api".to_owned(),
            subject_claim: "sub".to_owned(),
            plan_claim: Some("plan".to_owned()),
            leeway: Span::from_secs(30),
            can_refetch: true,
        }
    }

    fn claims(changes: &Value) -> Value {
        let mut claims = json!({
            "iss": "https://id.example", "aud": ["other", "api"], "sub": "acme", "plan": "pro",
            "exp": 1_794_721_600, "nbf": 1_794_721_400,
        });
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims
    }

    #[test]
    fn claims_are_checked_one_by_one() {
        let issuer = Issuer::new();
        let verifier = JwtVerifier::new(options(), issuer.keys("one"));
        let header = json!({ "alg": "EdDSA", "kid": "one" });
        let verify =
            |changes: Value| verifier.verify(&issuer.sign(&header, &claims(&changes)), NOW);
        let subject = |subject: &str, plan: Option<&str>| {
            Ok(Claims { subject: subject.to_owned(), plan: plan.map(str::to_owned) })
        };
        let rows = [
            (json!({}), subject("acme", Some("pro"))),
            (json!({ "sub": 7, "plan": null }), subject("7", None)),
            (json!({ "aud": "api", "exp": 1_794_721_471.5 }), subject("acme", Some("pro"))),
            (json!({ "exp": 1_794_721_470 }), Err(TokenFault::Expired)),
            (json!({ "exp": "1794721600" }), Err(TokenFault::Expired)),
            (json!({ "exp": null }), Err(TokenFault::Expired)),
            (json!({ "nbf": 1_794_721_530 }), subject("acme", Some("pro"))),
            (json!({ "nbf": 1_794_721_531 }), Err(TokenFault::NotYetValid)),
            (json!({ "nbf": "0" }), Err(TokenFault::NotYetValid)),
            (json!({ "iss": "https://id.example/" }), Err(TokenFault::Issuer)),
            (json!({ "aud": "apis" }), Err(TokenFault::Audience)),
            (json!({ "aud": null }), Err(TokenFault::Audience)),
            (json!({ "sub": "" }), Err(TokenFault::Subject)),
            (json!({ "sub": ["acme"] }), Err(TokenFault::Subject)),
            (json!({ "sub": "x".repeat(257) }), Err(TokenFault::Subject)),
            (json!({ "plan": 3 }), Err(TokenFault::Plan)),
        ];
        for (changes, expected) in rows {
            assert_eq!(verify(changes.clone()), expected, "{changes}");
        }
    }

    #[test]
    fn only_the_algorithm_of_the_key_verifies() {
        let issuer = Issuer::new();
        let verifier = JwtVerifier::new(options(), issuer.keys("one"));
        let good = issuer.sign(&json!({ "alg": "EdDSA" }), &claims(&json!({})));
        assert!(verifier.verify(&good, NOW).is_ok(), "the only key needs no id");
        let header = |header: Value| issuer.sign(&header, &claims(&json!({})));
        let unsigned = format!("{}.", good.rsplit_once('.').unwrap().0);
        let (signed, _) = good.rsplit_once('.').unwrap();
        let other = Issuer::new().sign(&json!({ "alg": "EdDSA" }), &claims(&json!({})));
        let rows = [
            (header(json!({ "alg": "none" })), TokenFault::Algorithm),
            (header(json!({ "alg": "HS256", "kid": "hmac" })), TokenFault::Algorithm),
            (header(json!({ "alg": "RS256", "kid": "one" })), TokenFault::UnknownKey),
            (header(json!({ "alg": "EdDSA", "kid": "two" })), TokenFault::UnknownKey),
            (header(json!({ "alg": "EdDSA", "crit": ["b64"] })), TokenFault::Malformed),
            (header(json!({ "kid": "one" })), TokenFault::Malformed),
            (unsigned, TokenFault::Signature),
            (format!("{signed}.{}", other.rsplit_once('.').unwrap().1), TokenFault::Signature),
            (other, TokenFault::Signature),
            ("a.b".to_owned(), TokenFault::Malformed),
            ("..".to_owned(), TokenFault::Malformed),
            (format!("{good}{}", "A".repeat(TOKEN_BYTES_MAX)), TokenFault::TooLong),
        ];
        for (token, fault) in rows {
            assert_eq!(verifier.verify(&token, NOW), Err(fault), "{token:.120}");
        }
    }

    #[test]
    fn broken_key_sets_are_refused() {
        let rows = [
            ("", "is not a JSON Web Key Set"),
            ("{}", "is not a JSON Web Key Set"),
            (r#"{"keys": []}"#, "no key for RS256, ES256 or EdDSA"),
            (r#"{"keys": [{"kty": "oct", "k": "AA"}]}"#, "no key for RS256"),
            (r#"{"keys": [{"kty": "RSA", "n": "AA"}]}"#, "key 0 of the key set: there is no e"),
            (r#"{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}"#, "32 bytes"),
            (r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "x": "!"}]}"#, "x is not base64url"),
            (r#"{"keys": [{"kty": "RSA", "use": "enc"}]}"#, "no key for RS256"),
        ];
        for (text, expected) in rows {
            let error = KeySet::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
