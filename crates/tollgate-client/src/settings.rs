//! Where a broker is, who it is trusted to be, and who asks it.

use std::fmt;
use std::sync::Arc;

use hyper::Uri;
use hyper::header::HeaderValue;
use tollgate::{Clock, Error, ErrorKind, Span, SystemClock};

use crate::call::{Caller, DEADLINE_DEFAULT};
use crate::tls::Tls;

/// Where a broker is, and how it is called.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(crate) grpc: Option<String>,
    pub(crate) http: Option<String>,
    pub(crate) resp: Option<String>,
    key: Option<HeaderValue>,
    authority: Option<Pem>,
    identity: Option<[Pem; 2]>,
    deadline: Span,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Text that may be a private key, so it is never shown.
#[derive(Clone)]
pub(crate) struct Pem(pub(crate) Vec<u8>);

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pem")
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            grpc: None,
            http: None,
            resp: None,
            key: None,
            authority: None,
            identity: None,
            deadline: DEADLINE_DEFAULT,
            clock: Arc::new(SystemClock),
        }
    }
}

impl Settings {
    /// Nowhere yet: name [`grpc`](Self::grpc), [`http`](Self::http), [`resp`](Self::resp) or several of them.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Where it serves gRPC, as in `http://127.0.0.1:8081`; with `https://` by TLS.
    #[must_use]
    pub fn grpc(mut self, address: impl Into<String>) -> Self {
        self.grpc = Some(address.into());
        self
    }

    /// Where it serves HTTP, as in `http://127.0.0.1:8080`; with `https://` by TLS.
    #[must_use]
    pub fn http(mut self, address: impl Into<String>) -> Self {
        self.http = Some(address.into());
        self
    }

    /// Where it serves the Redis protocol, as in `redis://127.0.0.1:6380`; with `rediss://` by TLS.
    #[must_use]
    pub fn resp(mut self, address: impl Into<String>) -> Self {
        self.resp = Some(address.into());
        self
    }

    /// How long a call may take; the broker is told, too.
    #[must_use]
    pub const fn deadline(mut self, deadline: Span) -> Self {
        self.deadline = deadline;
        self
    }

    /// The API key, sent as `authorization: Bearer`, or with `AUTH`. Space around it, as at the end of a file, is left out.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it has characters that no header field can have.
    pub fn key(mut self, key: &str) -> Result<Self, Error> {
        let mut value = HeaderValue::try_from(format!("Bearer {}", key.trim())).map_err(|_| {
            Error::new(ErrorKind::Invalid, "the API key has characters that cannot be sent")
        })?;
        value.set_sensitive(true);
        self.key = Some(value);
        Ok(self)
    }

    /// Trusts the authorities in `pem`, and not those of the machine, to say who the broker is.
    #[must_use]
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authority = Some(Pem(pem.into()));
        self
    }

    /// Shows a broker that asks for it this certificate, with those in between behind it, and proves it with its private
    /// key; both are PEM.
    #[must_use]
    pub fn identity(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.identity = Some([Pem(certificate.into()), Pem(key.into())]);
        self
    }

    /// The clock of deadlines.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// What calls to `address` have, which is for people as in `example`; `tls` is made for the first that needs it.
    pub(crate) fn caller(
        &self,
        address: &str,
        example: &str,
        tls: &mut Option<Tls>,
    ) -> Result<Caller, Error> {
        let (plain, _) = example.split_once("://").unwrap_or_default();
        let (address, is_secure) = address_of(address, plain, example)?;
        if is_secure && tls.is_none() {
            *tls = Some(Tls::new(self.authority.as_ref(), self.identity.as_ref())?);
        }
        Ok(Caller {
            address,
            deadline: self.deadline,
            clock: Arc::clone(&self.clock),
            authorization: self.key.clone(),
            tls: tls.clone().filter(|_| is_secure),
        })
    }
}

/// The address in `text`, whose scheme is `plain` or the same with an `s`, and whether it asks for TLS.
fn address_of(text: &str, plain: &str, example: &str) -> Result<(Uri, bool), Error> {
    let wrong = |why: &str| {
        let text = format!(
            "{text:?} {why}; write an address as in {example}, or with {plain}s:// where it speaks TLS"
        );
        Error::new(ErrorKind::Invalid, text)
    };
    let uri: Uri = text.parse().map_err(|_| wrong("is no address"))?;
    let is_secure = match uri.scheme_str().and_then(|scheme| scheme.strip_prefix(plain)) {
        Some("") => false,
        Some("s") => true,
        _ => return Err(wrong("does not say the protocol")),
    };
    match uri.path() {
        "" | "/" => Ok((uri, is_secure)),
        _ => Err(wrong("has a path")),
    }
}
