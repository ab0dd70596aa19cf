//! Options of a table.

use std::sync::Arc;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::{
    BehaviorVersion, Config, Credentials, Region, SharedCredentialsProvider, SharedHttpClient,
};
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use tollgate::clock::SystemClock;
use tollgate::observe::Observer;
use tollgate::{Clock, Error, ErrorKind, Span};

use crate::attempts::RequestObserver;
use crate::client::TableClient;
use crate::clock::{CheckedClock, DateReader};
use crate::error::Target;
use crate::format::Format;

/// Default timeout of one attempt.
pub const ATTEMPT_TIMEOUT_DEFAULT: Span = Span::from_millis(500);

/// The longest timeout of one attempt: every retry must end while its token lives.
pub const ATTEMPT_TIMEOUT_MAX: Span = Span::from_secs(5);

/// Timeout of a connection attempt.
pub const CONNECT_TIMEOUT: Span = Span::from_secs(2);

/// Default of [`Options::skew_max`].
pub const SKEW_MAX_DEFAULT: Span = Span::from_millis(1_500);

/// Options of [`DynamoDb`](crate::DynamoDb). Region and credentials default to those of AWS tools (environment, profile,
/// container, instance).
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) table: String,
    region: Option<String>,
    endpoint: Option<String>,
    credentials: Option<(String, String)>,
    attempt_timeout: Span,
    skew_max: Option<Span>,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn Observer>>,
    pub(crate) format: Format,
}

impl Options {
    /// Returns the defaults for `table`.
    #[must_use]
    pub fn new(table: impl Into<String>) -> Self {
        Self {
            table: table.into(),
            region: None,
            endpoint: None,
            credentials: None,
            attempt_timeout: ATTEMPT_TIMEOUT_DEFAULT,
            skew_max: Some(SKEW_MAX_DEFAULT),
            clock: Arc::new(SystemClock),
            observer: None,
            format: Format::default(),
        }
    }

    /// Sets the region, as in `eu-central-1`.
    #[must_use]
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// Sets the endpoint, as in `http://127.0.0.1:8000`.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }

    /// Sets fixed credentials, which are never shown or logged.
    #[must_use]
    pub fn credentials(mut self, key: impl Into<String>, secret: impl Into<String>) -> Self {
        self.credentials = Some((key.into(), secret.into()));
        self
    }

    /// Sets the timeout of one attempt, at most [`ATTEMPT_TIMEOUT_MAX`].
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: impl Into<Span>) -> Self {
        self.attempt_timeout = timeout.into().min(ATTEMPT_TIMEOUT_MAX);
        self
    }

    /// Sets how far the clock may be from the service's before an operation fails and the clock is corrected; `None` turns the
    /// comparison off.
    #[must_use]
    pub const fn skew_max(mut self, skew_max: Option<Span>) -> Self {
        self.skew_max = skew_max;
        self
    }

    /// Sets the deciding clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sends [`Event::Tried`](tollgate::observe::Event::Tried) to `observer` for every request.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Sets the format of written items: 2, or 1 to share the table with programs of the version before. Both are read, and an
    /// item of format 2 stays one. With 1 every operation is a compare-and-swap of the whole entry.
    ///
    /// ```
    /// use tollgate_dynamodb::Options;
    ///
    /// let options = Options::new("tollgate").format(1)?;
    /// let error = options.format(3).unwrap_err();
    /// assert_eq!(error.to_string(), "dynamodb: format 3 is not one of 1, 2");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for any other number.
    pub fn format(mut self, format: u8) -> Result<Self, Error> {
        self.format = Format::parse(format)?;
        Ok(self)
    }

    /// Connects to the table, with its clock.
    pub(crate) async fn open(self) -> Result<(TableClient, Arc<CheckedClock>), Error> {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_TIMEOUT.into())
            .operation_attempt_timeout(self.attempt_timeout.into())
            .build();
        let clock =
            Arc::new(CheckedClock::new(self.clock.clone(), self.skew_max, self.attempt_timeout));
        let (region, credentials) = self.identity().await?;
        let place = match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => format!("DynamoDB in {region}"),
        };
        let mut config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .http_client(https())
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            .region(region)
            .interceptor(DateReader(Arc::clone(&clock)));
        config.set_credentials_provider(credentials);
        config.set_endpoint_url(self.endpoint);
        let client = Client::from_conf(config.build());
        let target = Target { table: self.table, place };
        let requests = RequestObserver { observer: self.observer, clock: self.clock };
        Ok((TableClient { client, target, requests }, clock))
    }

    /// Returns region and credentials: those that are set, else those of AWS tools.
    async fn identity(&self) -> Result<(Region, Option<SharedCredentialsProvider>), Error> {
        let fixed = self.credentials.as_ref().map(|(key, secret)| {
            let credentials = Credentials::new(key, secret, None, None, "tollgate options");
            SharedCredentialsProvider::new(credentials)
        });
        let region = self.region.clone().map(Region::new);
        if let (Some(region), Some(_)) = (&region, &fixed) {
            return Ok((region.clone(), fixed));
        }
        let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(https());
        if let Some(region) = region {
            loader = loader.region(region);
        }
        let found = loader.load().await;
        let region = found.region().cloned().ok_or_else(|| {
            Error::new(
                ErrorKind::Invalid,
                "dynamodb: no region is set; set region in the configuration, or AWS_REGION",
            )
        })?;
        Ok((region, fixed.or_else(|| found.credentials_provider())))
    }
}

/// A client for HTTPS and plain HTTP with one TLS stack.
fn https() -> SharedHttpClient {
    Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https()
}
