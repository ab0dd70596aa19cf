//! HTTP POST. Certificates are always verified; plain HTTP is limited to loopback, where emulators and local models run, unless
//! it is allowed explicitly. HTTPS uses the proxy of the environment.

use std::fmt::Debug;
use std::net::IpAddr;

use async_trait::async_trait;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Request, Uri};
use tollgate::Span;
use tollgate_providers::{ProviderError, ProviderErrorKind as Kind};
use tollgate_transport::http::{HttpClient, SendError, causes};
use tollgate_transport::tls::ClientTls;

use crate::error::Error;

/// The maximum size of a response, in bytes.
pub const REPLY_BYTES_MAX: usize = 16 * 1_024 * 1_024;

/// The timeout of connecting.
const CONNECT_TIMEOUT: Span = Span::from_secs(20);

/// A request to send.
#[derive(Clone, Debug)]
pub struct Post<'a> {
    /// The URL.
    pub url: &'a str,
    /// Headers by name and value, such as the one with the key.
    pub headers: Vec<(&'static str, &'a str)>,
    /// The body, JSON.
    pub body: Vec<u8>,
}

/// A response.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Vec<u8>,
}

/// Sends requests; a trait, so that tests need no network.
#[async_trait]
pub trait Transport: Debug + Send + Sync + 'static {
    /// Sends one request. A response with any status is `Ok`.
    async fn post(&self, post: Post<'_>) -> Result<Reply, ProviderError>;
}

/// HTTP and HTTPS. Connections are pooled.
#[derive(Clone, Debug)]
pub struct Http {
    client: HttpClient,
}

impl Http {
    /// Creates a client that trusts the authorities of the operating system.
    #[must_use]
    pub fn new() -> Self {
        let (tls, connect_max) = (ClientTls::native(), Some(CONNECT_TIMEOUT.into()));
        Self { client: HttpClient::new(Some(&tls), connect_max, REPLY_BYTES_MAX) }
    }

    /// Creates a client for `url` that uses the proxy of the environment: `HTTPS_PROXY` or `ALL_PROXY`, upper or lower
    /// case, unless `NO_PROXY` lists the host.
    ///
    /// # Errors
    /// If the proxy cannot be used.
    pub fn for_url(url: &str) -> Result<Self, Error> {
        let (tls, connect_max) = (ClientTls::native(), Some(CONNECT_TIMEOUT.into()));
        let client =
            HttpClient::with_environment_proxy(url, Some(&tls), connect_max, REPLY_BYTES_MAX);
        let client = client.map_err(|proxy| {
            Error::invalid(format!(
                "HTTPS_PROXY names {proxy}, and only proxies that begin with http:// can be used; set it as in \
                 http://proxy.example.com:3128"
            ))
        })?;
        Ok(Self { client })
    }
}

#[async_trait]
impl Transport for Http {
    async fn post(&self, post: Post<'_>) -> Result<Reply, ProviderError> {
        let unsendable = |error: hyper::http::Error| {
            ProviderError::new(Kind::BadRequest, format!("the request cannot be made: {error}"))
        };
        let mut request = Request::post(post.url).header(CONTENT_TYPE, "application/json");
        for (name, value) in post.headers {
            let mut value = HeaderValue::from_str(value).map_err(|_| {
                ProviderError::new(
                    Kind::Denied,
                    "the key has characters that no key has; check that it was copied whole",
                )
            })?;
            value.set_sensitive(true);
            request = request.header(name, value);
        }
        let request = request.body(Bytes::from(post.body)).map_err(unsendable)?;
        let reply = self.client.send(request).await.map_err(|error| {
            let (kind, what) = match &error {
                // Without a connection, DNS and TLS included, nothing was sent.
                SendError::NotConnected(_) => (Kind::Unreachable, "cannot be reached"),
                SendError::Interrupted(_) => (Kind::Unanswered, "closed the connection"),
                SendError::TooLarge(_) => (Kind::Garbled, "sent too much"),
            };
            ProviderError::new(kind, format!("{} {what}: {}", host(post.url), chain(&error)))
        })?;
        let (head, body) = reply.into_parts();
        Ok(Reply { status: head.status.as_u16(), headers: head.headers, body: body.to_vec() })
    }
}

impl Default for Http {
    fn default() -> Self {
        Self::new()
    }
}

fn host(url: &str) -> String {
    let uri = url.parse::<Uri>().ok();
    uri.and_then(|uri| uri.authority().map(ToString::to_string)).unwrap_or_else(|| url.to_owned())
}

/// Formats an error with its causes.
fn chain(error: &SendError) -> String {
    // The first cause repeats the error.
    let causes: Vec<String> = causes(error).skip(1).map(ToString::to_string).collect();
    if causes.is_empty() { error.to_string() } else { causes.join(": ") }
}

/// The address of a provider.
#[derive(Clone, Debug)]
pub struct Endpoint {
    url: String,
    /// Whether plain HTTP may leave this machine.
    is_plain_allowed: bool,
}

impl Endpoint {
    /// Returns an address that may use plain HTTP to another machine, which exposes the text and the key to the network.
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

/// Validates the URL of `endpoint` and removes its trailing slash.
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
