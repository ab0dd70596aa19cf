//! An HTTP client over hyper: pooled connections, TLS where the URL says so, bounded responses.

use std::error::Error as StdError;
use std::fmt;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::{Request, Response, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::{ClientConfig, RootCertStore};
use tollgate::internal::edge::environment;
use tower::Service;

use crate::tls::{self, ClientTls};

/// Connections over TCP, with TLS for `https` URLs.
pub type Connector = HttpsConnector<HttpConnector>;

/// How long an idle connection is kept: less than the 75 s after which a broker closes it, so that no request crosses
/// with the close.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// The HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, as gRPC needs it.
    Http2,
}

/// Returns a connector for `version`; connections that take longer than `connect_max` fail. Without `tls` no server is
/// trusted, for plain connections.
#[must_use]
pub fn connector(
    tls: Option<&ClientTls>,
    version: Version,
    connect_max: Option<Duration>,
) -> Connector {
    secured(tcp(connect_max), tls, version)
}

fn tcp(connect_max: Option<Duration>) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_nodelay(true);
    tcp.enforce_http(false);
    tcp.set_connect_timeout(connect_max);
    tcp
}

fn secured<C>(inner: C, tls: Option<&ClientTls>, version: Version) -> HttpsConnector<C> {
    let config = match tls {
        Some(tls) => ClientConfig::clone(&tls.config()),
        None => tls::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
    };
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
    if let Some(name) = tls.and_then(ClientTls::server_name) {
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name.clone()));
    }
    match version {
        Version::Http1 => builder.enable_http1().wrap_connector(inner),
        Version::Http2 => builder.enable_http2().wrap_connector(inner),
    }
}

/// Connections to one server: through a proxy if the environment names one for it, otherwise direct.
#[derive(Clone, Debug)]
pub enum ProxyConnector {
    /// Without a proxy.
    Direct(Connector),
    /// Through a tunnel that a proxy opens on request.
    Tunnelled(HttpsConnector<Tunnel<HttpConnector>>),
}

impl ProxyConnector {
    /// Creates a connector for `url` that uses the proxy of the environment: `HTTPS_PROXY` or `ALL_PROXY`, upper or lower
    /// case, unless `NO_PROXY` lists the host. URLs with `http` are called directly.
    ///
    /// # Errors
    /// Returns the URL of a proxy whose scheme is not `http`.
    pub fn from_environment(
        url: &str,
        tls: Option<&ClientTls>,
        version: Version,
        connect_max: Option<Duration>,
    ) -> Result<Self, Uri> {
        let variable = |name: &str| {
            let found = environment(name).or_else(|| environment(&name.to_lowercase()));
            found.unwrap_or_default()
        };
        let https = Some(variable("HTTPS_PROXY")).filter(|proxy| !proxy.is_empty());
        let proxies = Matcher::builder()
            .https(https.unwrap_or_else(|| variable("ALL_PROXY")))
            .no(variable("NO_PROXY"))
            .build();
        let Some(proxy) = url.parse().ok().and_then(|url| proxies.intercept(&url)) else {
            return Ok(Self::Direct(connector(tls, version, connect_max)));
        };
        if proxy.uri().scheme_str() != Some("http") {
            return Err(proxy.uri().clone());
        }
        let tunnel = Tunnel::new(proxy.uri().clone(), tcp(connect_max));
        let tunnel = match proxy.basic_auth() {
            Some(auth) => tunnel.with_auth(auth.clone()),
            None => tunnel,
        };
        Ok(Self::Tunnelled(secured(tunnel, tls, version)))
    }
}

impl Service<Uri> for ProxyConnector {
    type Response = <Connector as Service<Uri>>::Response;
    type Error = <Connector as Service<Uri>>::Error;
    type Future = <Connector as Service<Uri>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        match self {
            Self::Direct(connector) => connector.poll_ready(context),
            Self::Tunnelled(connector) => connector.poll_ready(context),
        }
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        match self {
            Self::Direct(connector) => connector.call(server),
            Self::Tunnelled(connector) => connector.call(server),
        }
    }
}

