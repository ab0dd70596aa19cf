//! A guard for any client of the AWS SDK: an HTTP client that takes a token before every attempt.
//!
//! Refused: interceptors, which cannot wait; a retry strategy, which cannot be replaced; the adaptive mode, which sends
//! retries without a token. Every attempt of every page passes through the HTTP connector once, and that may wait.

use std::borrow::Cow;
use std::sync::Arc;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient,
    SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_runtime_api::shared::IntoShared;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::byte_stream::ByteStream;
use tollgate::clock::SystemClock;
use tollgate::{Clock, Gate, Span};

use crate::bucket::Bucket;
use crate::buckets::{Buckets, ServiceBuckets};
use crate::error::Error;
use crate::rate::{Rate, Rates};

/// The longest wait for a token. Requests are signed before they wait, and AWS accepts signatures for five minutes.
pub const WAIT_MAX: Span = Span::from_mins(1);

/// The default wait for a token.
pub const WAIT_DEFAULT: Span = Span::from_secs(30);

/// The longest `Retry-After` that is honoured.
pub const RETRY_AFTER_MAX: Span = Span::from_mins(15);

/// How much of the body of an error is searched for its name.
const ERROR_BODY_MAX: usize = 16_384;

/// Guards SDK clients of one service in one region of one account.
///
/// ```no_run
/// # async fn make(config: aws_config::SdkConfig) -> Result<(), tollgate_aws::Error> {
/// use tollgate_aws::{SdkGuard, https};
///
/// let guarded = SdkGuard::new("sns", "123456789012", "eu-central-1").around(https())?;
/// let client = aws_sdk_sns::Client::from_conf(aws_sdk_sns::config::Builder::from(&config).http_client(guarded).build());
/// # drop(client); Ok(()) }
/// ```
///
/// Set it on the client of a *service*, not on the shared configuration, so that loading credentials takes no tokens.
/// Leave `operation_attempt_timeout` unset or longer than the wait, which is part of the attempt. The SDK does not retry
/// after a timeout of the wait; [`Error::find_source`] finds that error.
#[derive(Clone, Debug)]
pub struct SdkGuard {
    service: String,
    account: Arc<str>,
    region: Arc<str>,
    rates: Rates,
    wait_max: Span,
    gate: Option<Arc<dyn Gate>>,
    buckets: Buckets,
    clock: Arc<dyn Clock>,
}

impl SdkGuard {
    /// Returns a guard of ten calls per second with bursts of twenty, in this process.
    #[must_use]
    pub fn new(
        service: impl Into<String>,
        account: impl Into<Arc<str>>,
        region: impl Into<Arc<str>>,
    ) -> Self {
        Self {
            service: service.into(),
            account: account.into(),
            region: region.into(),
            rates: Rates::default(),
            wait_max: WAIT_DEFAULT,
            gate: None,
            buckets: Buckets::process_wide(),
            clock: Arc::new(SystemClock),
        }
    }

    /// Sets the rate of all operations without a rate of their own.
    #[must_use]
    pub const fn rate(mut self, rate: Rate) -> Self {
        self.rates.shared = rate;
        self
    }

    /// Sets the rate of `operation`, as in `Publish`, which gets a bucket of its own.
    #[must_use]
    pub fn rate_for(mut self, operation: impl Into<String>, rate: Rate) -> Self {
        self.rates = self.rates.with(operation, rate);
        self
    }

