//! Messages and token counts of Anthropic.

use serde_json::{Value, json};

use super::answer::{Answer, Finish, Usage};
use super::play::Event;
use super::request::{Dialect, Endpoint, Request};

/// Reads the request to `path` below `/v1/`; the message of a 400, or `None` if there is no such path.
pub(super) fn read(path: &str, body: &Value) -> Option<Result<Request, String>> {
    let endpoint = match path {
        "messages" => Endpoint::Messages,
        "messages/count_tokens" => Endpoint::CountTokens,
        "models" => return Some(Ok(Request::new(Dialect::Anthropic, Endpoint::Models, ""))),
        _ => return None,
    };
    Some(read_messages(endpoint, body))
}

fn read_messages(endpoint: Endpoint, body: &Value) -> Result<Request, String> {
    let model = body["model"].as_str().ok_or("model: Field required")?;
    let mut request = Request::new(Dialect::Anthropic, endpoint, model);
    let messages = body["messages"].as_array().filter(|messages| !messages.is_empty());
    let messages = messages.ok_or("messages: at least one message is required")?;
    request.output_max = body["max_tokens"].as_u64();
    if endpoint == Endpoint::Messages && request.output_max.is_none() {
        return Err("max_tokens: Field required".to_owned());
    }
    read_content(&mut request, &body["system"]);
    for message in messages {
        read_content(&mut request, &message["content"]);
    }
    for tool in body["tools"].as_array().into_iter().flatten() {
        request.push_text(&tool.to_string());
        request.offer(&tool["name"], &tool["input_schema"]);
    }
    request.is_stream = body["stream"] == true;
    Ok(request)
}

fn read_content(request: &mut Request, content: &Value) {
    if let Some(text) = content.as_str() {
        request.push_text(text);
    }
    for block in content.as_array().into_iter().flatten() {
        match block["type"].as_str() {
            Some("text") => request.push_text(block["text"].as_str().unwrap_or_default()),
            Some("image") => request.images += 1,
            Some("tool_result") => {
                let content = &block["content"];
                let text = content.as_str().or_else(|| content[0]["text"].as_str());
                let text = text.unwrap_or_default().to_owned();
                request.push_text(&text);
                request.tool_result = Some(text);
            }
            _ => {}
        }
    }
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.input,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": usage.output,
        "service_tier": "standard",
    })
}

const fn stop_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "end_turn",
        Finish::Length => "max_tokens",
        Finish::Tool => "tool_use",
    }
}

/// The content block; without its content if `is_begun` only.
fn block(answer: &Answer, is_begun: bool) -> Value {
    let Some(tool) = &answer.tool else {
        let text = if is_begun { String::new() } else { answer.text() };
        return json!({"type": "text", "text": text});
    };
    let input = if is_begun { json!({}) } else { tool.arguments.clone() };
    json!({"type": "tool_use", "id": format!("toolu_{:016x}", answer.hash), "name": tool.name, "input": input})
}

fn message(request: &Request, answer: &Answer, is_begun: bool) -> Value {
    let content = if is_begun { Vec::new() } else { vec![block(answer, false)] };
    let reason = (!is_begun).then(|| stop_reason(answer.finish));
    let mut message = json!({
        "id": format!("msg_{:016x}", answer.hash), "type": "message", "role": "assistant", "model": request.model,
        "content": content, "stop_reason": reason, "stop_sequence": null,
    });
    if let Some(used) = answer.usage {
        // A stream begins with the whole input and one token of output.
        message["usage"] = usage(if is_begun { Usage { output: 1, ..used } } else { used });
    }
    message
}

/// The answer as one body.
pub(super) fn body(request: &Request, answer: &Answer) -> String {
    message(request, answer, false).to_string()
}

/// The answer as a stream.
pub(super) fn events(request: &Request, answer: &Answer) -> Vec<Event> {
    let event = |kind: &str, mut data: Value| {
        data["type"] = json!(kind);
        format!("event: {kind}\ndata: {data}\n\n")
    };
    let delta = |delta: Value| event("content_block_delta", json!({"index": 0, "delta": delta}));
    let mut events = vec![
        Event::new(event("message_start", json!({"message": message(request, answer, true)}))),
        Event::new(event(
            "content_block_start",
            json!({"index": 0, "content_block": block(answer, true)}),
        )),
        Event::new(event("ping", json!({}))),
    ];
    for word in &answer.words {
        events.push(Event::text(delta(json!({"type": "text_delta", "text": word})), word));
    }
    if let Some(tool) = &answer.tool {
        let arguments = tool.arguments.to_string();
        let said = format!("{} {arguments}", tool.name);
        events.push(Event::text(
            delta(json!({"type": "input_json_delta", "partial_json": arguments})),
            &said,
        ));
    }
    events.push(Event::new(event("content_block_stop", json!({"index": 0}))));
    let reason = json!({"stop_reason": stop_reason(answer.finish), "stop_sequence": null});
    let mut end = json!({"delta": reason});
    if let Some(used) = answer.usage {
        end["usage"] = json!({"output_tokens": used.output});
    }
    events.push(Event::usage(event("message_delta", end)));
    events.push(Event::new(event("message_stop", json!({}))));
    events
}

pub(super) fn count(request: &Request) -> String {
    json!({"input_tokens": request.input()}).to_string()
}

pub(super) fn models() -> String {
    let model = json!({"type": "model", "id": "claude-haiku-4-5", "display_name": "Claude Haiku 4.5", "created_at": "2025-10-15T00:00:00Z"});
    json!({"data": [model], "has_more": false, "first_id": "claude-haiku-4-5", "last_id": "claude-haiku-4-5"}).to_string()
}
