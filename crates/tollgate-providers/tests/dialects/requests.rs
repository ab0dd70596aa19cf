//! What is read from requests.

use tollgate_providers::{Dialect, ErrorKind, estimate};

use super::{chat, gemini, messages, post, read, responses};

#[test]
fn a_chat_completion_is_read() {
    let facts = read(
        &chat(),
        r#"{
            "model": "gpt-4o-2024-08-06",
            "messages": [
                {"role": "system", "content": "You are terse."},
                {"role": "user", "content": [
                    {"type": "text", "text": "What is in these?\n"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
                    {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}
                ]},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{\"at\":1}"}}]},
                {"role": "tool", "tool_call_id": "call_1", "content": "a cat"}
            ],
            "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
            "max_completion_tokens": 300, "n": 2, "stream": true, "temperature": 0.2, "logit_bias": {"50256": -100}
        }"#,
    );
    assert_eq!(facts.model, "gpt-4o-2024-08-06");
    assert!(facts.stream && !facts.asks_usage && !facts.may_hide_output && !facts.is_text_only());
    assert_eq!((facts.max_output_tokens, facts.output_tokens_declared()), (Some(300), Some(600)));
    assert_eq!((facts.images, facts.audio, facts.files), (1, 1, 1));
    // Base64 is not text.
    assert!((30..80).contains(&facts.text_tokens), "{}", facts.text_tokens);
    assert_eq!(facts.input_tokens(), facts.text_tokens + facts.media_tokens());
}

#[test]
fn text_is_estimated_by_script_with_its_escapes() {
    let text = "Größe: 12 Äpfel, 世界 \"quoted\"\n";
    let body = |content: String| {
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":{content}}}]}}"#)
    };
    let plain = serde_json::Value::from(text).to_string();
    let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
    for content in [plain, format!("\"{escaped}\"")] {
        let facts = read(&chat(), &body(content));
        assert_eq!(facts.text_tokens, (estimate::quarters(text) + 16).div_ceil(4));
        assert!(facts.is_text_only());
    }
}

