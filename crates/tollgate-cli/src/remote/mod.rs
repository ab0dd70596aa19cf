//! Calls that a running broker answers, over its HTTP API.

mod url;

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tollgate::{Error, ErrorKind, Span};
use tollgate_client::{ApiClient, ApiError, ApiResponse, ClientOptions, Method, percent_encode};
use tollgate_protocol::json::{AcquireResponse, StandingQuery};
use tollgate_transport::http::{SendError, causes, root_cause};
use tollgate_transport::tls::{Fault, Input, TlsError};

use crate::KEY_VARIABLE;
use crate::call::{Call, Reply};
use tollgate_terminal::Failure;

pub(crate) use url::BrokerUrl;

/// How long a connection may take to open.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long a response may take, beyond the wait that was asked for.
const RESPONSE_MAX: Span = Span::from_secs(30);

/// The largest response: the list of a great many policies fits.
const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// A broker and the certificates for it.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) url: BrokerUrl,
    pub(crate) credentials: Credentials,
}

/// The certificates that the flags name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credentials {
    /// The authorities to trust instead of those of the operating system.
    pub(crate) authority: Option<PathBuf>,
    /// The client certificate.
    pub(crate) identity: Option<ClientIdentity>,
}

/// A client certificate and its private key.
#[derive(Clone, Debug)]
pub(crate) struct ClientIdentity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Credentials {
    /// Returns the first of the flags that was given.
    pub(crate) const fn flag(&self) -> Option<&'static str> {
        match (&self.authority, &self.identity) {
            (Some(_), _) => Some("--authority"),
            (None, Some(_)) => Some("--client-cert"),
            (None, None) => None,
        }
    }
}

impl Server {
    /// Adds the certificates to `options`, if the URL needs them.
    fn add_to(&self, mut options: ClientOptions) -> Result<ClientOptions, Error> {
        if !self.url.is_https() {
            return Ok(options);
        }
        if let Some(path) = &self.credentials.authority {
            options = options.authority(read("--authority", path)?);
        }
        if let Some(ClientIdentity { certificate, key }) = &self.credentials.identity {
            options =
                options.identity(read("--client-cert", certificate)?, read("--client-key", key)?);
        }
        Ok(options)
    }

    /// Rewords an error about certificates: it names the flag and the file.
    fn reworded(&self, error: Error) -> Error {
        let Some(tls) = error.source().and_then(|source| source.downcast_ref::<TlsError>()) else {
            return error;
        };
        match (tls.input, &self.credentials.authority, &self.credentials.identity) {
            (Input::Authority, Some(path), _) => unusable("--authority", path, &tls.reason),
            (Input::Certificate, _, Some(ClientIdentity { certificate, .. })) => {
                unusable("--client-cert", certificate, &tls.reason)
            }
            (Input::Key, _, Some(ClientIdentity { certificate, key })) => {
                let mismatch = format!(
                    "is not the key of --client-cert {}; name the two that were made together",
                    certificate.display()
                );
                let is_mismatch = tls.reason.starts_with("does not belong");
                unusable("--client-key", key, if is_mismatch { &mismatch } else { &tls.reason })
            }
            _ => error,
        }
    }
}

fn read(flag: &str, path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| unusable(flag, path, &format!("cannot be read: {error}")))
}

fn unusable(flag: &str, path: &Path, reason: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("{flag} {} {reason}", path.display()))
}

/// A running broker.
#[derive(Debug)]
pub(crate) struct Remote {
    server: Server,
    api: ApiClient,
    has_key: bool,
}

impl Remote {
    pub(crate) fn new(server: Server, key: Option<&str>) -> Result<Self, Error> {
        let mut options = server.add_to(ClientOptions::new())?;
        if let Some(key) = key {
            options = options.key(key)?;
        }
        let api = ApiClient::new(server.url.as_str(), &options, CONNECT_MAX, RESPONSE_BYTES_MAX)
            .map_err(|error| server.reworded(error))?;
        Ok(Self { server, api, has_key: key.is_some() })
    }

    /// Makes `call` at the broker.
    pub(crate) async fn answer(&self, call: &Call) -> Result<Reply, Failure> {
        Ok(match call {
            Call::Acquire(request) => {
                let wait = Span::from_millis(request.wait_ms.unwrap_or(0));
                let deadline = RESPONSE_MAX.plus(wait);
                let response =
                    self.send(Method::POST, "/v1/acquire", Some(request), deadline).await?;
                if !response.is_success() && response.status != 429 {
                    return Err(self.problem(&response));
                }
                match self.parse(&response)? {
                    AcquireResponse::Failed(problem) => return Err(Failure::Broker(problem)),
                    decided => Reply::Decided(decided),
                }
            }
            Call::Settle(request) => Reply::Changed(self.post("/v1/settle", request).await?),
            Call::Release(request) => Reply::Changed(self.post("/v1/release", request).await?),
            Call::Renew(request) => Reply::Renewed(self.post("/v1/renew", request).await?),
            Call::Standing(query) => {
                Reply::Standing(self.call(Method::GET, &standing_path(query), None::<&()>).await?)
            }
            Call::Reset(query) => {
                let path = standing_path(query);
                Reply::Changed(self.call(Method::DELETE, &path, None::<&()>).await?)
            }
            Call::Violation(request) => {
                Reply::Incident(Box::new(self.post("/v1/violations", request).await?))
            }
            Call::Policies => Reply::Policies(self.get("/v1/policies", &[]).await?),
            Call::Override { of, body } => {
                Reply::Override(self.call(Method::PUT, &override_path(of), Some(body)).await?)
            }
            Call::Restore(of) => {
                Reply::Changed(self.call(Method::DELETE, &override_path(of), None::<&()>).await?)
            }
        })
    }

