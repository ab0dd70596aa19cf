//! The client that all providers share: the URL, the key, the timeout, and parsing of responses.

use std::sync::Arc;

use hyper::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tollgate::internal::timeout;
use tollgate::{Clock, Span};
use tollgate_providers::{
    Dialect, NOT_PROVIDER_HINT, ProviderError, ProviderErrorKind as Kind, classify_error,
};

use super::ApiKey;
use super::http::{Endpoint, Post, Transport, base_url};
use crate::error::Error;

/// The default timeout of a call.
pub const TIMEOUT_DEFAULT: Span = Span::from_secs(180);

/// A client of one provider's API, which sends and receives JSON.
#[derive(Clone, Debug)]
pub struct ProviderClient {
    url: String,
    key: Option<ApiKey>,
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    timeout: Span,
}

impl ProviderClient {
    /// Returns a client of `endpoint`; calls time out after `timeout` on `clock`.
    ///
    /// # Errors
    /// If the URL is invalid.
    pub fn new(
        endpoint: impl Into<Endpoint>,
        key: impl Into<Option<ApiKey>>,
        transport: Arc<dyn Transport>,
        clock: Arc<dyn Clock>,
        timeout: Span,
    ) -> Result<Self, Error> {
        Ok(Self { url: base_url(&endpoint.into())?, key: key.into(), transport, clock, timeout })
    }

    /// Sends `body` to `path`, with the key and the other headers of `dialect`, and returns the body of a 200; any other status is an
    /// error.
    pub(super) async fn call(
        &self,
        dialect: Dialect,
        path: &str,
        body: &Value,
    ) -> Result<Vec<u8>, ProviderError> {
        let url = format!("{}{path}", self.url);
        let header = dialect.key_header();
        let key = self.key.as_ref().map(|key| format!("{}{}", header.prefix, key.text()));
        let mut headers: Vec<_> =
            key.as_deref().map(|key| (header.name, key)).into_iter().collect();
        headers.extend(dialect.version_header());
        let post = Post { url: &url, headers, body: body.to_string().into_bytes() };
        let reply = timeout(&*self.clock, self.timeout, self.transport.post(post)).await;
        let reply = reply.unwrap_or_else(|| {
            let text = format!("{} did not answer within {}", self.url, self.timeout);
            Err(ProviderError::new(Kind::Unanswered, text))
        })?;
        if reply.status != 200 {
            let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::BAD_GATEWAY);
            let now = self.clock.now();
            let mut error = classify_error(&self.url, status, &reply.headers, &reply.body, now);
            if error.kind == Kind::Denied
                && let Some(origin) = self.key.as_ref().and_then(ApiKey::origin)
            {
                error.text = format!("{}; the key is from {origin}", error.text);
            }
            return Err(error);
        }
        Ok(reply.body)
    }

    /// Parses the body of a 200.
    pub(super) fn parse<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, ProviderError> {
        let first = body.trim_ascii_start().first();
        if first.is_some_and(|first| !b"{[".contains(first)) {
            return Err(self.not_provider("something that is not JSON"));
        }
        serde_json::from_slice(body).map_err(|error| {
            let text = format!("the provider's answer cannot be parsed: {error}");
            ProviderError::new(Kind::Garbled, text)
        })
    }

    /// Returns the error for an address of another server.
    pub(super) fn not_provider(&self, with: &str) -> ProviderError {
        let text = format!("{} answered with {with}{}", self.url, NOT_PROVIDER_HINT);
        ProviderError::new(Kind::NotProvider, text)
    }
}