#[test]
fn hidden_output_is_recognized_by_model_and_by_parameter() {
    let hides = |model: &str, rest: &str| {
        read(&chat(), &format!(r#"{{"model":"{model}","messages":[]{rest}}}"#)).may_hide_output
    };
    for model in
        ["o1", "o3-mini", "o4-mini-2025-04-16", "gpt-5", "gpt-5.2-codex", "gpt-6-sol", "openai/o3"]
    {
        assert!(hides(model, ""), "{model}");
    }
    for model in ["gpt-4o", "gpt-4.1-mini", "gpt-5-chat-latest", "gpt-oss-20b", "llama-3", "olmo-2"]
    {
        assert!(!hides(model, ""), "{model}");
    }
    assert!(hides("llama-3", r#","reasoning_effort":"high""#));
    assert!(!hides("llama-3", r#","reasoning_effort":"none""#));
}

#[test]
fn a_response_is_read() {
    let facts = read(
        &responses(),
        r#"{"model":"gpt-5-mini","instructions":"Be brief.","max_output_tokens":500,"stream":true,"reasoning":{"effort":"low"},
            "input":[{"role":"user","content":[{"type":"input_text","text":"Describe."},{"type":"input_image","image_url":"https://e.x/a.png"}]},
                     {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
                     {"type":"function_call_output","call_id":"c","output":"42 apples"},
                     {"type":"input_file","file_id":"file-1"}]}"#,
    );
    assert_eq!((facts.model.as_str(), facts.stream), ("gpt-5-mini", true));
    assert_eq!((facts.output_tokens_declared(), facts.images, facts.files), (Some(500), 1, 1));
    assert!(facts.may_hide_output && !facts.has_stored_input);
    let text =
        read(&responses(), r#"{"model":"gpt-4o","input":"Hello, world!","background":null}"#);
    assert!(text.is_text_only() && (7..10).contains(&text.text_tokens), "{}", text.text_tokens);
    for stored in [
        r#"{"model":"m","input":"x","previous_response_id":"resp_1"}"#,
        r#"{"model":"m","input":"x","conversation":{"id":"conv_1"}}"#,
        r#"{"model":"m","input":[{"type":"item_reference","id":"msg_1"}]}"#,
    ] {
        assert!(!read(&responses(), stored).is_text_only(), "{stored}");
    }
    let error = responses().read_request(br#"{"model":"m","background":true}"#).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("send \"background\": false"), "{error}");
}

#[test]
fn embeddings_take_text_and_tokens() {
    let call = post(Dialect::OpenAi, "/v1/embeddings");
    let tokens = |input: &str| {
        let body = format!(r#"{{"model":"text-embedding-3-small","input":{input}}}"#);
        let facts = read(&call, &body);
        assert_eq!((facts.candidates, facts.output_tokens_declared()), (0, None));
        facts.text_tokens
    };
    assert_eq!(tokens(r#""four""#), 1);
    assert_eq!(tokens(r#"["four","letters!"]"#), 3);
    assert_eq!(tokens("[1,2,3]"), 3);
    assert_eq!(tokens("[[1,2],[3]]"), 3);
}

#[test]
fn a_message_is_read() {
    let facts = read(
        &messages(),
        r#"{"model":"claude-sonnet-5","max_tokens":1024,"stream":true,
            "system":[{"type":"text","text":"You are terse.","cache_control":{"type":"ephemeral"}}],
            "thinking":{"type":"enabled","budget_tokens":512},
            "tools":[{"name":"look","description":"Looks.","input_schema":{"type":"object","properties":{}}}],
            "messages":[{"role":"user","content":[
                {"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"}},
                {"source":{"type":"text","media_type":"text/plain","data":"The whole document."},"type":"document","title":"T"},
                {"type":"document","source":{"type":"url","url":"https://e.x/a.pdf"}},
                {"type":"text","text":"Compare."}]},
              {"role":"assistant","content":[{"type":"tool_use","id":"t","name":"look","input":{"at":{"x":1}}}]},
              {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"a cat"}]}]}]}"#,
    );
    assert_eq!((facts.model.as_str(), facts.stream), ("claude-sonnet-5", true));
    assert_eq!((facts.output_tokens_declared(), facts.images, facts.files), (Some(1_024), 1, 1));
    assert!(facts.may_hide_output);
    assert!((35..80).contains(&facts.text_tokens), "{}", facts.text_tokens);
    let plain = r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"}],"thinking":{"type":"disabled"}}"#;
    assert!(!read(&messages(), plain).may_hide_output);
    let count = post(Dialect::Anthropic, "/v1/messages/count_tokens");
    let facts = read(&count, r#"{"model":"m","messages":[{"role":"user","content":"Hi"}]}"#);
    assert_eq!((facts.candidates, facts.output_tokens_declared(), facts.text_tokens), (0, None, 5));
}

#[test]
fn a_generation_of_gemini_is_read_in_both_spellings() {
    let camel = r#"{
        "systemInstruction": {"parts": [{"text": "You are terse."}]},
        "contents": [{"role": "user", "parts": [{"text": "What is this?"},
            {"inlineData": {"mimeType": "image/jpeg", "data": "/9j/4AAQSkZJRg=="}},
            {"fileData": {"mimeType": "video/mp4", "fileUri": "https://e.x/v"}}]}],
        "generationConfig": {"maxOutputTokens": 800, "candidateCount": 3, "thinkingConfig": {"thinkingBudget": 0}}
    }"#;
    let snake = camel
        .replace("systemInstruction", "system_instruction")
        .replace("inlineData", "inline_data")
        .replace("fileData", "file_data")
        .replace("mimeType", "mime_type")
        .replace("generationConfig", "generation_config")
        .replace("maxOutputTokens\": 800", "max_output_tokens\": \"800\"")
        .replace("candidateCount", "candidate_count")
        .replace("thinkingConfig", "thinking_config")
        .replace("thinkingBudget", "thinking_budget");
    for body in [camel, &snake] {
        let facts = read(&gemini(), body);
        assert_eq!((facts.model.as_str(), facts.stream), ("gemini-2.5-flash", true));
        assert_eq!(facts.output_tokens_declared(), Some(2_400));
        assert_eq!((facts.images, facts.files, facts.text_tokens), (1, 1, 15));
        assert!(!facts.may_hide_output);
    }
    assert!(read(&gemini(), r#"{"contents":[]}"#).may_hide_output, "it thinks by default");
    assert!(
        !read(&gemini(), r#"{"contents":[],"cachedContent":"cachedContents/1"}"#).is_text_only()
    );
}

#[test]
fn counts_and_embeddings_of_gemini_are_read() {
    let call = |verb: &str| post(Dialect::Gemini, &format!("/v1beta/models/m:{verb}"));
    let inner = r#"{"model":"models/m","contents":[{"parts":[{"text":"four"}]}],"generationConfig":{"maxOutputTokens":5}}"#;
    let facts = read(&call("countTokens"), &format!(r#"{{"generateContentRequest":{inner}}}"#));
    assert_eq!((facts.text_tokens, facts.output_tokens_declared()), (5, None));
    let facts = read(&call("countTokens"), r#"{"contents":{"parts":[{"text":"four"}]}}"#);
    assert_eq!(facts.text_tokens, 5);
    let one = r#"{"model":"models/m","content":{"parts":[{"text":"four"}]}}"#;
    assert_eq!(read(&call("embedContent"), one).text_tokens, 5);
    let batch = format!(r#"{{"requests":[{one},{one}]}}"#);
    assert_eq!(read(&call("batchEmbedContents"), &batch).text_tokens, 10);
    let other = one.replace("models/m", "models/expensive");
    let error = call("embedContent").read_request(other.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("another model than the path; name m in both"), "{error}");
}

#[test]
fn a_body_that_is_not_a_request_is_rejected_with_the_place() {
    let table: [(&[u8], &str); 9] = [
        (b"", "invalid at byte 0: expected a JSON value"),
        (b"[]", "invalid at byte 0: expected an object"),
        (b"{\"model\":\"m\"", "invalid at byte 12: expected a comma or the end of the object"),
        (b"{\"model\":\"m\"} x", "invalid at byte 14: expected the end of the body"),
        (b"{\"model\":1}", "\"model\" must be a string"),
        (b"{\"messages\":[]}", "names no model; add \"model\""),
        (b"{\"model\":\"a\",\"model\":\"b\"}", "\"model\" occurs twice"),
        (b"{\"model\":\"m\",\"max_tokens\":1,\"max_tokens\":9}", "\"max_tokens\" occurs twice"),
        (b"{\"model\":\"\xff\"}", "invalid at byte 10: not UTF-8"),
    ];
    for (body, wanted) in table {
        let error = chat().read_request(body).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Request);
        assert!(error.to_string().contains(wanted), "{error}");
    }
    let long = format!(r#"{{"model":"{}"}}"#, "m".repeat(300));
    assert!(chat().read_request(long.as_bytes()).is_err());
}
