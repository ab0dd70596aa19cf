//! The responses API of `OpenAI`.

use serde_json::{Value, json};

use super::answer::{Answer, Finish};
use super::openai::{CREATED, read_content};
use super::play::Event;
use super::request::Request;

pub(super) fn read(request: &mut Request, body: &Value) -> Result<(), String> {
    if let Some(text) = body["instructions"].as_str() {
        request.push_text(text);
    }
    match &body["input"] {
        Value::String(text) => request.push_text(text),
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                read_content(request, &item["content"]);
                if item["type"] == "function_call_output" {
                    request.tool_result = item["output"].as_str().map(str::to_owned);
                    request.push_text(&item["output"].to_string());
                }
            }
        }
        _ => {
            return Err("One of \"input\" or \"previous_response_id\" must be provided.".to_owned());
        }
    }
    for tool in body["tools"].as_array().into_iter().flatten() {
        request.push_text(&tool.to_string());
        request.offer(&tool["name"], &tool["parameters"]);
    }
    request.output_max = body["max_output_tokens"].as_u64();
    request.is_stream = body["stream"] == true;
    Ok(())
}

/// The output item, as far as it is made.
fn item(answer: &Answer, is_done: bool) -> Value {
    let status = if is_done { "completed" } else { "in_progress" };
    if let Some(tool) = &answer.tool {
        let arguments = if is_done { tool.arguments.to_string() } else { String::new() };
        return json!({
            "id": format!("fc_{:016x}", answer.hash), "type": "function_call", "status": status,
            "call_id": format!("call_{:016x}", answer.hash), "name": tool.name, "arguments": arguments,
        });
    }
    let content = if is_done { vec![part(&answer.text())] } else { Vec::new() };
    json!({"id": item_id(answer), "type": "message", "status": status, "role": "assistant", "content": content})
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn item_id(answer: &Answer) -> String {
    let kind = if answer.tool.is_some() { "fc" } else { "msg" };
    format!("{kind}_{:016x}", answer.hash)
}

fn response(request: &Request, answer: &Answer, is_done: bool) -> Value {
    let is_cut = answer.finish == Finish::Length;
    let status = match (is_done, is_cut) {
        (false, _) => "in_progress",
        (true, true) => "incomplete",
        (true, false) => "completed",
    };
    let used = answer.usage.filter(|_| is_done).map(|usage| {
        json!({
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.input + usage.output,
        })
    });
    let output = if is_done { vec![item(answer, true)] } else { Vec::new() };
    let incomplete = (is_done && is_cut).then(|| json!({"reason": "max_output_tokens"}));
    json!({
        "id": format!("resp_{:016x}", answer.hash), "object": "response", "created_at": CREATED, "status": status,
        "background": false, "error": null, "incomplete_details": incomplete, "instructions": null,
        "max_output_tokens": request.output_max, "metadata": {}, "model": request.model, "output": output,
        "parallel_tool_calls": true, "previous_response_id": null, "reasoning": {"effort": null, "summary": null},
        "service_tier": "default", "store": true, "temperature": 1.0, "text": {"format": {"type": "text"}},
        "tool_choice": "auto", "tools": [], "top_p": 1.0, "truncation": "disabled", "usage": used, "user": null,
    })
}

/// The answer as one body.
pub(super) fn body(request: &Request, answer: &Answer) -> String {
    format!("{:#}\n", response(request, answer, true))
}

/// The answer as a stream.
pub(super) fn events(request: &Request, answer: &Answer) -> Vec<Event> {
    let mut events = Vec::new();
    let mut push = |kind: &str, mut data: Value, text: &str| {
        data["type"] = json!(kind);
        data["sequence_number"] = json!(events.len());
        let event = format!("event: {kind}\ndata: {data}\n\n");
        let is_usage = kind == "response.completed" || kind == "response.incomplete";
        events.push(if is_usage { Event::usage(event) } else { Event::text(event, text) });
    };
    let id = item_id(answer);
    push("response.created", json!({"response": response(request, answer, false)}), "");
    push("response.in_progress", json!({"response": response(request, answer, false)}), "");
    push("response.output_item.added", json!({"output_index": 0, "item": item(answer, false)}), "");
    if let Some(tool) = &answer.tool {
        let arguments = tool.arguments.to_string();
        let said = format!("{} {arguments}", tool.name);
        let delta = json!({"item_id": id, "output_index": 0, "delta": arguments});
        push("response.function_call_arguments.delta", delta, &said);
        let done =
            json!({"item_id": id, "output_index": 0, "arguments": arguments, "name": tool.name});
        push("response.function_call_arguments.done", done, "");
    } else {
        let place = json!({"item_id": id, "output_index": 0, "content_index": 0});
        let at = |name: &str, value: Value| {
            let mut data = place.clone();
            data[name] = value;
            data
        };
        push("response.content_part.added", at("part", part("")), "");
        for word in &answer.words {
            let mut data = at("delta", json!(word));
            data["logprobs"] = json!([]);
            push("response.output_text.delta", data, word);
        }
        let mut done = at("text", json!(answer.text()));
        done["logprobs"] = json!([]);
        push("response.output_text.done", done, "");
        push("response.content_part.done", at("part", part(&answer.text())), "");
    }
    push("response.output_item.done", json!({"output_index": 0, "item": item(answer, true)}), "");
    let end = if answer.finish == Finish::Length { "incomplete" } else { "completed" };
    push(&format!("response.{end}"), json!({"response": response(request, answer, true)}), "");
    events
}
