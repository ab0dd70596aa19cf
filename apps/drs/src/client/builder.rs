//! The builder of a client.

use std::sync::Arc;

use aws_config::sts::AssumeRoleProvider;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_drs::config::{Credentials, SharedCredentialsProvider, StalledStreamProtectionConfig};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::shared::IntoShared;
use aws_smithy_types::retry::RetryConfig as SdkRetries;
use tollgate::clock::SystemClock;
use tollgate::strategy::RandomSource;
use tollgate::{Clock, Gate, Span};

use super::{DrsClient, Inner, Role};
use crate::error::Error;
use crate::escalation::Escalate;
use crate::journal::Traced;
use crate::monitor::Monitor;
use crate::retry::RetryOptions;
use tollgate_aws::{Buckets, ServiceBuckets};
use tollgate_aws::{Rate, Rates};
use tollgate_aws::{WAIT_DEFAULT, WAIT_MAX, https};

/// The account of a client without a configured account or role.
const OWN_ACCOUNT: &str = "current";

/// The default timeout of an attempt.
pub const ATTEMPT_DEFAULT: Span = Span::from_secs(30);

/// The builder of a client. Everything but the region has a default.
#[derive(Clone, Debug)]
pub struct Builder {
    region: Arc<str>,
    account: Option<Arc<str>>,
    role: Option<Role>,
    endpoint: Option<String>,
    config: Option<SdkConfig>,
    keys: Option<Credentials>,
    http: Option<SharedHttpClient>,
    rates: Rates,
    gate: Option<Arc<dyn Gate>>,
    buckets: Buckets,
    retry: RetryOptions,
    wait_max: Span,
    attempt_max: Span,
    clock: Arc<dyn Clock>,
    chance: RandomSource,
    monitors: Vec<Arc<dyn Monitor>>,
    escalate: Option<Arc<dyn Escalate>>,
}

impl Builder {
    pub(super) fn new(region: Arc<str>) -> Self {
        Self {
            region,
            account: None,
            role: None,
            endpoint: None,
            config: None,
            keys: None,
            http: None,
            rates: Rates::default(),
            gate: None,
            buckets: Buckets::process_wide(),
            retry: RetryOptions::default(),
            wait_max: WAIT_DEFAULT,
            attempt_max: ATTEMPT_DEFAULT,
            clock: Arc::new(SystemClock),
            chance: RandomSource::default(),
            monitors: Vec::new(),
            escalate: None,
        }
    }

    /// Sets the account that rates belong to; by default that of the role, or `current`.
    #[must_use]
    pub fn account(mut self, account: impl Into<Arc<str>>) -> Self {
        self.account = Some(account.into());
        self
    }

    /// Assumes `role` first.
    #[must_use]
    pub fn role(mut self, role: Role) -> Self {
        self.role = Some(role);
        self
    }