    /// Sends a GET request and parses the response.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, Failure> {
        let query: Vec<String> =
            query.iter().map(|(name, value)| format!("{name}={}", percent_encode(value))).collect();
        let mark = if query.is_empty() { "" } else { "?" };
        let path = format!("{path}{mark}{}", query.join("&"));
        self.call(Method::GET, &path, None::<&()>).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.call(Method::POST, path, Some(body)).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, Failure> {
        let response = self.send(method, path, body, RESPONSE_MAX).await?;
        if response.is_success() { self.parse(&response) } else { Err(self.problem(&response)) }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        deadline: Span,
    ) -> Result<ApiResponse, Failure> {
        let sent = self.api.send(method, path, body, deadline).await;
        sent.map_err(|error| self.unreachable(&error))
    }

    fn parse<T: DeserializeOwned>(&self, response: &ApiResponse) -> Result<T, Failure> {
        response.parse().map_err(|_| self.not_a_broker(response.status))
    }

    fn problem(&self, response: &ApiResponse) -> Failure {
        let Some(mut problem) = response.problem() else {
            return self.not_a_broker(response.status);
        };
        // The broker's advice is for programs that write their own requests.
        if response.status == 401 && !self.has_key {
            problem.detail = format!("this needs a key; put it into the variable {KEY_VARIABLE}");
        }
        Failure::Broker(problem)
    }

    fn not_a_broker(&self, status: u16) -> Failure {
        let url = self.server.url.as_str();
        let text =
            format!("{url} answered {status}, but not as a tollgate broker does; check --server");
        Failure::new(ErrorKind::Unavailable, text)
    }

    fn unreachable(&self, error: &ApiError) -> Failure {
        const NEXT: &str = "start a broker with tollgate serve, or check --server";
        let reason = match error {
            ApiError::Tls(fault) => self.tls_advice(fault),
            ApiError::Send(error) if is_refused(error) => format!("connection refused; {NEXT}"),
            ApiError::Send(error) if error.is_unknown_host() => {
                format!("there is no such host; {NEXT}")
            }
            // A TLS port responds to plain HTTP with an alert.
            ApiError::Send(error) if error.is_not_http() => {
                "this is not a port for HTTP; --server takes the address that tollgate serve prints behind http, \
                 not that of gRPC or of the Redis protocol, and begins with https:// if it has TLS"
                    .to_owned()
            }
            ApiError::Send(error) => format!("{}; {NEXT}", root_cause(error)),
            ApiError::TimedOut(deadline) => format!("no response within {deadline}; {NEXT}"),
            ApiError::Unsendable(reason) => reason.clone(),
        };
        let text = format!("no answer from {}: {reason}", self.server.url.as_str());
        Failure::new(ErrorKind::Unavailable, text)
    }

    fn tls_advice(&self, fault: &Fault) -> String {
        match fault {
            Fault::Expired => "its certificate has expired; renew it there and send SIGHUP".into(),
            Fault::NotYetValid => "its certificate is not valid yet; is a clock wrong?".into(),
            Fault::WrongHost => {
                "its certificate is for another host; write a name in --server that the certificate has".into()
            }
            Fault::Untrusted(reason) => format!(
                "its certificate is not by an authority that is trusted here ({reason}); name the right one with --authority"
            ),
            Fault::NotTls => {
                "it speaks no TLS; write http:// in --server, or set [server.tls] there".into()
            }
            Fault::Rejected(alert) => {
                let what = match alert {
                    Some(alert) => format!("it refused the connection ({alert})"),
                    None => "it cut the connection".to_owned(),
                };
                if self.server.credentials.identity.is_none() {
                    format!(
                        "{what}; if it asks for a certificate of its clients, show one with --client-cert and --client-key"
                    )
                } else {
                    format!(
                        "{what}; is the certificate of --client-cert valid, and by its client_authority?"
                    )
                }
            }
        }
    }
}

fn is_refused(error: &SendError) -> bool {
    causes(error)
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn standing_path(query: &StandingQuery) -> String {
    let (policy, subject) = (percent_encode(&query.policy), percent_encode(&query.subject));
    format!("/v1/standing?policy={policy}&subject={subject}")
}

fn override_path(of: &StandingQuery) -> String {
    let (policy, subject) = (percent_encode(&of.policy), percent_encode(&of.subject));
    format!("/v1/policies/{policy}/overrides/{subject}")
}
