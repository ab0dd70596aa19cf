//! Access control: the accepted keys, and the caller that each call or connection was authenticated as.
//!
//! HTTP and gRPC send the key with each call. A connection of the Redis protocol sends it once, so its [`Session`] stores the
//! hash and looks it up again when keys were replaced or its own has expired: a revoked key ends at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tollgate::{Error, ErrorKind, Timestamp};

use crate::jwt::Claims;
use crate::keys::{Key, KeyHash, Keys, Refused, Scope};
use tollgate_protocol::json::AcquireRequest;

/// The caller of a request: the key or the token that it was authenticated with, or neither where no key is required.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    key: Option<Arc<Key>>,
    claims: Option<Arc<Claims>>,
}

/// The name of callers with a token, in audit and logs.
const TOKEN_NAME: &str = "jwt";

impl Caller {
    /// The caller where no key is required.
    pub(crate) const ANONYMOUS: Self = Self { key: None, claims: None };

    fn with_key(key: Arc<Key>) -> Self {
        Self { key: Some(key), claims: None }
    }

    /// Returns the caller of a token with these claims. It may ask for its own subject, and nothing else.
    pub(crate) fn claiming(claims: Claims) -> Self {
        Self { key: None, claims: Some(Arc::new(claims)) }
    }

    /// Returns the name of its key; empty without one.
    pub(crate) fn name(&self) -> &str {
        match &self.key {
            Some(key) => &key.name,
            None if self.claims.is_some() => TOKEN_NAME,
            None => "",
        }
    }

    /// Returns the subject of its token.
    pub(crate) fn subject(&self) -> Option<&str> {
        self.claims.as_ref().map(|claims| &*claims.subject)
    }

    /// Returns the plan of its token.
    pub(crate) fn plan(&self) -> Option<&str> {
        self.claims.as_ref().and_then(|claims| claims.plan.as_deref())
    }

    /// Makes the subject of its token that of an ask which names none.
    pub(crate) fn fill_subject(&self, request: &mut AcquireRequest) {
        if let Some(subject) = self.subject()
            && request.subject.is_empty()
            && request.charges.is_empty()
        {
            subject.clone_into(&mut request.subject);
        }
    }

    /// Returns whether it was authenticated with a key.
    pub(crate) const fn has_key(&self) -> bool {
        self.key.is_some()
    }

    pub(crate) fn has(&self, scope: Scope) -> bool {
        self.check(scope).is_ok()
    }

    pub(crate) fn check(&self, scope: Scope) -> Result<(), Refused> {
        match &self.key {
            Some(key) => key.scopes.check(scope),
            None if self.claims.is_some() && scope != Scope::Acquire => Err(Refused::Scope(scope)),
            None => Ok(()),
        }
    }

    /// Refuses a key that is bound to some policies or subjects.
    pub(crate) fn check_unbound(&self) -> Result<(), Refused> {
        let is_bound = self.key.as_ref().is_some_and(|key| key.is_bound());
        if is_bound || self.claims.is_some() { Err(Refused::Bound) } else { Ok(()) }
    }

    /// Refuses a key that is bound to other policies or subjects, and a token of another subject.
    pub(crate) fn check_about(&self, policy: &str, subject: &str) -> Result<(), Error> {
        if let Some(own) = self.subject().filter(|own| *own != subject) {
            let text = format!("the token is of subject {own:?}, not {subject:?}");
            return Err(Error::new(ErrorKind::Forbidden, text));
        }
        match &self.key {
            Some(key) if !key.covers(policy, subject) => Err(not_covered(key, policy, subject)),
            _ => Ok(()),
        }
    }

