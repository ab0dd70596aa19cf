//! Anthropic: messages and token counts.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::Timestamp;
use tollgate_providers::Dialect;

use super::{Completion, FinishReason, Provider, ProviderClient, ProviderError, Request, Usage};

/// A client of Anthropic.
#[derive(Debug)]
pub struct Anthropic {
    client: ProviderClient,
}

impl Anthropic {
    /// Returns Anthropic at the URL of `client`, the part before `/v1/messages`.
    #[must_use]
    pub const fn new(client: ProviderClient) -> Self {
        Self { client }
    }
}

#[async_trait]
impl Provider for Anthropic {
    async fn translate(&self, request: &Request) -> Result<Completion, ProviderError> {
        let mut body = request_body(request);
        body["max_tokens"] = request.max_output_tokens.into();
        let reply = self.client.call(Dialect::Anthropic, "/v1/messages", &body).await?;
        let body: Body = self.client.parse(&reply)?;
        if body.content.is_none() && body.usage.is_none() {
            return Err(self.client.not_provider("JSON of another shape"));
        }
        Ok(parse_completion(body))
    }

    async fn count_tokens(&self, request: &Request) -> Result<u64, ProviderError> {
        let (path, body) = ("/v1/messages/count_tokens", request_body(request));
        let reply = self.client.call(Dialect::Anthropic, path, &body).await?;
        Ok(self.client.parse::<Count>(&reply)?.input_tokens)
    }

    fn day_ends(&self, now: Timestamp) -> Timestamp {
        Dialect::Anthropic.day_ends(now)
    }
}

fn request_body(request: &Request) -> Value {
    json!({
        "model": request.model,
        "system": request.system,
        "messages": [{"role": "user", "content": request.prompt}],
    })
}

#[derive(Deserialize)]
struct Count {
    input_tokens: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    content: Option<Vec<Block>>,
    stop_reason: Option<String>,
    usage: Option<Tokens>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Block {
    /// Absent in blocks of thinking.
    text: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tokens {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

fn parse_completion(body: Body) -> Completion {
    let tokens = body.usage.unwrap_or_default();
    let cached = tokens.cache_read_input_tokens;
    let held = cached.unwrap_or(0) + tokens.cache_creation_input_tokens.unwrap_or(0);
    let usage = Usage {
        input: tokens.input_tokens.map(|input| input.saturating_add(held)),
        output: tokens.output_tokens,
        thoughts: None,
        cached,
    };
    let finish = match body.stop_reason.as_deref() {
        Some("end_turn") => FinishReason::Stop,
        Some("max_tokens" | "model_context_window_exceeded") => FinishReason::MaxTokens,
        Some("refusal") => FinishReason::Blocked("refusal".to_owned()),
        other => FinishReason::Other(other.unwrap_or("no stop reason").to_owned()),
    };
    let text = body.content.into_iter().flatten().map(|block| block.text).collect();
    Completion { text, finish, usage }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &Value) -> Completion {
        parse_completion(serde_json::from_value(body.clone()).unwrap())
    }

    #[test]
    fn only_the_end_of_the_turn_is_success() {
        let finish = |reason: &str| answer(&json!({"content": [], "stop_reason": reason})).finish;
        assert_eq!(finish("end_turn"), FinishReason::Stop);
        assert_eq!(finish("max_tokens"), FinishReason::MaxTokens);
        assert_eq!(finish("refusal"), FinishReason::Blocked("refusal".to_owned()));
        assert_eq!(finish("tool_use"), FinishReason::Other("tool_use".to_owned()));
        assert_ne!(answer(&json!({"content": []})).finish, FinishReason::Stop);
    }

    #[test]
    fn blocks_are_joined_and_cached_input_is_input() {
        let answer = answer(&json!({
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "bon"}, {"type": "text", "text": "jour"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 3, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 20, "output_tokens": 2},
        }));
        assert_eq!(answer.text, "bonjour");
        assert_eq!((answer.usage.input, answer.usage.cached), (Some(33), Some(20)));
        assert_eq!(answer.usage.paid_output(), 2);
    }
}
