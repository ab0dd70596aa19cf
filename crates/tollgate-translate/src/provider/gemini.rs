//! Gemini by `generateContent` and `countTokens`.
//!
//! Thinking is switched off or as low as the model allows: thoughts are charged against the bound of the answer, and a
//! translation that was cut off looks like a good one.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::{BoxFuture, Clock, Span, Timestamp};

use super::call::Caller;
use super::{
    Answer, Endpoint, Finish, Key, Provider, ProviderError, Request, Transport, Usage,
    next_midnight,
};
use crate::error::Error;

/// Where Gemini is.
pub const BASE_URL: &str = "https://generativelanguage.googleapis.com";

/// The environment variables that may hold the key.
pub const KEY_VARIABLES: [&str; 2] = ["GEMINI_API_KEY", "GOOGLE_API_KEY"];

/// Where the day of the quota begins.
const ZONE: &str = "America/Los_Angeles";

/// The client of Gemini.
#[derive(Debug)]
pub struct Gemini {
    caller: Caller,
}

impl Gemini {
    /// A client at `endpoint` (see [`BASE_URL`]) that gives up on a call after `timeout` on `clock`.
    ///
    /// # Errors
    /// If the URL is wrong.
    pub fn new(
        endpoint: impl Into<Endpoint>,
        key: impl Into<Option<Key>>,
        transport: Arc<dyn Transport>,
        clock: Arc<dyn Clock>,
        timeout: Span,
    ) -> Result<Self, Error> {
        Ok(Self { caller: Caller::new(&endpoint.into(), key.into(), transport, clock, timeout)? })
    }

    async fn call(&self, model: &str, verb: &str, body: &Value) -> Result<Vec<u8>, ProviderError> {
        let path = format!("/v1beta/models/{model}:{verb}");
        self.caller.call(&path, "x-goog-api-key", "", body).await
    }
}

impl Provider for Gemini {
    fn translate<'a>(
        &'a self,
        request: &'a Request,
    ) -> BoxFuture<'a, Result<Answer, ProviderError>> {
        Box::pin(async move {
            let body = self.call(&request.model, "generateContent", &body_of(request)).await?;
            let body: Body = self.caller.read(&body)?;
            if body.is_empty() {
                return Err(self.caller.not_provider("JSON of another shape"));
            }
            Ok(answer_of(body))
        })
    }

    fn count_tokens<'a>(
        &'a self,
        request: &'a Request,
    ) -> BoxFuture<'a, Result<u64, ProviderError>> {
        Box::pin(async move {
            let mut inner = body_of(request);
            inner["model"] = format!("models/{}", request.model).into();
            let body = json!({"generateContentRequest": inner});
            let body = self.call(&request.model, "countTokens", &body).await?;
            Ok(self.caller.read::<Count>(&body)?.total_tokens)
        })
    }

    fn day_ends(&self, now: Timestamp) -> Timestamp {
        next_midnight(now, ZONE)
    }
}

fn body_of(request: &Request) -> Value {
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

/// The least thinking that `model` allows; nothing for models that do not think.
fn thinking(model: &str) -> Option<Value> {
    let version = model.strip_prefix("gemini-")?;
    if version.starts_with("2.5-pro") {
        // It cannot be switched off there.
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
    /// A part of the model's thinking, which is no part of the answer.
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

fn answer_of(body: Body) -> Answer {
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
        return Answer { text: String::new(), finish: Finish::Blocked(reason), usage };
    };
    let parts = candidate.content.parts.into_iter().filter(|part| !part.thought);
    let text = parts.map(|part| part.text).collect();
    Answer { text, finish: finish_of(candidate.finish_reason), usage }
}

fn finish_of(reason: Option<String>) -> Finish {
    let Some(reason) = reason else { return Finish::Other("no finish reason".to_owned()) };
    match reason.as_str() {
        "STOP" => Finish::Stop,
        "MAX_TOKENS" => Finish::MaxTokens,
        "SAFETY" | "RECITATION" | "LANGUAGE" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII"
        | "IMAGE_SAFETY" => Finish::Blocked(reason),
        _ => Finish::Other(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &Value) -> Answer {
        answer_of(serde_json::from_value(body.clone()).unwrap())
    }

    #[test]
    fn only_stop_is_success_and_every_other_reason_keeps_its_name() {
        let finish =
            |reason: &str| answer(&json!({"candidates": [{"finishReason": reason}]})).finish;
        assert_eq!(finish("STOP"), Finish::Stop);
        assert_eq!(finish("MAX_TOKENS"), Finish::MaxTokens);
        assert_eq!(finish("RECITATION"), Finish::Blocked("RECITATION".to_owned()));
        assert_eq!(finish("SOMETHING_NEW"), Finish::Other("SOMETHING_NEW".to_owned()));
        assert_ne!(answer(&json!({"candidates": [{}]})).finish, Finish::Stop);
    }

    #[test]
    fn a_blocked_prompt_has_no_candidates() {
        let answer = answer(
            &json!({"promptFeedback": {"blockReason": "OTHER"}, "usageMetadata": {"promptTokenCount": 7}}),
        );
        assert_eq!(answer.finish, Finish::Blocked("OTHER".to_owned()));
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