/// A client for HTTP/1.1. Clones share its connections.
#[derive(Clone, Debug)]
pub struct HttpClient {
    pool: Client<ProxyConnector, Full<Bytes>>,
    response_bytes_max: usize,
}

impl HttpClient {
    /// Creates a client whose connections open within `connect_max` and whose responses have at most
    /// `response_bytes_max` bytes.
    #[must_use]
    pub fn new(
        tls: Option<&ClientTls>,
        connect_max: Option<Duration>,
        response_bytes_max: usize,
    ) -> Self {
        let connector = connector(tls, Version::Http1, connect_max);
        Self { pool: pool(ProxyConnector::Direct(connector)), response_bytes_max }
    }

    /// Creates a client for `url` that uses the proxy of the environment, as [`ProxyConnector::from_environment`] does.
    ///
    /// # Errors
    /// Returns the URL of a proxy whose scheme is not `http`.
    pub fn with_environment_proxy(
        url: &str,
        tls: Option<&ClientTls>,
        connect_max: Option<Duration>,
        response_bytes_max: usize,
    ) -> Result<Self, Uri> {
        let connector = ProxyConnector::from_environment(url, tls, Version::Http1, connect_max)?;
        Ok(Self { pool: pool(connector), response_bytes_max })
    }

    /// Sends `request` and reads the whole response, whatever its status. Redirects are not followed.
    ///
    /// # Errors
    /// If there is no complete response.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, SendError> {
        let request = request.map(Full::new);
        let response = self.pool.request(request).await.map_err(|error| {
            if error.is_connect() {
                SendError::NotConnected(error.into())
            } else {
                SendError::Interrupted(error.into())
            }
        })?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, self.response_bytes_max).collect().await;
        let body = body.map_err(|error| {
            if error.is::<LengthLimitError>() {
                SendError::TooLarge(self.response_bytes_max)
            } else {
                SendError::Interrupted(error)
            }
        })?;
        Ok(Response::from_parts(head, body.to_bytes()))
    }
}

fn pool<C: Connect + Clone>(connector: C) -> Client<C, Full<Bytes>> {
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_MAX)
        .build(connector)
}

/// Why there is no response.
#[derive(Debug)]
pub enum SendError {
    /// There was no connection, so nothing was sent.
    NotConnected(Box<dyn StdError + Send + Sync>),
    /// The connection ended early. The server may have processed the request.
    Interrupted(Box<dyn StdError + Send + Sync>),
    /// The response has more than this many bytes.
    TooLarge(usize),
}

impl SendError {
    /// Returns whether the server responded with something other than HTTP.
    #[must_use]
    pub fn is_not_http(&self) -> bool {
        // A server that sends before it is asked has no predicate of its own.
        let is_unasked = |error: &hyper::Error| error.to_string().contains("unexpected message");
        causes(self)
            .filter_map(|cause| cause.downcast_ref::<hyper::Error>())
            .any(|error| error.is_parse() || is_unasked(error))
    }

    /// Returns whether the name of the host was not found.
    #[must_use]
    pub fn is_unknown_host(&self) -> bool {
        matches!(self, Self::NotConnected(_))
            && causes(self).any(|cause| cause.to_string().starts_with("dns error"))
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnected(error) | Self::Interrupted(error) => error.fmt(f),
            Self::TooLarge(most) => write!(f, "the response has more than {most} bytes"),
        }
    }
}

impl StdError for SendError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::NotConnected(error) | Self::Interrupted(error) => Some(&**error),
            Self::TooLarge(_) => None,
        }
    }
}

/// Iterates over `error` and its causes, outermost first.
pub fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Returns the innermost cause of `error`, which is usually the most specific.
pub fn root_cause<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    causes(error).last().unwrap_or(error)
}
