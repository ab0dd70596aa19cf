//! Endpoints with OpenAI's chat completions: OpenAI itself, Gemini's compatible endpoint, and servers of local models.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::Timestamp;

use super::error::{ProviderError, ProviderErrorKind};
use super::{Completion, FinishReason, Provider, ProviderClient, Request, Usage, next_midnight};

/// The URL of OpenAI.
pub const BASE_URL: &str = "https://api.openai.com/v1";

/// The environment variables that may hold the key.
pub const KEY_VARIABLES: [&str; 1] = ["OPENAI_API_KEY"];

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
        let reply =
            self.client.call("/chat/completions", "authorization", "Bearer ", &body).await?;
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
        next_midnight(now, "UTC")
    }
}

fn request_body(request: &Request) -> Value {
    json!({
        "model": request.model,
        "max_tokens": request.max_output_tokens,
        "temperature": 0.3,
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
