//! Chat completions, embeddings and models of `OpenAI`.

use serde_json::{Value, json};

use super::answer::{Answer, Finish, Usage};
use super::encoding::vector;
use super::encoding::vector_base64;
use super::play::Event;
use super::request::{Dialect, Endpoint, Request, ToolCall};

/// When every answer was made, so that equal requests get equal bytes.
pub(super) const CREATED: u64 = 1_790_000_000;

/// Reads the request to `path` below `/v1/`; the message of a 400, or `None` if there is no such path.
pub(super) fn read(path: &str, body: &Value) -> Option<Result<Request, String>> {
    let endpoint = match path {
        "chat/completions" => Endpoint::Chat,
        "responses" => Endpoint::Responses,
        "embeddings" => Endpoint::Embeddings,
        "models" => {
            return Some(Ok(Request::new(Dialect::OpenAi, Endpoint::Models, "")));
        }
        _ => return None,
    };
    let Some(model) = body["model"].as_str() else {
        return Some(Err("you must provide a model parameter".to_owned()));
    };
    let mut request = Request::new(Dialect::OpenAi, endpoint, model);
    let read = match endpoint {
        Endpoint::Chat => read_chat(&mut request, body),
        Endpoint::Responses => super::responses::read(&mut request, body),
        _ => read_embeddings(&mut request, body),
    };
    Some(read.map(|()| request))
}

fn read_chat(request: &mut Request, body: &Value) -> Result<(), String> {
    let messages = body["messages"].as_array().filter(|messages| !messages.is_empty());
    let messages = messages.ok_or("[] is too short - 'messages'")?;
    for message in messages {
        read_content(request, &message["content"]);
        if message["role"] == "tool" {
            request.tool_result = message["content"].as_str().map(str::to_owned);
        }
    }
    for tool in body["tools"].as_array().into_iter().flatten() {
        request.push_text(&tool["function"].to_string());
        request.offer(&tool["function"]["name"], &tool["function"]["parameters"]);
    }
    let most = body["max_completion_tokens"].as_u64();
    request.output_max = most.or_else(|| body["max_tokens"].as_u64());
    request.answers = body["n"].as_u64().unwrap_or(1).clamp(1, 8);
    request.is_stream = body["stream"] == true;
    request.option = body["stream_options"]["include_usage"] == true;
    Ok(())
}

/// Reads a text, or parts of text and images, of chat or responses.
pub(super) fn read_content(request: &mut Request, content: &Value) {
    if let Some(text) = content.as_str() {
        request.push_text(text);
    }
    for part in content.as_array().into_iter().flatten() {
        if let Some(text) = part["text"].as_str() {
            request.push_text(text);
        }
        let is_image = part["type"]
            .as_str()
            .is_some_and(|kind| kind.ends_with("image_url") || kind == "input_image");
        request.images += u64::from(is_image);
    }
}

fn read_embeddings(request: &mut Request, body: &Value) -> Result<(), String> {
    let input = &body["input"];
    request.option = body["encoding_format"] == "base64";
    if let Some(text) = input.as_str() {
        request.inputs.push(text.to_owned());
        return Ok(());
    }
    let parts = input.as_array().filter(|parts| !parts.is_empty()).ok_or("'$.input' is invalid")?;
    // Tokens, or lists of tokens, instead of texts.
    if parts.iter().all(Value::is_number) {
        request.inputs.push("token ".repeat(parts.len()));
        return Ok(());
    }
    for part in parts {
        let tokens = part.as_array().map(|tokens| "token ".repeat(tokens.len()));
        let text = tokens.or_else(|| part.as_str().map(str::to_owned));
        request.inputs.push(text.ok_or("'$.input' is invalid")?);
    }
    Ok(())
}

pub(super) fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
        },
    })
}

const fn finish(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::Tool => "tool_calls",
    }
}

