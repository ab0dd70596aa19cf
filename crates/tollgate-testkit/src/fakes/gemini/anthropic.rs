//! Anthropic's messages in front of the same translations.

use serde_json::{Value, json};

use super::bodies::Reply;
use super::dialects::Asked;

/// Reads a message or a request for its count. The text of a message is a string here.
pub(super) fn message(body: &Value) -> Option<Asked> {
    let messages = body["messages"].as_array().filter(|messages| !messages.is_empty())?;
    Some(Asked {
        model: body["model"].as_str()?.to_owned(),
        system: body["system"].as_str().unwrap_or_default().to_owned(),
        prompt: messages.iter().filter_map(|message| message["content"].as_str()).collect(),
        most_output: body["max_tokens"].as_u64().unwrap_or(u64::MAX),
    })
}

/// Converts a reply of Gemini's.
pub(super) fn as_message((status, body): Reply) -> Reply {
    let parsed: Value = serde_json::from_str(&body).unwrap_or_default();
    let parsed = parsed.get(0).unwrap_or(&parsed);
    if parsed.is_null() {
        return (status, body);
    }
    if status != 200 {
        return error(status, parsed["error"]["message"].as_str().unwrap_or_default());
    }
    let candidate = &parsed["candidates"][0];
    let stop = match candidate["finishReason"].as_str() {
        Some("STOP") => "end_turn",
        Some("MAX_TOKENS") => "max_tokens",
        _ => "refusal",
    };
    let text = candidate["content"]["parts"][0]["text"].as_str().unwrap_or_default();
    let usage = &parsed["usageMetadata"];
    let body = json!({
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": parsed["modelVersion"],
        "content": [{"type": "text", "text": text}],
        "stop_reason": stop,
        "stop_sequence": null,
        "usage": {
            "input_tokens": usage["promptTokenCount"],
            "output_tokens": usage["candidatesTokenCount"].as_u64().unwrap_or(0),
        },
    });
    (200, body.to_string())
}

/// An error by its status. An overload has a status of its own there.
pub(super) fn error(status: u16, message: &str) -> Reply {
    let (status, kind) = match status {
        400 => (400, "invalid_request_error"),
        401 | 403 => (401, "authentication_error"),
        404 => (404, "not_found_error"),
        429 => (429, "rate_limit_error"),
        503 => (529, "overloaded_error"),
        other => (other, "api_error"),
    };
    let body = json!({"type": "error", "error": {"type": kind, "message": message}});
    (status, body.to_string())
}
