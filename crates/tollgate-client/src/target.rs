//! A broker's address with everything a call to it needs: deadline, API key, TLS. Shared by all transports.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use hyper::Uri;
use hyper::header::HeaderValue;
use tollgate::{Clock, Error, ErrorKind, Permit, Span};
use tollgate_transport::http::root_cause;
use tollgate_transport::tls::{ClientTls, Fault};

/// The default deadline of a call.
pub const DEADLINE_DEFAULT: Span = Span::from_secs(5);

/// The largest response, in bytes.
pub const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// The broker as one transport calls it.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) address: Uri,
    pub(crate) deadline: Span,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) authorization: Option<HeaderValue>,
    /// Set if the address asks for TLS.
    pub(crate) tls: Option<ClientTls>,
}

impl Target {
    /// Runs `call` under the deadline.
    pub(crate) async fn with_deadline<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let done = tollgate::internal::timeout(&*self.clock, self.deadline, call).await;
        done.unwrap_or_else(|| Err(self.timed_out()))
    }

    /// Returns the error for a call that was not sent, so nothing happened.
    pub(crate) fn not_reached(&self, source: impl StdError + Send + Sync + 'static) -> Error {
        self.tls_error(&source).unwrap_or_else(|| {
            let text =
                format!("could not reach the broker at {}: {}", self.address, root_cause(&source));
            Error::new(ErrorKind::Unavailable, text).caused_by(NotServed)
        })
    }

    /// Returns the error for a lost response: the broker may have processed the request.
    pub(crate) fn lost(&self, source: impl StdError + Send + Sync + 'static) -> Error {
        self.tls_error(&source).unwrap_or_else(|| {
            let text = format!(
                "lost the response of the broker at {}: {}",
                self.address,
                root_cause(&source)
            );
            Error::new(ErrorKind::Unavailable, text).caused_by(source)
        })
    }

    /// Returns the error for a missing or wrong key; `reason` is the broker's.
    pub(crate) fn unauthenticated(&self, reason: &str) -> Error {
        Error::new(ErrorKind::Misconfigured, self.key_refused(reason))
    }

    /// Returns the error for a key that lacks a scope, policy or subject; other calls may be allowed.
    pub(crate) fn forbidden(&self, reason: &str) -> Error {
        Error::new(ErrorKind::Forbidden, self.key_refused(reason))
    }

    fn key_refused(&self, reason: &str) -> String {
        format!(
            "the broker at {} refuses the key: {reason} (the key is ClientOptions::key, or key_file in [store])",
            self.address
        )
    }

    /// Returns the error for a host name that the broker does not accept; `reason` is the broker's.
    pub(crate) fn misdirected(&self, reason: &str) -> Error {
        misconfigured(format!("the broker at {} refuses its address: {reason}", self.address))
    }

    /// Records that the broker responded.
    pub(crate) fn note_response(&self) {
        if let Some(tls) = &self.tls {
            tls.note_response();
        }
    }

    pub(crate) fn fault(&self, error: &(dyn StdError + 'static)) -> Option<Fault> {
        self.tls.as_ref()?.fault(error)
    }

    fn tls_error(&self, error: &(dyn StdError + 'static)) -> Option<Error> {
        self.fault(error).map(|fault| self.tls_fault(fault))
    }

    pub(crate) fn tls_fault(&self, fault: Fault) -> Error {
        let broker = format!("the broker at {}", self.address);
        match fault {
            // The caller cannot fix these two: they are like an outage.
            Fault::Expired => Error::new(
                ErrorKind::Unavailable,
                format!("the certificate of {broker} has expired; renew it there and send SIGHUP"),
            ),
            Fault::NotYetValid => Error::new(
                ErrorKind::Unavailable,
                format!("the certificate of {broker} is not valid yet; is a clock wrong?"),
            ),
            Fault::WrongHost => misconfigured(format!(
                "the certificate of {broker} is for another host; use a name that the certificate has"
            )),
            Fault::Untrusted(reason) => misconfigured(format!(
                "the certificate of {broker} is not issued by a trusted authority ({reason}); set the authority as PEM: \
                 ClientOptions::authority, or authority_file in [store]"
            )),
            Fault::NotTls => misconfigured(format!(
                "{broker} does not speak TLS; use a plain address, or set [server.tls] there"
            )),
            Fault::Rejected(alert) => {
                let alert = alert.map(|alert| format!(" ({alert})")).unwrap_or_default();
                let options = "ClientOptions::identity, or certificate_file and certificate_key_file in [store]";
                misconfigured(if self.tls.as_ref().is_some_and(ClientTls::has_identity) {
                    format!(
                        "{broker} did not accept the client certificate{alert}; set a valid one of its client_authority: \
                         {options}"
                    )
                } else {
                    format!("{broker} requires a client certificate{alert}; set one: {options}")
                })
            }
        }
    }

    /// Returns the error for a call that did not respond by its deadline.
    pub(crate) fn timed_out(&self) -> Error {
        let text =
            format!("the broker at {} did not respond within {}", self.address, self.deadline);
        Error::new(ErrorKind::TimedOut, text)
    }
}

/// Omits the key, which must not end up in a log.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, deadline, .. } = self;
        f.debug_struct("Target")
            .field("address", address)
            .field("deadline", deadline)
            .finish_non_exhaustive()
    }
}

/// The source of an error that says: the protocol is not served at the address, and nothing happened.
#[derive(Debug)]
pub(crate) struct NotServed;

impl fmt::Display for NotServed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the protocol is not served at the address")
    }
}

impl StdError for NotServed {}

pub(crate) fn is_not_served(error: &Error) -> bool {
    error.source().is_some_and(<dyn StdError>::is::<NotServed>)
}

/// Returns the broker's seal of `permit`.
pub(crate) fn seal_of(permit: &Permit) -> Result<&str, Error> {
    permit.seal().ok_or_else(|| {
        Error::new(
            ErrorKind::Invalid,
            "the permit has no seal, so no broker issued it; settle it at the gate that issued it",
        )
    })
}

fn misconfigured(text: String) -> Error {
    Error::new(ErrorKind::Misconfigured, text)
}
