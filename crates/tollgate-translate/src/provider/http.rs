//! One POST over HTTP. Certificates are always checked; plain HTTP is for loopback, where emulators and local models are,
//! and for other machines only where somebody says so. A proxy of the environment is used for HTTPS.

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Method, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};
use tollgate::{BoxFuture, Span, edge};

use super::error::{ProviderError, ProviderErrorKind as Kind};
use crate::error::Error;

/// The most that an answer may have, in bytes.
pub const REPLY_BYTES_MAX: usize = 16 * 1_024 * 1_024;

/// How long it may take until there is a connection.
const CONNECT_TIMEOUT: Span = Span::from_secs(20);

/// A request to send.
#[derive(Clone, Debug)]
pub struct Post<'a> {
    /// Where to.
    pub url: &'a str,
    /// A header by name and value, such as the one with the key.
    pub header: Option<(&'static str, &'a str)>,
    /// JSON.
    pub body: Vec<u8>,
}

/// What came back.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The header `Retry-After`.
    pub retry_after: Option<String>,
    /// The body.
    pub body: Vec<u8>,
}

/// Sends requests. A trait, so that a test can answer without a network.
pub trait Transport: Debug + Send + Sync + 'static {
    /// Sends one request. A reply with any status is a reply.
    fn post<'a>(&'a self, post: Post<'a>) -> BoxFuture<'a, Result<Reply, ProviderError>>;
}

/// HTTP and HTTPS. Connections are kept and used again.
#[derive(Clone, Debug)]
pub struct Http {
    client: Connected,
}

/// A client, by the way its connections take.
#[derive(Clone, Debug)]
enum Connected {
    Directly(Client<HttpsConnector<HttpConnector>, Full<Bytes>>),
    ThroughProxy(Client<HttpsConnector<Tunnel<HttpConnector>>, Full<Bytes>>),
}

impl Http {
    /// A client that trusts the certificates of the machine.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn new() -> Result<Self, Error> {
        Ok(Self { client: Connected::Directly(client(connector())?) })
    }

    /// The same for calls of `url`, through the proxy that the environment names for it: `HTTPS_PROXY` or `ALL_PROXY`, in capitals or not,
    /// unless `NO_PROXY` names the host.
    ///
    /// # Errors
    /// If TLS cannot be set up, or the proxy is one that cannot be used.
    pub fn for_url(url: &str) -> Result<Self, Error> {
        let variable = |name: &str| {
            let found = edge::environment(name).or_else(|| edge::environment(&name.to_lowercase()));
            found.unwrap_or_default()
        };
        let https = Some(variable("HTTPS_PROXY")).filter(|proxy| !proxy.is_empty());
        let proxies = Matcher::builder()
            .https(https.unwrap_or_else(|| variable("ALL_PROXY")))
            .no(variable("NO_PROXY"))
            .build();
        let found = url.parse().ok().and_then(|url| proxies.intercept(&url));
        let Some(proxy) = found else { return Self::new() };
        if proxy.uri().scheme_str() != Some("http") {
            return Err(Error::invalid(format!(
                "HTTPS_PROXY names {}, and only proxies that begin with http:// can be used; set it as in http://proxy.example.com:3128",
                proxy.uri()
            )));
        }
        let tunnel = Tunnel::new(proxy.uri().clone(), connector());
        let tunnel = match proxy.basic_auth() {
            Some(auth) => tunnel.with_auth(auth.clone()),
            None => tunnel,
        };
        Ok(Self { client: Connected::ThroughProxy(client(tunnel)?) })
    }

    async fn send(&self, post: Post<'_>) -> Result<Reply, ProviderError> {
        let unsendable = |error: hyper::http::Error| {
            ProviderError::new(Kind::BadRequest, format!("the request cannot be made: {error}"))
        };
        let mut request = hyper::Request::builder()
            .method(Method::POST)
            .uri(post.url)
            .header(CONTENT_TYPE, "application/json");
        if let Some((name, value)) = post.header {
            let mut value = HeaderValue::from_str(value).map_err(|_| {
                ProviderError::new(
                    Kind::Denied,
                    "the key has characters that no key has; check that it was copied whole",
                )
            })?;
            value.set_sensitive(true);
            request = request.header(name, value);
        }
        let request = request.body(Full::new(post.body.into())).map_err(unsendable)?;
        let reply = match &self.client {
            Connected::Directly(client) => client.request(request).await,
            Connected::ThroughProxy(client) => client.request(request).await,
        };
        let reply = reply.map_err(|error| {
            // Without a connection, which includes its name and its certificate, nothing was sent.
            let (kind, what) = match error.is_connect() {
                true => (Kind::Unreachable, "cannot be reached"),
                false => (Kind::Unanswered, "hung up"),
            };
            ProviderError::new(kind, format!("{} {what}: {}", host(post.url), chain(&error)))
        })?;
        let (head, body) = reply.into_parts();
        let body = Limited::new(body, REPLY_BYTES_MAX).collect().await.map_err(|error| {
            let kind =
                if error.is::<LengthLimitError>() { Kind::Garbled } else { Kind::Unanswered };
            ProviderError::new(kind, format!("the answer of {} broke off: {error}", host(post.url)))
        })?;
        let retry_after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        Ok(Reply {
            status: head.status.as_u16(),
            retry_after: retry_after.map(str::to_owned),
            body: body.to_bytes().to_vec(),
        })
    }
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    // Shorter than any call, so that an address where nobody answers is told from a call that takes long.
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT.into()));
    connector
}