    /// Refuses a key that may not name `tenant`; a token may not.
    pub(crate) fn check_tenant(&self, tenant: &str) -> Result<(), Error> {
        if self.claims.is_some() {
            let text = "a token may not name a tenant; leave tenant out";
            return Err(Error::new(ErrorKind::Forbidden, text));
        }
        match &self.key {
            Some(key) if !key.may_name(tenant) => {
                let own = match &*key.tenants {
                    [] => {
                        "it may name none; leave tenant out, or add tenants to the key".to_owned()
                    }
                    tenants => format!("its tenants are {}", tenants.join(", ")),
                };
                let text = format!("the key does not allow tenant {tenant:?}; {own}");
                Err(Error::new(ErrorKind::Forbidden, text))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether its key allows any subject of `policy`.
    pub(crate) fn may_use(&self, policy: &str) -> bool {
        self.key.as_ref().is_none_or(|key| key.covers_policy(policy))
    }

    fn expires_at(&self) -> Option<Timestamp> {
        self.key.as_ref().and_then(|key| key.expires)
    }
}

#[cold]
fn not_covered(key: &Key, policy: &str, subject: &str) -> Error {
    let list = |name: &str, texts: &[String]| match texts {
        [] => String::new(),
        texts => format!("; its {name} are {}", texts.join(", ")),
    };
    let text = format!(
        "the key does not allow subject {subject:?} of policy {policy:?}{}{}",
        list("policies", &key.policies),
        list("subjects", &key.subjects),
    );
    Error::new(ErrorKind::Forbidden, text)
}

/// The accepted keys; `None` if no key is required.
#[derive(Debug)]
pub(crate) struct Access {
    keys: RwLock<Option<Arc<Keys>>>,
    /// Counts replacements, so that a session notices one without the lock.
    version: AtomicU64,
}

impl Access {
    pub(crate) const fn open() -> Self {
        Self { keys: RwLock::new(None), version: AtomicU64::new(1) }
    }

    pub(crate) fn replace(&self, keys: Option<Keys>) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys.map(Arc::new);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns whether a key is required.
    pub(crate) fn is_guarded(&self) -> bool {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Returns the caller with the key of `hash`, or with the key that `certificate` names.
    pub(crate) fn find(
        &self,
        hash: Option<&KeyHash>,
        certificate: Option<&Certificate>,
        now: Timestamp,
    ) -> Result<Caller, Refused> {
        let version = self.version.load(Ordering::Acquire);
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner).clone();
        match (keys, hash) {
            (None, _) => Ok(Caller::ANONYMOUS),
            (Some(keys), None) => {
                let key = certificate.and_then(|certificate| certificate.key(&keys, version));
                let key = key.ok_or(Refused::Missing)?;
                key.check_expiry(now)?;
                Ok(Caller::with_key(key))
            }
            (Some(keys), Some(hash)) => {
                keys.find(hash, now).map(|key| Caller::with_key(Arc::clone(key)))
            }
        }
    }
}

/// The client certificate of a connection.
#[derive(Debug)]
pub(crate) struct Certificate {
    der: CertificateDer<'static>,
    /// The key that it names, and the version of the keys for that.
    cached: Mutex<(u64, Option<Arc<Key>>)>,
}

impl Certificate {
    /// Returns the certificate that the client of `stream` presented, if any.
    pub(crate) fn from_stream(stream: &TlsStream<TcpStream>) -> Option<Arc<Self>> {
        let der = stream.get_ref().1.peer_certificates()?.first()?.clone().into_owned();
        Some(Arc::new(Self { der, cached: Mutex::new((0, None)) }))
    }

    fn key(&self, keys: &Keys, version: u64) -> Option<Arc<Key>> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.0 != version {
            *cached = (version, keys.certified(&self.der).cloned());
        }
        cached.1.clone()
    }
}

/// The authentication of a connection.
#[derive(Debug)]
pub(crate) struct Session {
    hash: Option<KeyHash>,
    certificate: Option<Arc<Certificate>>,
    found: Result<Caller, Refused>,
    /// The version of the keys for `found`.
    version: u64,
}

impl Session {
    /// Creates an unauthenticated session.
    pub(crate) const fn new(certificate: Option<Arc<Certificate>>) -> Self {
        Self { hash: None, certificate, found: Err(Refused::Missing), version: 0 }
    }

    /// Returns the hash of the key, and the certificate.
    pub(crate) fn credentials(&self) -> (Option<&KeyHash>, Option<&Certificate>) {
        (self.hash.as_ref(), self.certificate.as_deref())
    }

    /// Forgets the key.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.certificate.take());
    }

    /// Authenticates with `key`; a wrong one changes nothing.
    pub(crate) fn authenticate(
        &mut self,
        key: &str,
        access: &Access,
        now: Timestamp,
    ) -> Result<(), Refused> {
        let hash = KeyHash::from_key(key);
        let version = access.version.load(Ordering::Acquire);
        let caller = access.find(Some(&hash), None, now)?;
        (self.hash, self.found, self.version) = (Some(hash), Ok(caller), version);
        Ok(())
    }

    /// Returns the caller, if it has `scope`; with `None`, if it has any valid key.
    pub(crate) fn check(
        &mut self,
        scope: Option<Scope>,
        access: &Access,
        now: impl Fn() -> Timestamp,
    ) -> Result<&Caller, Refused> {
        let version = access.version.load(Ordering::Acquire);
        let is_expired =
            |caller: &Caller| caller.expires_at().is_some_and(|expires| expires <= now());
        if self.version != version || self.found.as_ref().is_ok_and(is_expired) {
            self.found = access.find(self.hash.as_ref(), self.certificate.as_deref(), now());
            self.version = version;
        }
        let caller = self.found.as_ref().map_err(|refused| *refused)?;
        scope.map_or(Ok(()), |scope| caller.check(scope))?;
        Ok(caller)
    }
}
