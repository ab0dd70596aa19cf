//! What a call has on every transport: an address, a deadline, a key and perhaps TLS.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;
use tollgate::{Clock, Error, ErrorKind, Permit, Span};

use crate::tls::{self, Tls};

/// How long a call may take unless it is set.
pub const DEADLINE_DEFAULT: Span = Span::from_secs(5);

/// The largest answer that is read, in bytes.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

/// The settings of one transport.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) address: Uri,
    pub(crate) deadline: Span,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) authorization: Option<HeaderValue>,
    /// TLS, if the address asks for it.
    pub(crate) tls: Option<Tls>,
}

impl Caller {
    /// The answer of `call`, if it comes in time.
    pub(crate) async fn within<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tollgate::within(&*self.clock, self.deadline, call).await.unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::TimedOut,
                format!("the broker at {} did not answer within {}", self.address, self.deadline),
            ))
        })
    }

    /// The broker could not be asked at all, so nothing happened.
    pub(crate) fn not_reached(&self, source: impl StdError + Send + Sync + 'static) -> Error {
        self.explained(&source).unwrap_or_else(|| {
            let text = format!("could not reach the broker at {}: {}", self.address, root(&source));
            Error::new(ErrorKind::Unavailable, text).caused_by(NotServed)
        })
    }

    /// The answer was lost: whether something happened, nobody knows.
    pub(crate) fn lost(&self, source: impl StdError + Send + Sync + 'static) -> Error {
        self.explained(&source).unwrap_or_else(|| {
            let text =
                format!("lost the answer of the broker at {}: {}", self.address, root(&source));
            Error::new(ErrorKind::Unavailable, text).caused_by(source)
        })
    }

    /// The broker wants a key, or another one, whatever is called; `why` is what it says.
    pub(crate) fn unauthenticated(&self, why: &str) -> Error {
        Error::new(ErrorKind::Misconfigured, self.refused_key(why))
    }

    /// The key does not allow this call, for which it lacks a scope, or this policy or subject. Others may be allowed.
    pub(crate) fn forbidden(&self, why: &str) -> Error {
        Error::new(ErrorKind::Forbidden, self.refused_key(why))
    }

    fn refused_key(&self, why: &str) -> String {
        format!(
            "the broker at {} refuses the key: {why} (the key is Settings::key, or key_file in [store])",
            self.address
        )
    }

    /// The broker is called by a name that it does not answer to; `why` is what it says.
    pub(crate) fn misdirected(&self, why: &str) -> Error {
        let text = format!("the broker at {} refuses its address: {why}", self.address);
        Error::new(ErrorKind::Misconfigured, text)
    }

    /// The broker answered, whatever it said.
    pub(crate) fn answered(&self) {
        if let Some(tls) = &self.tls {
            tls.answered();
        }
    }

    fn explained(&self, error: &(dyn StdError + 'static)) -> Option<Error> {
        self.tls.as_ref()?.explain(error, &format!("the broker at {}", self.address))
    }

    /// What makes connections for HTTP; `is_grpc` says that only its second version will do.
    pub(crate) fn connector(&self, is_grpc: bool) -> Result<Connector, Error> {
        let mut plain = HttpConnector::new();
        plain.set_nodelay(true);
        plain.enforce_http(false);
        let config = match &self.tls {
            Some(tls) => ClientConfig::clone(&tls.config()),
            None => tls::trusting_nobody()?,
        };
        let builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
        Ok(if is_grpc {
            builder.enable_http2().wrap_connector(plain)
        } else {
            builder.enable_http1().wrap_connector(plain)
        })
    }
}

/// Connections of HTTP, with TLS where the address asks for it.
pub(crate) type Connector = HttpsConnector<HttpConnector>;

/// Without the key, which must not end up in a log.
impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, deadline, .. } = self;
        f.debug_struct("Caller")
            .field("address", address)
            .field("deadline", deadline)
            .finish_non_exhaustive()
    }
}

/// The cause that says most.
fn root<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

/// The source of an error that says: nobody serves this protocol there, and nothing happened.
#[derive(Debug)]
pub(crate) struct NotServed;

impl fmt::Display for NotServed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody serves this protocol at the address")
    }
}

impl StdError for NotServed {}

pub(crate) fn is_not_served(error: &Error) -> bool {
    error.source().is_some_and(<dyn StdError>::is::<NotServed>)
}

/// The seal to send for `permit`.
pub(crate) fn seal_of(permit: &Permit) -> Result<&str, Error> {
    permit.seal().ok_or_else(|| {
        Error::new(
            ErrorKind::Invalid,
            "the permit has no seal, so no broker gave it; settle it at the gate it came from",
        )
    })
}
