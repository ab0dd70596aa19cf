//! The options of a client from environment variables: rate, retries, role, alerts and log level.

use tollgate::internal::edge;
use tollgate::{Span, TokenBucket};

use super::{Builder, Role};
use crate::error::Error;
use crate::escalation::{TOPIC_VARIABLE, check_topic};
use crate::journal::Severity;
use crate::retry::RetryOptions;
use tollgate_aws::Rate;

/// Calls per second.
pub const RATE_VARIABLE: &str = "DRS_RATE";
/// Calls at once.
pub const BURST_VARIABLE: &str = "DRS_BURST";
/// Retries after the first attempt of a call.
pub const MAX_RETRIES_VARIABLE: &str = "DRS_MAX_RETRIES";
/// The delay before the first retry, as in `500ms`.
pub const BASE_DELAY_VARIABLE: &str = "DRS_BASE_DELAY";
/// The cap on the delay between retries, as in `60s`.
pub const MAX_DELAY_VARIABLE: &str = "DRS_MAX_DELAY";
/// The ARN of the role to assume.
pub const ROLE_VARIABLE: &str = "DRS_ROLE_ARN";
/// The external id that the role requires.
pub const EXTERNAL_ID_VARIABLE: &str = "DRS_EXTERNAL_ID";
/// The least severity that is logged: `info`, `warning`, `error` or `critical`.
pub const LOG_LEVEL_VARIABLE: &str = "DRS_LOG_LEVEL";

/// Every variable that [`ClientOptions::from_environment`] reads.
pub const VARIABLES: [&str; 9] = [
    TOPIC_VARIABLE,
    RATE_VARIABLE,
    BURST_VARIABLE,
    MAX_RETRIES_VARIABLE,
    BASE_DELAY_VARIABLE,
    MAX_DELAY_VARIABLE,
    ROLE_VARIABLE,
    EXTERNAL_ID_VARIABLE,
    LOG_LEVEL_VARIABLE,
];

/// The options of a client. `None` means the default of [`Builder`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientOptions {
    /// Calls per second (10).
    pub rate: Option<u64>,
    /// Calls at once (20).
    pub burst: Option<u64>,
    /// Retries after the first attempt (5).
    pub max_retries: Option<u32>,
    /// The delay before the first retry (1 s).
    pub base_delay: Option<Span>,
    /// The cap on the delay before jitter (60 s).
    pub max_delay: Option<Span>,
    /// The ARN of the role to assume.
    pub role: Option<String>,
    /// The external id that the role requires.
    pub external_id: Option<String>,
    /// The ARN of the SNS topic for escalations.
    pub alerts_topic: Option<String>,
    /// The least severity that is logged.
    pub log_level: Option<Severity>,
}

impl ClientOptions {
    /// Reads [`VARIABLES`]. An empty variable counts as unset.
    ///
    /// # Errors
    /// [`Error::Invalid`], naming the variable, if a value cannot be parsed.
    pub fn from_environment() -> Result<Self, Error> {
        Self::from_variables(edge::environment)
    }

    /// Reads [`VARIABLES`] from another source than the environment.
    ///
    /// # Errors
    /// As [`from_environment`](Self::from_environment).
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let text = |name: &str| {
            variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let wrong = |name: &str, text: &str, expected: &str| {
            Error::Invalid(format!("{name}={text} is not {expected}; leave it out for the default"))
        };
        let number = |name: &str| match text(name) {
            None => Ok(None),
            Some(text) => {
                let parsed = text.parse::<u64>();
                parsed.map(Some).map_err(|_| wrong(name, &text, "a non-negative integer"))
            }
        };
        let span = |name: &str| match text(name) {
            None => Ok(None),
            Some(text) => {
                let parsed = text.parse::<Span>();
                parsed.map(Some).map_err(|_| wrong(name, &text, "a duration, as in 500ms or 2s"))
            }
        };
        let retries = number(MAX_RETRIES_VARIABLE)?;
        let settings = Self {
            rate: number(RATE_VARIABLE)?,
            burst: number(BURST_VARIABLE)?,
            max_retries: retries.map(|count| u32::try_from(count).unwrap_or(u32::MAX)),
            base_delay: span(BASE_DELAY_VARIABLE)?,
            max_delay: span(MAX_DELAY_VARIABLE)?,
            role: text(ROLE_VARIABLE),
            external_id: text(EXTERNAL_ID_VARIABLE),
            alerts_topic: text(TOPIC_VARIABLE),
            log_level: text(LOG_LEVEL_VARIABLE).map(|text| text.parse()).transpose()?,
        };
        settings.check()?;
        Ok(settings)
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Invalid`], naming the variable, if a rate is 0 or the topic is not an ARN.
    pub fn check(&self) -> Result<(), Error> {
        for (what, variable, number) in
            [("rate", RATE_VARIABLE, self.rate), ("burst", BURST_VARIABLE, self.burst)]
        {
            if number == Some(0) {
                return Err(Error::Invalid(format!(
                    "a {what} of 0 (--{what} or {variable}) lets no call through; give at least 1"
                )));
            }
        }
        self.alerts_topic.as_deref().map_or(Ok(()), |topic| check_topic(topic).map(drop))
    }

    /// Returns the rate of calls.
    #[must_use]
    pub fn rate(&self) -> Rate {
        let TokenBucket { refill, capacity, .. } = Rate::default().bucket;
        let bucket = TokenBucket::per_second(self.rate.unwrap_or(refill));
        Rate::new(bucket.burst(self.burst.unwrap_or(capacity)))
    }

    /// Applies the settings to `retry`.
    #[must_use]
    pub fn retry(&self, mut retry: RetryOptions) -> RetryOptions {
        retry.max_retries = self.max_retries.unwrap_or(retry.max_retries);
        retry.base_delay = self.base_delay.unwrap_or(retry.base_delay);
        retry.max_delay = self.max_delay.unwrap_or(retry.max_delay);
        retry
    }

    /// Applies rate, retries and role to `builder`; retries that are not set are those of `retry`.
    #[must_use]
    pub fn apply(&self, builder: Builder, retry: RetryOptions) -> Builder {
        let builder = builder.rate(self.rate()).retry(self.retry(retry));
        let Some(arn) = &self.role else { return builder };
        let role = Role::new(arn);
        builder.role(match &self.external_id {
            Some(id) => role.external_id(id),
            None => role,
        })
    }
}
