//! Endpoints with OpenAI's chat completions: OpenAI itself, Gemini's compatible endpoint, and servers of local models.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::Timestamp;
use tollgate_providers::{Dialect, is_openai_reasoning_model};

use super::{
    Completion, FinishReason, Provider, ProviderClient, ProviderError, ProviderErrorKind, Request,
    Usage,
};

/// The URL of OpenAI.
pub const BASE_URL: &str = "https://api.openai.com/v1";

/// A client of a compatible endpoint.
#[derive(Debug)]
pub struct OpenAi {
    client: ProviderClient,
}

impl OpenAi {
    /// Returns the endpoint at the URL of `client`, the part before `/chat/completions`.
    #[must_use]
    pub const fn new(client: ProviderClient) -> Self {
        Self { client }
    }
}

#[async_trait]
impl Provider for OpenAi {
    async fn translate(&self, request: &Request) -> Result<Completion, ProviderError> {
        let body = request_body(request);
        let reply = self.client.call(Dialect::OpenAi, "/chat/completions", &body).await?;
        let body: Body = self.client.parse(&reply)?;
        if body.choices.is_none() && body.usage.is_none() {
            return Err(self.client.not_provider("JSON of another shape"));
        }
        Ok(parse_completion(body))
    }

    /// Always fails: the API has no such call.
    async fn count_tokens(&self, _request: &Request) -> Result<u64, ProviderError> {
        let text = "a compatible endpoint does not count tokens; use the estimate";
        Err(ProviderError::new(ProviderErrorKind::BadRequest, text))
    }

    fn day_ends(&self, now: Timestamp) -> Timestamp {
        Dialect::OpenAi.day_ends(now)
    }
}

/// Models that reason take `max_completion_tokens` and reject `max_tokens` and a temperature. Compatible servers know `max_tokens`, some
/// of them nothing else.
fn request_body(request: &Request) -> Value {
    let maximum = match is_openai_reasoning_model(&request.model) {
        true => "max_completion_tokens",
        false => "max_tokens",
    };
    json!({
        "model": request.model,
        maximum: request.max_output_tokens,
        "messages": [
            {"role": "system", "content": request.system},
            {"role": "user", "content": request.prompt},
        ],
    })
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    choices: Option<Vec<Choice>>,
    usage: Option<Tokens>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Choice {
    message: Message,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Message {
    content: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tokens {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

fn parse_completion(body: Body) -> Completion {
    let tokens = body.usage.unwrap_or_default();
    let usage =
        Usage { input: tokens.prompt_tokens, output: tokens.completion_tokens, ..Usage::default() };
    let Some(choice) = body.choices.into_iter().flatten().next() else {
        return Completion {
            text: String::new(),
            finish: FinishReason::Other("no choices".to_owned()),
            usage,
        };
    };
    let finish = match choice.finish_reason.as_deref() {
        Some("stop") => FinishReason::Stop,
        Some("length") => FinishReason::MaxTokens,
        Some("content_filter") => FinishReason::Blocked("content_filter".to_owned()),
        other => FinishReason::Other(other.unwrap_or("no finish reason").to_owned()),
    };
    Completion { text: choice.message.content.unwrap_or_default(), finish, usage }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_has_the_name_that_the_model_takes_and_no_temperature_is_forced() {
        let request = |model: &str| Request {
            model: model.to_owned(),
            system: "s".to_owned(),
            prompt: "p".to_owned(),
            max_output_tokens: 9,
        };
        for (model, maximum, other) in [
            ("gpt-5-mini", "max_completion_tokens", "max_tokens"),
            ("o4-mini", "max_completion_tokens", "max_tokens"),
            ("gpt-4o", "max_tokens", "max_completion_tokens"),
            ("llama3.1", "max_tokens", "max_completion_tokens"),
        ] {
            let body = request_body(&request(model));
            assert_eq!((&body[maximum], body.get(other)), (&json!(9), None), "{model}");
            assert_eq!(body.get("temperature"), None);
        }
    }
}
