//! The client that all providers share: the URL, the key, the timeout, and parsing of responses.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tollgate::internal::timeout;
use tollgate::{Clock, Span};

use super::error::{ProviderError, ProviderErrorKind as Kind};
use super::http::{Endpoint, Post, Transport, base_url};
use super::{ApiKey, reply};
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

    /// Sends `body` to `path` and returns the body of a 200; any other status is an error. The key is sent in the header `name`,
    /// after `prefix`.
    pub(super) async fn call(
        &self,
        path: &str,
        name: &'static str,
        prefix: &str,
        body: &Value,
    ) -> Result<Vec<u8>, ProviderError> {
        let url = format!("{}{path}", self.url);
        let key = self.key.as_ref().map(|key| format!("{prefix}{}", key.text()));
        let header = key.as_deref().map(|key| (name, key));
        let post = Post { url: &url, header, body: body.to_string().into_bytes() };
        let reply = timeout(&*self.clock, self.timeout, self.transport.post(post)).await;
        let reply = reply.unwrap_or_else(|| {
            let text = format!("{} did not answer within {}", self.url, self.timeout);
            Err(ProviderError::new(Kind::Unanswered, text))
        })?;
        if reply.status != 200 {
            let retry_after = reply.retry_after.as_deref();
            let mut error = reply::refusal(&self.url, reply.status, &reply.body, retry_after);
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
        let text = format!("{} answered with {with}{}", self.url, reply::NOT_PROVIDER);
        ProviderError::new(Kind::NotProvider, text)
    }
}