    /// Sets another endpoint than the region's.
    #[must_use]
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self
    }

    /// Sets the configuration of the SDK, for credentials and for STS; by default it is loaded from the environment.
    #[must_use]
    pub fn config(mut self, config: SdkConfig) -> Self {
        self.config = Some(config);
        self
    }

    /// Sets fixed credentials, for tests.
    #[must_use]
    pub fn keys(mut self, id: &str, secret: &str) -> Self {
        self.keys = Some(Credentials::new(id, secret, None, None, "tollgate options"));
        self
    }

    /// Sets the HTTP client.
    #[must_use]
    pub fn http_client(mut self, client: impl IntoShared<SharedHttpClient>) -> Self {
        self.http = Some(client.into_shared());
        self
    }

    /// Sets the rate of all operations without a rate of their own (10 per second, burst 20).
    #[must_use]
    pub const fn rate(mut self, rate: Rate) -> Self {
        self.rates.shared = rate;
        self
    }

    /// Sets the rate of `operation`, as in `StartRecovery`, which gets a bucket of its own.
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

    /// Replaces the set of buckets that the process shares.
    #[must_use]
    pub fn buckets(mut self, buckets: Buckets) -> Self {
        self.buckets = buckets;
        self
    }

    /// Sets the retries.
    #[must_use]
    pub fn retry(mut self, retry: RetryOptions) -> Self {
        self.retry = retry;
        self
    }

    /// Sets how long a call waits for a token ([`WAIT_DEFAULT`]), at most [`WAIT_MAX`].
    #[must_use]
    pub fn wait_max(mut self, wait: Span) -> Self {
        self.wait_max = wait.min(WAIT_MAX);
        self
    }

    /// Sets the timeout of an attempt ([`ATTEMPT_DEFAULT`]).
    #[must_use]
    pub const fn attempt_max(mut self, span: Span) -> Self {
        self.attempt_max = span;
        self
    }

    /// Replaces the system clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the source of correlation ids.
    #[must_use]
    pub fn chance(mut self, chance: RandomSource) -> Self {
        self.chance = chance;
        self
    }

    /// Adds a monitor. Without any, events are logged by `tracing`.
    #[must_use]
    pub fn monitor(mut self, monitor: Arc<dyn Monitor>) -> Self {
        self.monitors.push(monitor);
        self
    }

    /// Sets how people are notified when retries are exhausted.
    #[must_use]
    pub fn escalate(mut self, escalate: Arc<dyn Escalate>) -> Self {
        self.escalate = Some(escalate);
        self
    }

    /// Builds the client, and loads the settings of the SDK that were not given.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the region is empty, a role is not an ARN, or a rate is out of bounds or differs from that of
    /// another client of the same account and region.
    pub async fn open(self) -> Result<DrsClient, Error> {
        if self.region.is_empty() {
            return Err(Error::Invalid(
                "no region is set; name one, as in eu-central-1".to_owned(),
            ));
        }
        if let (Some(config), Some(_)) = (&self.config, &self.role)
            && (config.time_source().is_none() || config.sleep_impl().is_none())
        {
            return Err(Error::Invalid(
                "the settings of the SDK have no time source, which assuming a role needs; load them with \
                 aws_config::defaults"
                    .to_owned(),
            ));
        }
        let account = match (&self.account, &self.role) {
            (Some(account), _) => Arc::clone(account),
            (None, Some(role)) => role.account()?,
            (None, None) => OWN_ACCOUNT.into(),
        };
        let (owner, gate) = ((&account, &self.region, "drs"), self.gate.as_ref());
        let buckets = ServiceBuckets::new(&self.buckets, owner, &self.rates, gate, &self.clock)?;
        let monitor: Arc<dyn Monitor> = if self.monitors.is_empty() {
            Arc::new(Traced)
        } else {
            Arc::new(self.monitors.clone())
        };
        Ok(DrsClient(Arc::new(Inner {
            client: self.client().await,
            buckets,
            account,
            region: self.region,
            retry: self.retry,
            wait_max: self.wait_max,
            attempt_max: self.attempt_max,
            clock: self.clock,
            chance: self.chance,
            monitor,
            escalate: self.escalate,
        })))
    }

    async fn client(&self) -> aws_sdk_drs::Client {
        let region = Region::new(self.region.to_string());
        let config = match &self.config {
            Some(config) => config.clone(),
            None => {
                let mut loader =
                    aws_config::defaults(BehaviorVersion::latest()).http_client(https());
                if let Some(keys) = &self.keys {
                    loader = loader.credentials_provider(keys.clone());
                }
                loader.region(region.clone()).load().await
            }
        };
        let mut settings = aws_sdk_drs::config::Builder::from(&config)
            .region(region.clone())
            .http_client(self.http.clone().unwrap_or_else(https))
            // One layer of retries, and one bound on the time of an attempt: ours.
            .retry_config(SdkRetries::disabled())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
        if let Some(endpoint) = &self.endpoint {
            settings = settings.endpoint_url(endpoint);
        }
        if let Some(role) = &self.role {
            settings = settings.credentials_provider(assumed(role, region, &config).await);
        }
        aws_sdk_drs::Client::from_conf(settings.build())
    }
}

async fn assumed(role: &Role, region: Region, config: &SdkConfig) -> SharedCredentialsProvider {
    let mut provider =
        AssumeRoleProvider::builder(&role.arn).session_name(&role.session_name).region(region);
    if let Some(id) = &role.external_id {
        provider = provider.external_id(id);
    }
    let provider = provider.configure(config);
    match config.credentials_provider() {
        Some(own) => SharedCredentialsProvider::new(provider.build_from_provider(own).await),
        None => SharedCredentialsProvider::new(provider.build().await),
    }
}
