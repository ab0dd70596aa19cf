//! Calls that a running broker answers.
//!
//! A command makes one call and ends, so the client is a blocking one without a connection pool or proxies.

mod tls;
mod url;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tollgate::{Error, ErrorKind};
use tollgate_server::wire::{AcquireRequest, Answer, OverrideRequest, Problem, StandingQuery};
use ureq::Agent;
use ureq::http::{Response, StatusCode};
use ureq::tls::TlsConfig;
use ureq::{Body, Error as HttpError, RequestBuilder};

use crate::KEY_VARIABLE;
use crate::failure::Failure;
use crate::intent::Call;
use crate::reply::Reply;

pub(crate) use tls::{Credentials, Shows};
pub(crate) use url::BrokerUrl;

/// How long a connection may take to open.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// How long an answer may take, beyond the wait that was asked for.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The largest answer that is read: the list of a great many policies fits.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// Which broker to ask.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) url: BrokerUrl,
    /// Whom to trust instead of the machine's authorities.
    pub(crate) authority: Option<PathBuf>,
    /// What to show if it asks who we are.
    pub(crate) shows: Option<Shows>,
}

/// A broker.
pub(crate) struct Remote {
    url: BrokerUrl,
    /// What the field Authorization says, if the broker asks for a key.
    authorization: Option<String>,
    credentials: Credentials,
    tls: Option<TlsConfig>,
}

impl Remote {
    pub(crate) fn new(server: Server, key: Option<String>) -> Result<Self, Error> {
        let Server { url, authority, shows } = server;
        let credentials = Credentials { authority, shows };
        let tls = url.is_https().then(|| credentials.read()).transpose()?;
        let authorization = key.map(|key| format!("Bearer {key}"));
        Ok(Self { url, authorization, credentials, tls })
    }

    /// Asks the broker.
    pub(crate) fn answer(&self, call: &Call) -> Result<Reply, Failure> {
        Ok(match call {
            Call::Acquire(request) => return self.acquire(request),
            Call::Settle(request) => Reply::Changed(self.post("/v1/settle", request)?),
            Call::Release(request) => Reply::Changed(self.post("/v1/release", request)?),
            Call::Renew(request) => Reply::Renewed(self.post("/v1/renew", request)?),
            Call::Standing(query) => {
                let url = self.at("/v1/standing");
                let request = self.agent(Duration::ZERO).get(url);
                let request = self.signed(request).query_pairs(pairs(query));
                Reply::Standing(self.read(request.call())?)
            }
            Call::Reset(query) => {
                let url = self.at("/v1/standing");
                let request = self.agent(Duration::ZERO).delete(url);
                let request = self.signed(request).query_pairs(pairs(query));
                Reply::Changed(self.read(request.call())?)
            }
            Call::Violation(request) => {
                Reply::Incident(Box::new(self.post("/v1/violations", request)?))
            }
            Call::Policies => Reply::Policies(self.get("/v1/policies", &[])?),
            Call::Override { of, limits } => {
                let body = OverrideRequest { limits: limits.clone() };
                let body = serde_json::to_vec(&body).map_err(|error| HttpError::Io(error.into()));
                let request = self.signed(self.agent(Duration::ZERO).put(self.override_of(of)));
                let request = request.content_type("application/json");
                Reply::Override(self.read(body.and_then(|body| request.send(body)))?)
            }
            Call::Restore(of) => {
                let request = self.agent(Duration::ZERO).delete(self.override_of(of));
                Reply::Changed(self.read(self.signed(request).call())?)
            }
        })
    }

    /// What the broker answers to a question that changes nothing.
    pub(crate) fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, Failure> {
        let pairs = query.iter().map(|(name, value)| (*name, value.as_str()));
        let request = self.signed(self.agent(Duration::ZERO).get(self.at(path)));
        let request = request.query_pairs(pairs);
        self.read(request.call())
    }

    fn override_of(&self, of: &StandingQuery) -> String {
        let (policy, subject) = (encoded(&of.policy), encoded(&of.subject));
        self.at(&format!("/v1/policies/{policy}/overrides/{subject}"))
    }

