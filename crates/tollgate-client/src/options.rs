//! Addresses, key, certificates and deadline of a client.

use std::sync::Arc;

use hyper::Uri;
use hyper::header::HeaderValue;
use tollgate::clock::SystemClock;
use tollgate::{Clock, Error, ErrorKind, Span};
use tollgate_transport::tls::{ClientTls, TlsOptions};

use crate::target::{DEADLINE_DEFAULT, Target};

/// The options of a [`Client`](crate::Client).
#[derive(Clone, Debug)]
pub struct ClientOptions {
    pub(crate) grpc: Option<String>,
    pub(crate) http: Option<String>,
    pub(crate) resp: Option<String>,
    key: Option<HeaderValue>,
    tls: TlsOptions,
    deadline: Span,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            grpc: None,
            http: None,
            resp: None,
            key: None,
            tls: TlsOptions::default(),
            deadline: DEADLINE_DEFAULT,
            clock: Arc::new(SystemClock),
        }
    }
}

impl ClientOptions {
    /// Creates options without an address; set at least one of [`grpc`](Self::grpc), [`http`](Self::http) and
    /// [`resp`](Self::resp).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the address of gRPC, as in `http://127.0.0.1:8081`, or `https://` for TLS.
    #[must_use]
    pub fn grpc(mut self, address: impl Into<String>) -> Self {
        self.grpc = Some(address.into());
        self
    }

    /// Sets the address of HTTP, as in `http://127.0.0.1:8080`, or `https://` for TLS.
    #[must_use]
    pub fn http(mut self, address: impl Into<String>) -> Self {
        self.http = Some(address.into());
        self
    }

    /// Sets the address of the Redis protocol, as in `redis://127.0.0.1:6380`, or `rediss://` for TLS.
    #[must_use]
    pub fn resp(mut self, address: impl Into<String>) -> Self {
        self.resp = Some(address.into());
        self
    }

    /// Sets the deadline of each call, which is sent to the broker, too.
    #[must_use]
    pub const fn deadline(mut self, deadline: Span) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the API key, sent as `authorization: Bearer`, or with `AUTH`. Surrounding white space is trimmed.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it has characters that a header field cannot have.
    pub fn key(mut self, key: &str) -> Result<Self, Error> {
        let mut value = HeaderValue::try_from(format!("Bearer {}", key.trim())).map_err(|_| {
            Error::new(ErrorKind::Invalid, "the API key has characters that cannot be sent")
        })?;
        value.set_sensitive(true);
        self.key = Some(value);
        Ok(self)
    }

    /// Trusts the authorities in `pem` instead of those of the operating system.
    #[must_use]
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls = self.tls.authority(pem);
        self
    }

    /// Presents `certificate`, followed by its intermediates, to a broker that requests one; `key` is its private key.
    /// Both are PEM.
    #[must_use]
    pub fn identity(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.tls = self.tls.identity(certificate, key);
        self
    }

    /// Sets the clock of deadlines.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Creates the TLS configuration. The source of an error is the
    /// [`TlsError`](tollgate_transport::tls::TlsError).
    pub(crate) fn tls(&self) -> Result<ClientTls, Error> {
        ClientTls::new(&self.tls)
            .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string()).caused_by(error))
    }

    /// Returns the target at `address`, which looks like `example`; `tls` is created for the first that needs it.
    pub(crate) fn target(
        &self,
        address: &str,
        example: &str,
        tls: &mut Option<ClientTls>,
    ) -> Result<Target, Error> {
        let (scheme, _) = example.split_once("://").unwrap_or_default();
        let invalid = |reason: &str| {
            let text = format!(
                "{address:?} {reason}; write an address as in {example}, or with {scheme}s:// for TLS"
            );
            Error::new(ErrorKind::Invalid, text)
        };
        let uri: Uri = address.parse().map_err(|_| invalid("is not an address"))?;
        let is_secure = match uri.scheme_str().and_then(|found| found.strip_prefix(scheme)) {
            Some("") => false,
            Some("s") => true,
            _ => return Err(invalid("does not name the protocol")),
        };
        if !matches!(uri.path(), "" | "/") {
            return Err(invalid("has a path"));
        }
        if is_secure && tls.is_none() {
            *tls = Some(self.tls()?);
        }
        Ok(self.target_at(uri, tls.clone().filter(|_| is_secure)))
    }

    pub(crate) fn target_at(&self, address: Uri, tls: Option<ClientTls>) -> Target {
        let authorization = self.key.clone();
        let (deadline, clock) = (self.deadline, Arc::clone(&self.clock));
        Target { address, deadline, clock, authorization, tls }
    }
}