    /// Also takes tokens from `gate`, which other processes share.
    #[must_use]
    pub fn gate(mut self, gate: Arc<dyn Gate>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Sets how long a call waits for a token, at most [`WAIT_MAX`].
    #[must_use]
    pub fn wait_max(mut self, wait: impl Into<Span>) -> Self {
        self.wait_max = wait.into().min(WAIT_MAX);
        self
    }

    /// Replaces the set of buckets that the process shares.
    #[must_use]
    pub fn buckets(mut self, buckets: Buckets) -> Self {
        self.buckets = buckets;
        self
    }

    /// Replaces the system clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Returns an HTTP client that takes a token before every call of `inner`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a rate is out of bounds, or differs from that of another client of the same service, region
    /// and account.
    pub fn around(
        &self,
        inner: impl IntoShared<SharedHttpClient>,
    ) -> Result<SharedHttpClient, Error> {
        let owner = (&self.account, &self.region, self.service.as_str());
        let gate = self.gate.as_ref();
        let buckets = ServiceBuckets::new(&self.buckets, owner, &self.rates, gate, &self.clock)?;
        Ok(SharedHttpClient::new(Guarded {
            inner: inner.into_shared(),
            buckets,
            wait_max: self.wait_max,
        }))
    }
}

#[derive(Clone, Debug)]
struct Guarded<I> {
    inner: I,
    buckets: ServiceBuckets,
    wait_max: Span,
}

impl HttpClient for Guarded<SharedHttpClient> {
    fn http_connector(
        &self,
        settings: &HttpConnectorSettings,
        components: &RuntimeComponents,
    ) -> SharedHttpConnector {
        let inner = self.inner.http_connector(settings, components);
        SharedHttpConnector::new(Guarded {
            inner,
            buckets: self.buckets.clone(),
            wait_max: self.wait_max,
        })
    }
}

impl HttpConnector for Guarded<SharedHttpConnector> {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let bucket = Arc::clone(self.buckets.for_operation(operation_name(&request).as_deref()));
        let (inner, wait_max) = (self.inner.clone(), self.wait_max);
        HttpConnectorFuture::new(async move {
            let failed = |error: Error| ConnectorError::other(error.into(), None);
            bucket.take(wait_max).await.map_err(failed)?;
            let response = inner.call(request).await?;
            adapt(&bucket, response).await
        })
    }
}

/// Returns the name of the operation in `request`, which AWS protocols put in a header (JSON), in the path (DRS, CBOR) or in
/// a form (SNS, STS). `None` for others, such as S3.
#[must_use]
pub fn operation_name(request: &HttpRequest) -> Option<Cow<'_, str>> {
    let is_name = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric());
    if let Some(target) = request.headers().get("x-amz-target") {
        let name = target.rsplit_once('.').map_or(target, |(_, name)| name);
        return Some(Cow::Borrowed(name));
    }
    let without_query = request.uri().split(['?', '#']).next()?;
    let name = without_query.rsplit('/').next()?;
    if is_name(name) && name.starts_with(|c: char| c.is_ascii_uppercase()) {
        return Some(Cow::Borrowed(name));
    }
    let form = std::str::from_utf8(request.body().bytes()?).ok()?;
    let name = form.split('&').find_map(|pair| pair.strip_prefix("Action="))?;
    is_name(name).then(|| Cow::Owned(name.to_owned()))
}

/// Adapts the rate of the bucket to the response, and returns the response.
async fn adapt(bucket: &Bucket, response: HttpResponse) -> Result<HttpResponse, ConnectorError> {
    let status = response.status();
    if status.is_success() {
        bucket.succeeded();
        return Ok(response);
    }
    let named = response.headers().get("x-amzn-errortype").map(is_throttling);
    let (is_throttled, response) = match (status.as_u16(), named) {
        (429, _) => (true, response),
        (_, Some(is_throttled)) => (is_throttled, response),
        // Older protocols name the error in the body only.
        (400 | 403 | 503, None) => names_throttling(response).await?,
        _ => (false, response),
    };
    if is_throttled {
        let wait = response.headers().get("retry-after").and_then(|text| text.trim().parse().ok());
        bucket.throttled(wait.map(|seconds| Span::from_secs(seconds).min(RETRY_AFTER_MAX))).await;
    }
    Ok(response)
}

/// Returns whether the body of an error names a throttling error, and the response.
async fn names_throttling(
    mut response: HttpResponse,
) -> Result<(bool, HttpResponse), ConnectorError> {
    let body = std::mem::replace(response.body_mut(), SdkBody::empty());
    let bytes = ByteStream::new(body)
        .collect()
        .await
        .map_err(|error| ConnectorError::io(error.into()))?
        .into_bytes();
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(ERROR_BODY_MAX)]);
    let is_throttled = is_throttling(&text);
    *response.body_mut() = SdkBody::from(bytes);
    Ok((is_throttled, response))
}

/// Returns whether `code` is one of the names that AWS services have for throttling.
#[must_use]
pub fn is_throttling(code: &str) -> bool {
    const NAMES: [&str; 6] = [
        "Throttl",
        "TooManyRequests",
        "RequestLimitExceeded",
        "ProvisionedThroughputExceeded",
        "SlowDown",
        "BandwidthLimitExceeded",
    ];
    NAMES.iter().any(|name| code.contains(name))
}
