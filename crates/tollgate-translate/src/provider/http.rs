//! One POST over HTTP. Certificates are always checked; plain HTTP is for loopback alone, where emulators and local
//! models are.

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Method, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};
use tollgate::{BoxFuture, Span};

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
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Http {
    /// A client that trusts the certificates of the machine.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub fn new() -> Result<Self, Error> {
        let config = tls_config()?;
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        // Shorter than any call, so that an address where nobody answers is told from a call that takes long.
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT.into()));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        Ok(Self { client: Client::builder(TokioExecutor::new()).build(connector) })
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
        let reply = self.client.request(request).await.map_err(|error| {
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

/// `url` as the base of a provider, without a slash at its end.
pub(super) fn base_url(url: &str) -> Result<String, Error> {
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
        Some("http") if is_loopback => {}
        _ => {
            return Err(Error::invalid(format!(
                "the provider's url {url:?} must begin with https, since the key and the text travel with it; {right}"
            )));
        }
    }
    Ok(url.trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::base_url;

    #[test]
    fn plain_http_is_for_loopback_alone() {
        for right in [
            "https://example.com/",
            "http://127.0.0.1:1",
            "http://localhost:1/v1",
            "http://[::1]:1",
        ] {
            assert_eq!(base_url(right).unwrap(), right.trim_end_matches('/'));
        }
        for wrong in [
            "http://example.com",
            "ftp://127.0.0.1",
            "example.com",
            "https://h/?key=x",
            "",
            "http://127.0.0.1.example.com",
        ] {
            let error = base_url(wrong).unwrap_err().to_string();
            assert!(error.contains("write it as in https://"), "{wrong}: {error}");
        }
    }
}