    fn acquire(&self, request: &AcquireRequest) -> Result<Reply, Failure> {
        let wait = Duration::from_millis(request.wait_ms.unwrap_or(0));
        let (status, text) = self.text(self.send("/v1/acquire", request, wait))?;
        if !status.is_success() && status != StatusCode::TOO_MANY_REQUESTS {
            return Err(self.problem(status, &text));
        }
        match self.parse(status, &text)? {
            Answer::Failed(problem) => Err(Failure::Broker(problem)),
            answer => Ok(Reply::Decided(answer)),
        }
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Failure> {
        self.read(self.send(path, body, Duration::ZERO))
    }

    fn send(
        &self,
        path: &str,
        body: &impl Serialize,
        wait: Duration,
    ) -> Result<Response<Body>, HttpError> {
        let body = serde_json::to_vec(body).map_err(|error| HttpError::Io(error.into()))?;
        let request = self.agent(wait).post(self.at(path));
        self.signed(request).content_type("application/json").send(body)
    }

    fn signed<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.authorization {
            Some(value) => request.header("authorization", value),
            None => request,
        }
    }

    fn read<T: DeserializeOwned>(
        &self,
        response: Result<Response<Body>, HttpError>,
    ) -> Result<T, Failure> {
        let (status, text) = self.text(response)?;
        if status.is_success() {
            self.parse(status, &text)
        } else {
            Err(self.problem(status, &text))
        }
    }

    fn text(
        &self,
        response: Result<Response<Body>, HttpError>,
    ) -> Result<(StatusCode, String), Failure> {
        let mut response = response.map_err(|error| self.unreachable(&error))?;
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        Ok((response.status(), body.map_err(|error| self.unreachable(&error))?))
    }

    fn parse<T: DeserializeOwned>(&self, status: StatusCode, text: &str) -> Result<T, Failure> {
        serde_json::from_str(text).map_err(|_| self.stranger(status))
    }

    fn problem(&self, status: StatusCode, text: &str) -> Failure {
        let Ok(mut problem) = serde_json::from_str::<Problem>(text) else {
            return self.stranger(status);
        };
        // The broker speaks to programs that write their own requests.
        if status == StatusCode::UNAUTHORIZED && self.authorization.is_none() {
            problem.detail = format!("this needs a key; put it into the variable {KEY_VARIABLE}");
        }
        Failure::Broker(problem)
    }

    fn stranger(&self, status: StatusCode) -> Failure {
        let url = self.url.as_str();
        let text =
            format!("{url} answered {status}, but not as a tollgate broker does; check --server");
        Failure::new(ErrorKind::Unavailable, text)
    }

    fn unreachable(&self, error: &HttpError) -> Failure {
        let tls = self.tls.as_ref().and_then(|_| self.credentials.advice(error));
        let what = tls.unwrap_or_else(|| {
            let next = "start a broker with tollgate serve, or check --server";
            match error {
                HttpError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    format!("nobody listens there; {next}")
                }
                HttpError::HostNotFound => format!("there is no such host; {next}"),
                // TLS answers a plain question with an alert.
                HttpError::Protocol(_) => {
                    "this is not a port for HTTP; --server takes the address that tollgate serve prints behind http, \
                     not that of gRPC or of the Redis protocol, and begins with https:// if it has TLS"
                        .to_owned()
                }
                other => format!("{other}; {next}"),
            }
        });
        Failure::new(
            ErrorKind::Unavailable,
            format!("no answer from {}: {what}", self.url.as_str()),
        )
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url.as_str())
    }

    fn agent(&self, wait: Duration) -> Agent {
        let builder = Agent::config_builder();
        let builder = match &self.tls {
            Some(tls) => builder.tls_config(tls.clone()),
            None => builder,
        };
        builder
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_global(Some(ANSWER_MAX + wait))
            .build()
            .new_agent()
    }
}

/// `text` as one part of a path.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            // A dot too, because a part of only dots would be another path.
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

/// Without the key.
impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("url", &self.url).finish_non_exhaustive()
    }
}

fn pairs(query: &StandingQuery) -> [(&str, &str); 2] {
    [("policy", &query.policy), ("subject", &query.subject)]
}
