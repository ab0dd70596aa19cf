//! Telling people when retries are exhausted (R001.13). Whether that works is nothing to the call that failed.
//!
//! The message is sent before the call returns, for at most [`NOTIFY_MAX`]: in a Lambda function a task in the background
//! is frozen with it.

use std::fmt::Debug;

use aws_sdk_sns::Client;
use aws_sdk_sns::error::DisplayErrorContext;
use tollgate::{BoxFuture, Error, ErrorKind, Span, Timestamp};
use tollgate_telemetry::sinks::aws::Place;
use tollgate_telemetry::sinks::sns::subject;

use crate::error::RetryExhausted;

/// How long a caller waits at most for people to be told.
pub const NOTIFY_MAX: Span = Span::from_secs(10);

/// The environment variable with the ARN of the topic.
pub const TOPIC_VARIABLE: &str = "DRS_ALERTS_TOPIC_ARN";

/// What people are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Escalation {
    /// Short, and as SNS takes it.
    pub subject: String,
    /// Everything, and what to do.
    pub message: String,
}

impl Escalation {
    /// About `exhausted`, at `at`.
    #[must_use]
    pub fn of(exhausted: &RetryExhausted, at: Timestamp) -> Self {
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

/// A way to tell people.
pub trait Escalate: Debug + Send + Sync + 'static {
    /// Tells them. An error is logged.
    fn escalate<'a>(&'a self, about: &'a Escalation) -> BoxFuture<'a, Result<(), Error>>;
}

/// Tells the subscribers of an SNS topic.
#[derive(Clone, Debug)]
pub struct SnsEscalation {
    client: Client,
    topic: String,
}

impl SnsEscalation {
    /// To the topic with the ARN `topic`.
    #[must_use]
    pub fn new(client: Client, topic: impl Into<String>) -> Self {
        Self { client, topic: topic.into() }
    }

    /// To the topic with the ARN `topic`, in the region of the topic unless `place` names another.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] if `topic` is not the ARN of a topic.
    pub async fn connect(topic: &str, place: &Place) -> Result<Self, crate::Error> {
        let region = check_topic(topic)?.to_owned();
        let place = Place { region: Some(place.region.clone().unwrap_or(region)), ..place.clone() };
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

/// The region of the topic with the ARN `topic`.
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

pub(crate) fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, format!("no answer within {NOTIFY_MAX}"))
}
