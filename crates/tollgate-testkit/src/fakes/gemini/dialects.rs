//! Requests and replies in two dialects: Gemini and OpenAI-compatible.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Value, json};

use super::bodies::{self, Reply};
use super::tokens_of;

/// A request in either dialect.
pub(super) struct Asked {
    pub(super) model: String,
    pub(super) system: String,
    pub(super) prompt: String,
    pub(super) most_output: u64,
}

impl Asked {
    pub(super) fn input(&self) -> u64 {
        tokens_of(&self.system) + tokens_of(&self.prompt)
    }

    /// A hash of the request.
    pub(super) fn number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.model, &self.system, &self.prompt).hash(&mut hasher);
        hasher.finish()
    }
}

fn text_of(content: Option<&Value>) -> String {
    let parts = content.and_then(|content| content["parts"].as_array());
    parts.into_iter().flatten().filter_map(|part| part["text"].as_str()).collect()
}

pub(super) fn content(model: &str, body: &Value) -> Option<Asked> {
    let contents = body["contents"].as_array().filter(|contents| !contents.is_empty())?;
    Some(Asked {
        model: model.to_owned(),
        system: text_of(body.get("systemInstruction")),
        prompt: contents.iter().map(|content| text_of(Some(content))).collect(),
        most_output: body["generationConfig"]["maxOutputTokens"].as_u64().unwrap_or(u64::MAX),
    })
}

pub(super) fn chat(body: &Value) -> Option<Asked> {
    let messages = body["messages"].as_array().filter(|messages| !messages.is_empty())?;
    let text = |role: &str| {
        let mine = messages.iter().filter(|message| message["role"] == role);
        mine.filter_map(|message| message["content"].as_str()).collect()
    };
    Some(Asked {
        model: body["model"].as_str()?.to_owned(),
        system: text("system"),
        prompt: text("user"),
        most_output: ["max_completion_tokens", "max_tokens"]
            .iter()
            .find_map(|name| body[*name].as_u64())
            .unwrap_or(u64::MAX),
    })
}

/// Converts a reply to the OpenAI dialect, in which errors come in an array.
pub(super) fn as_chat((status, body): Reply) -> Reply {
    let parsed: Value = serde_json::from_str(&body).unwrap_or_default();
    if parsed.is_array() || (status == 200 && parsed.is_null()) {
        return (status, body);
    }
    if status != 200 {
        return bodies::wrapped((status, body));
    }
    let candidate = &parsed["candidates"][0];
    let finish = match candidate["finishReason"].as_str() {
        Some("STOP") => "stop",
        Some("MAX_TOKENS") => "length",
        _ => "content_filter",
    };
    let usage = &parsed["usageMetadata"];
    let body = json!({
        "object": "chat.completion",
        "choices": [{
            "index": 0,
            "finish_reason": finish,
            "message": {"role": "assistant", "content": text_of(candidate.get("content"))},
        }],
        "usage": {
            "prompt_tokens": usage["promptTokenCount"],
            "completion_tokens": usage["candidatesTokenCount"],
        },
    });
    (200, body.to_string())
}
