//! Incidents and outages to an SNS topic, to alert people.
//!
//! An alarm of CloudWatch carries only numbers. These messages carry what a post-mortem needs: the standing on every limit
//! and the last acquisitions.

use aws_sdk_sns::Client;
use aws_sdk_sns::error::DisplayErrorContext;
use serde_json::json;
use tollgate::gate::BoxFuture;
use tollgate::observe::Event;
use tollgate::{Error, ErrorKind};

use super::aws::AwsOptions;
use crate::record::{Record, RecordKind};
use crate::sink::RecordSink;

/// The longest subject that SNS accepts, in characters.
pub const SUBJECT_MAX: usize = 100;

/// Publishes to a topic.
#[derive(Debug)]
pub struct Sns {
    client: Client,
    topic: String,
}

impl Sns {
    /// Publishes to the topic with the ARN `topic` with `options`.
    ///
    /// # Errors
    /// If no region is set anywhere.
    pub async fn open(topic: impl Into<String>, options: &AwsOptions) -> Result<Self, Error> {
        let client = Client::new(&options.config("sns").await?);
        Ok(Self { client, topic: topic.into() })
    }
}

impl RecordSink for Sns {
    fn name(&self) -> &'static str {
        "sns"
    }

    fn wants(&self, event: &Event<'_>) -> bool {
        matches!(
            event,
            Event::Violated { .. }
                | Event::Repaired { .. }
                | Event::DegradedBegan { .. }
                | Event::Misconfigured { .. }
                | Event::LimitDiffers(_)
                | Event::DegradedEnded { .. }
        )
    }

    fn write<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let mut failed = None;
            for record in records {
                let Some((subject, message)) = message(record) else { continue };
                let call = self.client.publish().topic_arn(&self.topic);
                // A failure does not stop the others.
                if let Err(error) = call.subject(subject).message(message).send().await {
                    failed = Some(format!("sns: {}", DisplayErrorContext(&error)));
                }
            }
            match failed {
                None => Ok(()),
                Some(text) => Err(Error::new(ErrorKind::Unavailable, text)),
            }
        })
    }
}

/// Returns the subject and the body of the message about `record`.
fn message(record: &Record) -> Option<(String, String)> {
    let id = &record.correlation_id;
    let (subject, body) = match &record.kind {
        RecordKind::Violated(incident) => (
            format!(
                "tollgate incident: {} refused by the provider ({})",
                incident.policy, incident.limit
            ),
            serde_json::to_value(incident).ok()?,
        ),
        RecordKind::Mended { ahead } => (
            "tollgate: an entry from the future was rewritten as used up".to_owned(),
            json!({
                "id": id, "at": record.at.to_string(), "event": "mended", "policy": record.policy,
                "subject": record.subject, "ahead": ahead.humanize(),
            }),
        ),
        RecordKind::DegradedBegan { error } => (
            "tollgate: decisions are made without the store".to_owned(),
            json!({ "id": id, "at": record.at.to_string(), "event": "degraded_began", "error": error }),
        ),
        RecordKind::Misconfigured { error } => (
            "tollgate incident: the store does not serve this broker".to_owned(),
            json!({ "id": id, "at": record.at.to_string(), "event": "misconfigured", "error": error }),
        ),
        RecordKind::LimitDiffers(limit) => (
            format!(
                "tollgate incident: {} reports another limit than {} has",
                limit.upstream, limit.policy
            ),
            json!({ "id": id, "at": record.at.to_string(), "event": "limit_differs", "limit": limit }),
        ),
        RecordKind::DegradedEnded { lasted } => (
            "tollgate: the store answers again".to_owned(),
            json!({ "id": id, "at": record.at.to_string(), "event": "degraded_ended", "lasted": lasted.humanize() }),
        ),
        _ => return None,
    };
    let body = serde_json::to_string_pretty(&body).ok()?;
    Some((self::subject(&subject), body))
}

/// `text` as SNS takes a subject: printable ASCII that begins with a letter or number, at most [`SUBJECT_MAX`] characters.
#[must_use]
pub fn subject(text: &str) -> String {
    let printable = |c: char| if c == ' ' || c.is_ascii_graphic() { c } else { '?' };
    text.chars().map(printable).take(SUBJECT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_short_printable_ascii() {
        assert_eq!(subject("tollgate: é\n\u{7}x"), "tollgate: ???x");
        assert_eq!(subject(&"a".repeat(300)).len(), SUBJECT_MAX);
    }
}
