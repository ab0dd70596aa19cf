//! Notifies people when retries are exhausted. The result of the notification does not affect the call.
//!
//! The message is sent before the call returns, within [`NOTIFY_MAX`], because a Lambda function freezes background tasks.

use std::fmt::Debug;

use aws_sdk_sns::Client;
use aws_sdk_sns::error::DisplayErrorContext;
use tollgate::gate::BoxFuture;
use tollgate::{Error, ErrorKind, Span, Timestamp};
use tollgate_telemetry::sinks::aws::AwsOptions;
use tollgate_telemetry::sinks::sns::subject;

use crate::error::RetryExhausted;

/// The timeout of a notification.
pub const NOTIFY_MAX: Span = Span::from_secs(10);

/// The environment variable with the ARN of the topic.
pub const TOPIC_VARIABLE: &str = "DRS_ALERTS_TOPIC_ARN";

/// The text of a notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Escalation {
    /// The subject, in the form that SNS accepts.
    pub subject: String,
    /// The details and the recommended actions.
    pub message: String,
}

impl Escalation {
    /// Describes `exhausted` at `at`.
    #[must_use]
    pub fn from_exhausted(exhausted: &RetryExhausted, at: Timestamp) -> Self {
        let RetryExhausted { context, last, attempts, .. } = exhausted;
        let message = format!(
            "DRS API Rate Limit Escalation\n\n\
             Details:\n\
             - Operation: {}\n\
             - Region: {}\n\
             - Account: {}\n\
             - Attempts: {attempts}\n\
             - Error: {last}\n\
             - Correlation id: {}\n\
             - Timestamp: {at}\n\n\
             Recommended Actions:\n\
             1. Check DRS service quotas in AWS Console\n\
             2. Review concurrent job count in region\n\
             3. Consider spreading operations across regions\n\
             4. Contact AWS Support if limits need increase\n",
            context.operation, context.region, context.account, context.correlation_id
        );
        let text =
            format!("DRS Rate Limit Escalation - {} - {}", context.region, context.operation);
        Self { subject: subject(&text), message }
    }
}

/// A way to notify people.
pub trait Escalate: Debug + Send + Sync + 'static {
    /// Sends a notification. An error is logged.
    fn escalate<'a>(&'a self, about: &'a Escalation) -> BoxFuture<'a, Result<(), Error>>;
}

/// Notifies the subscribers of an SNS topic.
#[derive(Clone, Debug)]
pub struct SnsEscalation {
    client: Client,
    topic: String,
}

impl SnsEscalation {
    /// Returns an escalation to the topic with the ARN `topic`.
    #[must_use]
    pub fn new(client: Client, topic: impl Into<String>) -> Self {
        Self { client, topic: topic.into() }
    }

    /// Opens an escalation to the topic with the ARN `topic`, in its region unless `place` names another.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] if `topic` is not the ARN of a topic.
    pub async fn open(topic: &str, place: &AwsOptions) -> Result<Self, crate::Error> {
        let region = check_topic(topic)?.to_owned();
        let place =
            AwsOptions { region: Some(place.region.clone().unwrap_or(region)), ..place.clone() };
        Ok(Self::new(Client::new(&place.config("sns").await?), topic))
    }
}

impl Escalate for SnsEscalation {
    fn escalate<'a>(&'a self, about: &'a Escalation) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let call = self
                .client
                .publish()
                .topic_arn(&self.topic)
                .subject(&about.subject)
                .message(&about.message);
            let failed = |error| {
                let text = format!("sns: {}", DisplayErrorContext(&error));
                Error::new(ErrorKind::Unavailable, text)
            };
            call.send().await.map(drop).map_err(failed)
        })
    }
}

/// Returns the region of the topic with the ARN `topic`.
pub(crate) fn check_topic(topic: &str) -> Result<&str, crate::Error> {
    match topic.split(':').collect::<Vec<_>>().as_slice() {
        ["arn", _, "sns", region, account, name]
            if ![region, account, name].iter().any(|part| part.is_empty()) =>
        {
            Ok(region)
        }
        _ => Err(crate::Error::Invalid(format!(
            "the topic {topic:?} (--alerts-topic or {TOPIC_VARIABLE}) is not the ARN of an SNS topic; it should look like \
             arn:aws:sns:eu-central-1:123456789012:drs-alerts"
        ))),
    }
}

pub(crate) fn timeout_error() -> Error {
    Error::new(ErrorKind::Unavailable, format!("no response within {NOTIFY_MAX}"))
}