fn tool_call(tool: &ToolCall, hash: u64) -> Value {
    let function = json!({"name": tool.name, "arguments": tool.arguments.to_string()});
    json!({"id": format!("call_{hash:016x}"), "type": "function", "function": function})
}

/// The answer as one body, which this provider indents.
pub(super) fn chat(request: &Request, answer: &Answer) -> String {
    let choice = |index: u64| {
        let message = match &answer.tool {
            Some(tool) => {
                json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [tool_call(tool, answer.hash)]})
            }
            None => {
                json!({"role": "assistant", "content": answer.text(), "refusal": null, "annotations": []})
            }
        };
        json!({"index": index, "message": message, "logprobs": null, "finish_reason": finish(answer.finish)})
    };
    let mut body = json!({
        "id": format!("chatcmpl-{:016x}", answer.hash),
        "object": "chat.completion",
        "created": CREATED,
        "model": request.model,
        "choices": (0..request.answers).map(choice).collect::<Vec<_>>(),
        "service_tier": "default",
        "system_fingerprint": "fp_fake",
    });
    if let Some(used) = answer.usage {
        body["usage"] = usage(used);
    }
    format!("{body:#}\n")
}

/// The answer as a stream. Members keep the order of the provider, with one behind the usage.
pub(super) fn chat_events(request: &Request, answer: &Answer) -> Vec<Event> {
    let model = Value::from(request.model.as_str());
    let chunk = |choices: &str, used: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-{:016x}\",\"object\":\"chat.completion.chunk\",\"created\":{CREATED},\"model\":{model},\
             \"service_tier\":\"default\",\"system_fingerprint\":\"fp_fake\",\"choices\":[{choices}]{used},\"obfuscation\":\"x7\"}}\n\n",
            answer.hash
        )
    };
    let null = if request.option { ",\"usage\":null" } else { "" };
    let delta = |index: u64, delta: &Value, reason: Option<&str>| {
        let reason = Value::from(reason);
        chunk(
            &format!(
                "{{\"index\":{index},\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{reason}}}"
            ),
            null,
        )
    };
    let mut events = Vec::new();
    for index in 0..request.answers {
        let role = json!({"role": "assistant", "content": "", "refusal": null});
        events.push(Event::new(delta(index, &role, None)));
        for word in &answer.words {
            events.push(Event::text(delta(index, &json!({"content": word}), None), word));
        }
        if let Some(tool) = &answer.tool {
            let mut first = tool_call(tool, answer.hash);
            first["index"] = json!(0);
            first["function"]["arguments"] = json!("");
            events
                .push(Event::text(delta(index, &json!({"tool_calls": [first]}), None), &tool.name));
            let arguments = tool.arguments.to_string();
            let rest = json!({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]});
            events.push(Event::text(delta(index, &rest, None), &arguments));
        }
        events.push(Event::new(delta(index, &json!({}), Some(finish(answer.finish)))));
    }
    if let (true, Some(used)) = (request.option, answer.usage) {
        events.push(Event::usage(chunk("", &format!(",\"usage\":{}", usage(used)))));
    }
    events.push(Event::new("data: [DONE]\n\n".to_owned()));
    events
}

pub(super) fn embeddings(request: &Request) -> String {
    let data = request.inputs.iter().enumerate().map(|(index, text)| {
        let embedding =
            if request.option { json!(vector_base64(text)) } else { json!(vector(text)) };
        json!({"object": "embedding", "index": index, "embedding": embedding})
    });
    let used = json!({"prompt_tokens": request.input(), "total_tokens": request.input()});
    let data = data.collect::<Vec<_>>();
    format!(
        "{:#}\n",
        json!({"object": "list", "data": data, "model": request.model, "usage": used})
    )
}

pub(super) fn models() -> String {
    let model =
        |id: &str| json!({"id": id, "object": "model", "created": CREATED, "owned_by": "system"});
    format!("{:#}\n", json!({"object": "list", "data": [model("gpt-4o-mini"), model("gpt-4o")]}))
}
