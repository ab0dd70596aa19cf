//! A client in the making: everything has a default but the region.

use std::sync::Arc;

use aws_config::sts::AssumeRoleProvider;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_drs::config::{Credentials, SharedCredentialsProvider, StalledStreamProtectionConfig};
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::shared::IntoShared;
use aws_smithy_types::retry::RetryConfig as SdkRetries;
use tollgate::{Chance, Clock, Gate, Span, SystemClock};

use super::{DrsClient, Inner, Role};
use crate::buckets::{Buckets, Desk};
use crate::error::Error;
use crate::escalation::Escalate;
use crate::guard::{WAIT_DEFAULT, WAIT_MAX};
use crate::https;
use crate::journal::Traced;
use crate::monitor::Monitor;
use crate::rate::{Rate, Rates};
use crate::retry::RetryConfig;

/// The account of a client that was told none and assumes no role.
const OWN_ACCOUNT: &str = "current";

/// How long one attempt may take.
pub const ATTEMPT_DEFAULT: Span = Span::from_secs(30);

/// A client in the making.
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
    retry: RetryConfig,
    wait_max: Span,
    attempt_max: Span,
    clock: Arc<dyn Clock>,
    chance: Chance,
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
            buckets: Buckets::of_process(),
            retry: RetryConfig::default(),
            wait_max: WAIT_DEFAULT,
            attempt_max: ATTEMPT_DEFAULT,
            clock: Arc::new(SystemClock),
            chance: Chance::default(),
            monitors: Vec::new(),
            escalate: None,
        }
    }

    /// The account whose limits count. Without it, it is the role's, or the word `current`.
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

    /// Another address than the region's own.
    #[must_use]
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self
    }

    /// Settings of the SDK, for credentials and for STS. Without them they come from where AWS tools find them.
    #[must_use]
    pub fn config(mut self, config: SdkConfig) -> Self {
        self.config = Some(config);
        self
    }

    /// Fixed credentials, for servers on this machine.
    #[must_use]
    pub fn keys(mut self, id: &str, secret: &str) -> Self {
        self.keys = Some(Credentials::new(id, secret, None, None, "tollgate options"));
        self
    }

    /// Another HTTP client.
    #[must_use]
    pub fn http_client(mut self, client: impl IntoShared<SharedHttpClient>) -> Self {
        self.http = Some(client.into_shared());
        self
    }

    /// Another rate for all operations that have none of their own (10 per second, burst 20).
    #[must_use]
    pub const fn rate(mut self, rate: Rate) -> Self {
        self.rates.shared = rate;
        self
    }

    /// A rate of its own for `operation`, as in `StartRecovery`.
    #[must_use]
    pub fn rate_for(mut self, operation: impl Into<String>, rate: Rate) -> Self {
        self.rates = self.rates.with(operation, rate);
        self
    }

    /// Takes tokens from `gate` too, which other processes share.
    #[must_use]
    pub fn gate(mut self, gate: Arc<dyn Gate>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Another set of buckets than that of the process.
    #[must_use]
    pub fn buckets(mut self, buckets: Buckets) -> Self {
        self.buckets = buckets;
        self
    }

    /// How failed attempts are repeated.
    #[must_use]
    pub fn retry(mut self, retry: RetryConfig) -> Self {
        self.retry = retry;
        self
    }

    /// The longest wait for a token ([`WAIT_DEFAULT`], [`WAIT_MAX`] at the most).
    #[must_use]
    pub fn wait_max(mut self, wait: Span) -> Self {
        self.wait_max = wait.min(WAIT_MAX);
        self
    }

    /// How long one attempt may take ([`ATTEMPT_DEFAULT`]).
    #[must_use]
    pub const fn attempt_max(mut self, span: Span) -> Self {
        self.attempt_max = span;
        self
    }

    /// Another clock than the machine's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Where correlation ids come from.
    #[must_use]
    pub fn chance(mut self, chance: Chance) -> Self {
        self.chance = chance;
        self
    }

    /// Tells `monitor` what happens. Without any, it goes to `tracing`.
    #[must_use]
    pub fn monitor(mut self, monitor: Arc<dyn Monitor>) -> Self {
        self.monitors.push(monitor);
        self
    }

    /// Tells people when retries are exhausted.
    #[must_use]
    pub fn escalate(mut self, escalate: Arc<dyn Escalate>) -> Self {
        self.escalate = Some(escalate);
        self
    }

    /// The client.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the region is empty, a role is no ARN, or a rate is out of bounds or differs from that of
    /// another client of the same account and region.
    pub async fn connect(self) -> Result<DrsClient, Error> {
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
        let whose = (&account, &self.region, "drs");
        let desk = Desk::open(&self.buckets, whose, &self.rates, self.gate.as_ref(), &self.clock)?;
        let monitor: Arc<dyn Monitor> = if self.monitors.is_empty() {
            Arc::new(Traced)
        } else {
            Arc::new(self.monitors.clone())
        };
        Ok(DrsClient(Arc::new(Inner {
            client: self.client().await,
            desk,
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
