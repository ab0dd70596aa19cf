//! The HTTP API of a broker: JSON requests and responses over pooled connections.

use std::fmt;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use hyper::{Method, Request, Uri};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tollgate::{Error, ErrorKind, Span};
use tollgate_protocol::json::Problem;
use tollgate_transport::http::{HttpClient, SendError};
use tollgate_transport::tls::Fault;

use crate::options::ClientOptions;
use crate::target::{RESPONSE_BYTES_MAX, Target};

const AGENT: &str = concat!("tollgate/", env!("CARGO_PKG_VERSION"));

/// Everything but unreserved characters. A dot is escaped, too: a path segment of dots would name another path.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// Percent-encodes `text` as one path segment or query value.
#[must_use]
pub fn percent_encode(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// A client of the HTTP API.
///
/// [`HttpGate`](crate::HttpGate) uses it for the operations of a gate; it also serves calls that a gate does not have,
/// such as listing policies.
pub struct ApiClient {
    target: Target,
    http: HttpClient,
}

/// A response, whatever its status.
#[derive(Clone, Debug)]
pub struct ApiResponse {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: Bytes,
}

/// Why there is no response.
#[derive(Debug)]
pub enum ApiError {
    /// The deadline passed.
    TimedOut(Span),
    /// A TLS handshake failed.
    Tls(Fault),
    /// Another failure of the connection.
    Send(SendError),
    /// The request cannot be expressed in HTTP.
    Unsendable(String),
}

impl ApiClient {
    /// Creates a client for the broker at `base`, an `http` or `https` URL that may have a path.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if `base` is not a URL, or if a certificate of `options` cannot be used; then the source
    /// is a [`TlsError`](tollgate_transport::tls::TlsError).
    pub fn new(
        base: &str,
        options: &ClientOptions,
        connect_max: Duration,
        response_bytes_max: usize,
    ) -> Result<Self, Error> {
        let address: Uri = base.parse().map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("{base:?} is not a URL: {error}"))
        })?;
        let is_secure = address.scheme_str() == Some("https");
        let tls = is_secure.then(|| options.tls()).transpose()?;
        let http = HttpClient::new(tls.as_ref(), Some(connect_max), response_bytes_max);
        Ok(Self { target: options.target_at(address, tls), http })
    }

    pub(crate) fn for_target(target: Target) -> Self {
        let http = HttpClient::new(target.tls.as_ref(), None, RESPONSE_BYTES_MAX);
        Self { target, http }
    }

    pub(crate) const fn target(&self) -> &Target {
        &self.target
    }

    /// Sends a request within `deadline`. `path` may have a query; `body` is sent as JSON.
    ///
    /// # Errors
    /// If there is no response. A response with an error status is not an error.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        deadline: Span,
    ) -> Result<ApiResponse, ApiError> {
        let request = self.request(method, path, body).map_err(ApiError::Unsendable)?;
        let sent =
            tollgate::internal::timeout(&*self.target.clock, deadline, self.http.send(request))
                .await;
        match sent {
            None => Err(ApiError::TimedOut(deadline)),
            Some(Ok(response)) => {
                self.target.note_response();
                let status = response.status().as_u16();
                Ok(ApiResponse { status, body: response.into_body() })
            }
            Some(Err(error)) => match self.target.fault(&error) {
                Some(fault) => Err(ApiError::Tls(fault)),
                None => Err(ApiError::Send(error)),
            },
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Request<Bytes>, String> {
        let body = match body {
            Some(body) => serde_json::to_vec(body).map_err(|error| error.to_string())?.into(),
            None => Bytes::new(),
        };
        let base = self.target.address.to_string();
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", base.trim_end_matches('/')))
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, AGENT);
        if let Some(value) = &self.target.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        request.body(body).map_err(|error| error.to_string())
    }
}

impl ApiResponse {
    /// Returns whether the status is a success.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        matches!(self.status, 200..=299)
    }

    /// Parses the body.
    ///
    /// # Errors
    /// If it is not the JSON of a `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }

    /// Returns the problem document in the body, if there is one.
    #[must_use]
    pub fn problem(&self) -> Option<Problem> {
        self.parse().ok()
    }
}

/// Omits the key.
impl fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiClient").field("target", &self.target).finish_non_exhaustive()
    }
}