fn client<C>(connector: C) -> Result<Client<HttpsConnector<C>, Full<Bytes>>, Error>
where
    C: Clone,
    HttpsConnector<C>: Connect + Clone,
{
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls_config()?)
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector);
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

/// TLS by ring, with the certificates of the machine.
pub(crate) fn tls_config() -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    // What the machine has and cannot be read is left out; a server that needs it is refused.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid(format!("TLS cannot be set up: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

impl Transport for Http {
    fn post<'a>(&'a self, post: Post<'a>) -> BoxFuture<'a, Result<Reply, ProviderError>> {
        Box::pin(self.send(post))
    }
}

fn host(url: &str) -> String {
    let uri = url.parse::<Uri>().ok();
    uri.and_then(|uri| uri.authority().map(ToString::to_string)).unwrap_or_else(|| url.to_owned())
}

/// An error with its causes, since the outermost says only that something failed.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// Where a provider is.
#[derive(Clone, Debug)]
pub struct Endpoint {
    url: String,
    /// Whether plain HTTP may leave this machine.
    is_plain_allowed: bool,
}

impl Endpoint {
    /// One that may be on another machine without TLS, where everybody on the way reads the text and the key.
    #[must_use]
    pub fn unencrypted(url: &str) -> Self {
        Self { url: url.to_owned(), is_plain_allowed: true }
    }
}

impl<T: AsRef<str> + ?Sized> From<&T> for Endpoint {
    fn from(url: &T) -> Self {
        Self { url: url.as_ref().to_owned(), is_plain_allowed: false }
    }
}

/// The URL of `endpoint` as the base of a provider, without a slash at its end.
pub(super) fn base_url(endpoint: &Endpoint) -> Result<String, Error> {
    let url = endpoint.url.as_str();
    let right =
        "write it as in https://api.example.com, or http://127.0.0.1:8080 for one on this machine";
    let uri: Uri = url.parse().map_err(|error| {
        Error::invalid(format!("the provider's url {url:?} cannot be read ({error}); {right}"))
    })?;
    let name = uri.host().unwrap_or_default();
    if name.is_empty() || uri.query().is_some() {
        return Err(Error::invalid(format!(
            "the provider's url {url:?} must have a host and no query; {right}"
        )));
    }
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let is_loopback =
        name == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    match uri.scheme_str() {
        Some("https") => {}
        Some("http") if is_loopback || endpoint.is_plain_allowed => {}
        _ => {
            return Err(Error::invalid(format!(
                "the provider's url {url:?} must begin with https, since the key and the text travel with it; {right}, or \
                 allow plain http to a server of your own network with --plain-http"
            )));
        }
    }
    Ok(url.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Endpoint, base_url};

    #[test]
    fn plain_http_is_for_loopback_alone() {
        for right in [
            "https://example.com/",
            "http://127.0.0.1:1",
            "http://localhost:1/v1",
            "http://[::1]:1",
        ] {
            assert_eq!(base_url(&right.into()).unwrap(), right.trim_end_matches('/'));
        }
        for wrong in [
            "http://example.com",
            "ftp://127.0.0.1",
            "example.com",
            "https://h/?key=x",
            "",
            "http://127.0.0.1.example.com",
        ] {
            let error = base_url(&wrong.into()).unwrap_err().to_string();
            assert!(error.contains("write it as in https://"), "{wrong}: {error}");
        }
        assert!(base_url(&Endpoint::unencrypted("http://192.168.1.5:11434/v1")).is_ok());
        assert!(base_url(&Endpoint::unencrypted("ftp://192.168.1.5")).is_err());
    }
}
