//! Gemini: `generateContent` and `countTokens`.
//!
//! Thinking is disabled, or as low as the model allows: thoughts count against the maximum length of the answer, and a truncated
//! translation looks like a good one.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::Timestamp;
use tollgate_providers::Dialect;

use super::{Completion, FinishReason, Provider, ProviderClient, ProviderError, Request, Usage};

/// A client of Gemini.
#[derive(Debug)]
pub struct Gemini {
    client: ProviderClient,
}

impl Gemini {
    /// Returns Gemini at the URL of `client`.
    #[must_use]
    pub const fn new(client: ProviderClient) -> Self {
        Self { client }
    }

    async fn call(&self, model: &str, verb: &str, body: &Value) -> Result<Vec<u8>, ProviderError> {
        let path = format!("/v1beta/models/{model}:{verb}");
        self.client.call(Dialect::Gemini, &path, body).await
    }
}

#[async_trait]
impl Provider for Gemini {
    async fn translate(&self, request: &Request) -> Result<Completion, ProviderError> {
        let body = self.call(&request.model, "generateContent", &request_body(request)).await?;
        let body: Body = self.client.parse(&body)?;
        if body.is_empty() {
            return Err(self.client.not_provider("JSON of another shape"));
        }
        Ok(parse_completion(body))
    }

    async fn count_tokens(&self, request: &Request) -> Result<u64, ProviderError> {
        let mut inner = request_body(request);
        inner["model"] = format!("models/{}", request.model).into();
        let body = json!({"generateContentRequest": inner});
        let body = self.call(&request.model, "countTokens", &body).await?;
        Ok(self.client.parse::<Count>(&body)?.total_tokens)
    }

    fn day_ends(&self, now: Timestamp) -> Timestamp {
        Dialect::Gemini.day_ends(now)
    }
}

fn request_body(request: &Request) -> Value {
    let mut config = json!({"maxOutputTokens": request.max_output_tokens, "temperature": 0.3, "candidateCount": 1});
    if let Some(thinking) = thinking(&request.model) {
        config["thinkingConfig"] = thinking;
    }
    json!({
        "systemInstruction": {"parts": [{"text": request.system}]},
        "contents": [{"role": "user", "parts": [{"text": request.prompt}]}],
        "generationConfig": config,
    })
}

/// Returns the lowest level of thinking that `model` allows; `None` for models without thinking.
fn thinking(model: &str) -> Option<Value> {
    let version = model.strip_prefix("gemini-")?;
    if version.starts_with("2.5-pro") {
        // It cannot be disabled there.
        return Some(json!({"thinkingBudget": 128}));
    }
    if version.starts_with("2.5") {
        return Some(json!({"thinkingBudget": 0}));
    }
    let major: u32 = version.split(['.', '-']).next()?.parse().ok()?;
    (3 <= major).then(|| json!({"thinkingLevel": "low"}))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Count {
    total_tokens: u64,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Body {
    candidates: Option<Vec<Candidate>>,
    prompt_feedback: Option<Feedback>,
    usage_metadata: Option<Metadata>,
}

impl Body {
    const fn is_empty(&self) -> bool {
        self.candidates.is_none() && self.prompt_feedback.is_none() && self.usage_metadata.is_none()
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Candidate {
    content: Content,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Content {
    parts: Vec<Part>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Part {
    text: String,
    /// Whether the part is thinking, which does not belong to the answer.
    thought: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Feedback {
    block_reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    prompt_token_count: Option<u64>,
    candidates_token_count: Option<u64>,
    thoughts_token_count: Option<u64>,
    cached_content_token_count: Option<u64>,
}

fn parse_completion(body: Body) -> Completion {
    let meta = body.usage_metadata.unwrap_or_default();
    let usage = Usage {
        input: meta.prompt_token_count,
        output: meta.candidates_token_count,
        thoughts: meta.thoughts_token_count,
        cached: meta.cached_content_token_count,
    };
    // A blocked prompt has no candidates at all.
    let Some(candidate) = body.candidates.into_iter().flatten().next() else {
        let reason = body.prompt_feedback.and_then(|feedback| feedback.block_reason);
        let reason = reason.unwrap_or_else(|| "no candidates".to_owned());
        return Completion { text: String::new(), finish: FinishReason::Blocked(reason), usage };
    };
    let parts = candidate.content.parts.into_iter().filter(|part| !part.thought);
    let text = parts.map(|part| part.text).collect();
    Completion { text, finish: parse_finish_reason(candidate.finish_reason), usage }
}

fn parse_finish_reason(reason: Option<String>) -> FinishReason {
    let Some(reason) = reason else { return FinishReason::Other("no finish reason".to_owned()) };
    match reason.as_str() {
        "STOP" => FinishReason::Stop,
        "MAX_TOKENS" => FinishReason::MaxTokens,
        "SAFETY" | "RECITATION" | "LANGUAGE" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII"
        | "IMAGE_SAFETY" => FinishReason::Blocked(reason),
        _ => FinishReason::Other(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &Value) -> Completion {
        parse_completion(serde_json::from_value(body.clone()).unwrap())
    }

    #[test]
    fn only_stop_is_success_and_every_other_reason_keeps_its_name() {
        let finish =
            |reason: &str| answer(&json!({"candidates": [{"finishReason": reason}]})).finish;
        assert_eq!(finish("STOP"), FinishReason::Stop);
        assert_eq!(finish("MAX_TOKENS"), FinishReason::MaxTokens);
        assert_eq!(finish("RECITATION"), FinishReason::Blocked("RECITATION".to_owned()));
        assert_eq!(finish("SOMETHING_NEW"), FinishReason::Other("SOMETHING_NEW".to_owned()));
        assert_ne!(answer(&json!({"candidates": [{}]})).finish, FinishReason::Stop);
    }

    #[test]
    fn a_blocked_prompt_has_no_candidates() {
        let answer = answer(
            &json!({"promptFeedback": {"blockReason": "OTHER"}, "usageMetadata": {"promptTokenCount": 7}}),
        );
        assert_eq!(answer.finish, FinishReason::Blocked("OTHER".to_owned()));
        assert_eq!(answer.usage.input, Some(7));
    }

    #[test]
    fn parts_are_joined_and_thoughts_are_neither_text_nor_output() {
        let answer = answer(&json!({
            "candidates": [{"finishReason": "STOP", "content": {"role": "model", "parts": [
                {"text": "hm", "thought": true}, {"text": "bon"}, {"text": "jour"}]}}],
            "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 2, "thoughtsTokenCount": 5, "newField": {}}
        }));
        assert_eq!(answer.text, "bonjour");
        assert_eq!((answer.usage.output, answer.usage.paid_output()), (Some(2), 7));
    }

    #[test]
    fn thinking_is_as_low_as_the_model_allows() {
        assert_eq!(thinking("gemini-2.5-flash"), Some(json!({"thinkingBudget": 0})));
        assert_eq!(thinking("gemini-2.5-pro"), Some(json!({"thinkingBudget": 128})));
        assert_eq!(thinking("gemini-3-flash-preview"), Some(json!({"thinkingLevel": "low"})));
        assert_eq!(thinking("gemini-3.8-flash"), Some(json!({"thinkingLevel": "low"})));
        assert_eq!(thinking("gemini-2.0-flash"), None);
        assert_eq!(thinking("gemma-3"), None);
    }
}
