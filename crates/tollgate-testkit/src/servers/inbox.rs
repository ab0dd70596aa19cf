//! A topic of SNS with a queue of SQS that gets everything published to it.

use serde_json::Value;

use super::{Fault, Ministack};

/// The queue behind a topic. Reading takes messages out of it.
#[derive(Debug)]
pub struct Inbox {
    topic: String,
    queue: String,
}

impl Inbox {
    /// Makes the topic `name` and subscribes a queue to it.
    pub fn new(emulator: &Ministack, name: &str) -> Result<Self, Fault> {
        let made = emulator.query("sns", &[("Action", "CreateTopic"), ("Name", name)])?;
        let topic = element(&made, "TopicArn")?;
        let made = emulator.query("sqs", &[("Action", "CreateQueue"), ("QueueName", name)])?;
        let queue = element(&made, "QueueUrl")?;
        let arn = topic.replace(":sns:", ":sqs:");
        let subscription = [
            ("Action", "Subscribe"),
            ("TopicArn", &*topic),
            ("Protocol", "sqs"),
            ("Endpoint", &*arn),
        ];
        emulator.query("sns", &subscription)?;
        Ok(Self { topic, queue })
    }

    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Takes the messages that have arrived, each with its `Subject` and `Message`.
    pub fn take(&self, emulator: &Ministack) -> Result<Vec<Value>, Fault> {
        let form = [
            ("Action", "ReceiveMessage"),
            ("QueueUrl", &*self.queue),
            ("MaxNumberOfMessages", "10"),
        ];
        let answer = emulator.query("sqs", &form)?;
        let bodies = answer.split("<Body>").skip(1).map(|rest| {
            let body = rest.split("</Body>").next().unwrap_or_default();
            let plain = body.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">");
            serde_json::from_str(&plain.replace("&amp;", "&"))
                .map_err(|error| Fault::new(format!("{error} in {body}")))
        });
        bodies.collect()
    }
}

fn element(text: &str, name: &str) -> Result<String, Fault> {
    let inner = text.split_once(&format!("<{name}>")).and_then(|(_, rest)| rest.split_once("</"));
    let inner = inner.map(|(inner, _)| inner.to_owned());
    inner.ok_or_else(|| Fault::new(format!("there is no {name} in {text}")))
}
