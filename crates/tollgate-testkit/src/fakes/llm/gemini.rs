//! Content, streams, token counts and embeddings of Gemini.

use serde_json::{Value, json};

use super::answer::{Answer, Finish, Usage};
use super::encoding::vector;
use super::play::Event;
use super::request::{Dialect, Endpoint, Request};
use crate::fakes::gemini::tokens_of;

/// Reads the request to `path` below `/v1/` or `/v1beta/`; the message of a 400, or `None` if there is no such path.
pub(super) fn read(path: &str, query: &str, body: &Value) -> Option<Result<Request, String>> {
    if path == "models" {
        return Some(Ok(Request::new(Dialect::Gemini, Endpoint::Models, "")));
    }
    let (model, method) = path.strip_prefix("models/")?.split_once(':')?;
    let endpoint = match method {
        "generateContent" | "streamGenerateContent" => Endpoint::Generate,
        "countTokens" => Endpoint::CountTokens,
        "embedContent" | "batchEmbedContents" => Endpoint::Embeddings,
        _ => return None,
    };
    let mut request = Request::new(Dialect::Gemini, endpoint, model);
    request.is_stream = method == "streamGenerateContent";
    request.option =
        query.split('&').any(|pair| pair == "alt=sse") || method == "batchEmbedContents";
    let read = match (endpoint, method) {
        (Endpoint::Embeddings, "embedContent") => read_embedding(&mut request, body),
        (Endpoint::Embeddings, _) => {
            let mut parts = body["requests"].as_array().into_iter().flatten();
            parts.try_for_each(|part| read_embedding(&mut request, part))
        }
        (Endpoint::CountTokens, _) => {
            read_contents(&mut request, body.get("generateContentRequest").unwrap_or(body))
        }
        _ => read_contents(&mut request, body),
    };
    Some(read.map(|()| request))
}

fn read_embedding(request: &mut Request, body: &Value) -> Result<(), String> {
    let parts = body["content"]["parts"]
        .as_array()
        .ok_or("* EmbedContentRequest.content: content is not specified")?;
    request.inputs.push(parts.iter().filter_map(|part| part["text"].as_str()).collect());
    Ok(())
}

fn read_contents(request: &mut Request, body: &Value) -> Result<(), String> {
    let contents = body["contents"].as_array().filter(|contents| !contents.is_empty());
    let contents =
        contents.ok_or("* GenerateContentRequest.contents: contents is not specified")?;
    let system = body.get("systemInstruction").or_else(|| body.get("system_instruction"));
    for part in
        contents.iter().chain(system).flat_map(|content| content["parts"].as_array()).flatten()
    {
        if let Some(text) = part["text"].as_str() {
            request.push_text(text);
        }
        request.images +=
            u64::from(part.get("inlineData").or_else(|| part.get("inline_data")).is_some());
        if let Some(result) = part.get("functionResponse") {
            let response = &result["response"];
            let text =
                response["result"].as_str().map_or_else(|| response.to_string(), str::to_owned);
            request.push_text(&text);
            request.tool_result = Some(text);
        }
    }
    for tool in body["tools"].as_array().into_iter().flatten() {
        for function in tool["functionDeclarations"].as_array().into_iter().flatten() {
            request.push_text(&function.to_string());
            let schema =
                function.get("parameters").or_else(|| function.get("parametersJsonSchema"));
            request.offer(&function["name"], schema.unwrap_or(&Value::Null));
        }
    }
    let config = &body["generationConfig"];
    request.output_max = config["maxOutputTokens"].as_u64();
    request.answers = config["candidateCount"].as_u64().unwrap_or(1).clamp(1, 8);
    Ok(())
}

fn chunk(
    request: &Request,
    answer: &Answer,
    parts: &[Value],
    used: Option<Usage>,
    is_last: bool,
) -> Value {
    let candidate = |index: u64| {
        let mut candidate = json!({"content": {"parts": parts, "role": "model"}, "index": index});
        if is_last {
            let is_cut = answer.finish == Finish::Length;
            candidate["finishReason"] = json!(if is_cut { "MAX_TOKENS" } else { "STOP" });
        }
        candidate
    };
    let candidates: Vec<Value> = (0..request.answers).map(candidate).collect();
    let id = format!("{:016x}", answer.hash);
    let mut chunk =
        json!({"candidates": candidates, "modelVersion": request.model, "responseId": id});
    if let Some(used) = used {
        chunk["usageMetadata"] = json!({
            "promptTokenCount": used.input,
            "candidatesTokenCount": used.output,
            "totalTokenCount": used.input + used.output,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": used.input}],
        });
    }
    chunk
}

/// The parts of the answer, one for each chunk of a stream.
fn parts(answer: &Answer) -> Vec<Value> {
    match &answer.tool {
        Some(tool) => vec![json!({"functionCall": {"name": tool.name, "args": tool.arguments}})],
        None => answer.words.iter().map(|word| json!({"text": word})).collect(),
    }
}

/// The answer as one body.
pub(super) fn body(request: &Request, answer: &Answer) -> String {
    let parts = match &answer.tool {
        Some(_) => parts(answer),
        None => vec![json!({"text": answer.text()})],
    };
    format!("{:#}\n", chunk(request, answer, &parts, answer.usage, true))
}

/// The answer as a stream: events, or without `alt=sse` an array whose elements arrive one by one. Every chunk has the usage
/// so far.
pub(super) fn events(request: &Request, answer: &Answer) -> Vec<Event> {
    let parts = parts(answer);
    let mut said = 0;
    let mut events = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let is_last = index + 1 == parts.len();
        let text = match &answer.tool {
            Some(tool) => format!("{} {}", tool.name, tool.arguments),
            None => part["text"].as_str().unwrap_or_default().to_owned(),
        };
        let output = tokens_of(&text) * request.answers;
        said += output;
        let used =
            answer.usage.map(|used| if is_last { used } else { Usage { output: said, ..used } });
        let data = chunk(request, answer, std::slice::from_ref(part), used, is_last);
        let event = match (request.option, index, is_last) {
            (true, _, _) => format!("data: {data}\r\n\r\n"),
            (false, 0, true) => format!("[{data}]"),
            (false, 0, false) => format!("[{data}\n"),
            (false, _, false) => format!(",\r\n{data}\n"),
            (false, _, true) => format!(",\r\n{data}\n]"),
        };
        let mut event = if is_last { Event::usage(event) } else { Event::new(event) };
        event.output = output;
        events.push(event);
    }
    events
}

pub(super) fn count(request: &Request) -> String {
    format!("{:#}\n", json!({"totalTokens": request.input()}))
}

pub(super) fn embeddings(request: &Request) -> String {
    let values: Vec<Value> =
        request.inputs.iter().map(|text| json!({"values": vector(text)})).collect();
    let body = if request.option {
        json!({"embeddings": values})
    } else {
        json!({"embedding": values.first()})
    };
    format!("{body:#}\n")
}

pub(super) fn models() -> String {
    let methods = ["generateContent", "countTokens"];
    let model = json!({
        "name": "models/gemini-2.5-flash", "displayName": "Gemini 2.5 Flash", "inputTokenLimit": 1_048_576,
        "outputTokenLimit": 65_536, "supportedGenerationMethods": methods,
    });
    format!("{:#}\n", json!({"models": [model]}))
}
