//! Streams as the providers send them, cut anywhere.

use proptest::prelude::*;
use tollgate_providers::{
    Call, Dialect, PaidTokens, ProviderErrorKind as Kind, StreamReader, UsageFields, estimate,
};

use super::{chat, gemini, messages, post, responses};

pub(super) const CHAT: &str = concat!(
    r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"gpt-4o","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"aB3"}"#,
    "\n\n",
    r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"Grüße, "},"finish_reason":null}],"usage":null}"#,
    "\n\n",
    r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"world!"},"finish_reason":null}],"usage":null}"#,
    "\n\n",
    r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}"#,
    "\n\n",
    r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":5,"total_tokens":24,"prompt_tokens_details":{"cached_tokens":3,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}"#,
    "\n\ndata: [DONE]\n\n",
);

const RESPONSES: &str = concat!(
    "event: response.created\n",
    r#"data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","status":"in_progress","error":null,"output":[],"usage":null}}"#,
    "\n\nevent: response.output_text.delta\n",
    r#"data: {"type":"response.output_text.delta","item_id":"msg_1","delta":"Grüße, world!","logprobs":[]}"#,
    "\n\nevent: response.something.new\n",
    r#"data: {"type":"response.something.new","field":[1,2]}"#,
    "\n\nevent: response.completed\n",
    r#"data: {"type":"response.completed","response":{"id":"resp_1","status":"completed","error":null,"output":[{"type":"message","content":[{"type":"output_text","text":"Grüße, world!"}]}],"usage":{"input_tokens":37,"input_tokens_details":{"cached_tokens":10},"output_tokens":11,"output_tokens_details":{"reasoning_tokens":4},"total_tokens":48}}}"#,
    "\n\n",
);

const MESSAGES: &str = concat!(
    "event: message_start\n",
    r#"data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"claude-sonnet-5","content":[],"stop_reason":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":100,"cache_read_input_tokens":40,"cache_creation":{"ephemeral_5m_input_tokens":100,"ephemeral_1h_input_tokens":0},"output_tokens":1,"service_tier":"standard"}}}"#,
    "\n\nevent: content_block_start\n",
    r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
    "\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\nevent: content_block_delta\n",
    r#"data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Grüße, "}}"#,
    "\n\nevent: content_block_delta\n",
    r#"data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"world!"}}"#,
    "\n\nevent: content_block_stop\n",
    r#"data: {"type":"content_block_stop","index":0}"#,
    "\n\nevent: message_delta\n",
    r#"data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":8}}"#,
    "\n\nevent: message_delta\n",
    r#"data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}"#,
    "\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

const GEMINI: [&str; 3] = [
    r#"{"candidates":[{"content":{"parts":[{"text":"Grüße, "}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":2,"totalTokenCount":12,"promptTokensDetails":[{"modality":"TEXT","tokenCount":10}]},"modelVersion":"gemini-2.5-flash"}"#,
    r#"{"candidates":[{"content":{"parts":[{"text":"world!"}],"role":"model"},"index":0}],"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":4,"thoughtsTokenCount":30,"totalTokenCount":44}}"#,
    r#"{"candidates":[{"content":{"parts":[{"text":""}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":10,"cachedContentTokenCount":6,"candidatesTokenCount":5,"thoughtsTokenCount":30,"totalTokenCount":45}}"#,
];

fn gemini_events() -> String {
    GEMINI.map(|chunk| format!("data: {chunk}\r\n\r\n")).concat()
}

/// Gemini without `alt=sse`.
fn gemini_array() -> (Call, String) {
    let call = post(Dialect::Gemini, "/v1beta/models/gemini-2.5-flash:streamGenerateContent");
    (call, format!("[{}\n]\n", GEMINI.join("\n,\r\n")))
}

#[derive(Debug, PartialEq, Eq)]
struct End {
    usage: Option<UsageFields>,
    output: u64,
    is_complete: bool,
    error: Option<Kind>,
}

fn end(reader: &StreamReader) -> End {
    End {
        usage: reader.usage(),
        output: reader.output_tokens(),
        is_complete: reader.is_complete(),
        error: reader.error(),
    }
}

fn read(call: &Call, stream: &str) -> End {
    let mut reader = StreamReader::new(call);
    reader.feed(stream.as_bytes());
    reader.finish();
    end(&reader)
}

fn all() -> Vec<(Call, String)> {
    vec![
        (chat(), CHAT.to_owned()),
        (chat(), CHAT.replace('\n', "\r\n")),
        (responses(), RESPONSES.to_owned()),
        (messages(), MESSAGES.to_owned()),
        (messages(), MESSAGES.replace('\n', "\r\n")),
        (gemini(), gemini_events()),
        gemini_array(),
    ]
}

#[test]
fn usage_output_and_end_are_read() {
    for (call, stream) in all() {
        let end = read(&call, &stream);
        assert!(end.is_complete && end.error.is_none(), "{call:?}");
        assert_eq!(end.output, estimate::tokens("Grüße, world!"), "{call:?}");
        let usage = end.usage.unwrap();
        let costs = call.dialect().usage_map().costs(&usage);
        let costs =
            ["tokens", "input_tokens", "output_tokens"].map(|unit| costs.get(unit).unwrap());
        let paid = PaidTokens::from_usage(call.dialect(), &usage);
        let paid = [paid.input, paid.cached_input, paid.cache_write, paid.output];
        let wanted = match call {
            call if call == chat() => ([24, 19, 5], [16, 3, 0, 5]),
            call if call == responses() => ([48, 37, 11], [27, 10, 0, 11]),
            call if call == messages() => ([140, 125, 15], [25, 40, 100, 15]),
            _ => ([10, 10, 35], [4, 6, 0, 35]),
        };
        assert_eq!((costs, paid), wanted);
    }
}

#[test]
fn an_unstreamed_answer_has_the_same_usage() {
    let table = [
        (
            chat(),
            r#"{"id":"x","choices":[{"message":{"content":"usage"}}],"usage":{"prompt_tokens":19,"completion_tokens":5,"total_tokens":24}}"#,
            [24, 19, 5],
        ),
        (
            responses(),
            r#"{"usage":{"input_tokens":37,"output_tokens":11,"total_tokens":48},"output":[{"usage":1}]}"#,
            [48, 37, 11],
        ),
        (
            messages(),
            r#"{"type":"message","usage":{"input_tokens":25,"cache_read_input_tokens":40,"output_tokens":15}}"#,
            [40, 25, 15],
        ),
        (
            gemini(),
            r#"{"candidates":[],"usageMetadata":{"promptTokenCount":10,"candidatesTokenCount":5,"thoughtsTokenCount":30}}"#,
            [10, 10, 35],
        ),
    ];
    for (call, body, wanted) in table {
        let usage = call.read_response(body.as_bytes()).unwrap();
        let costs = call.dialect().usage_map().costs(&usage);
        let costs =
            ["tokens", "input_tokens", "output_tokens"].map(|unit| costs.get(unit).unwrap());
        assert_eq!(costs, wanted, "{body}");
    }
    let embeddings = post(Dialect::OpenAi, "/v1/embeddings");
    let body = br#"{"object":"list","data":[{"embedding":[0.1,-2e-3]}],"usage":{"prompt_tokens":8,"total_tokens":8}}"#;
    let usage = embeddings.read_response(body).unwrap();
    assert_eq!(Dialect::OpenAi.usage_map().costs(&usage).get("input_tokens"), Some(8));
    for nothing in [&b""[..], b"<html>", b"{}", br#"{"usage":null}"#, br#"{"usage":{}}"#, b"\xff"] {
        assert_eq!(chat().read_response(nothing), None);
    }
    let cut = br#"{"usage":{"prompt_tokens":8},"choices":[{"mess"#;
    assert_eq!(chat().read_response(cut), None);
    let count = post(Dialect::Anthropic, "/v1/messages/count_tokens");
    assert_eq!(count.read_response(br#"{"input_tokens":14}"#), None);
}

#[test]
fn a_stream_that_breaks_off_keeps_what_it_reported() {
    let stop = MESSAGES.find("event: message_delta").unwrap();
    let end = read(&messages(), &MESSAGES[..stop]);
    assert!(!end.is_complete);
    assert_eq!(end.usage.unwrap().get("input_tokens"), Some(25));
    assert_eq!(end.output, estimate::tokens("Grüße, world!"));
    // The last line has no end.
    let end = read(&chat(), CHAT.trim_end_matches("\n\ndata: [DONE]\n\n"));
    assert!(!end.is_complete && end.usage.is_some());
}

#[test]
fn reasoning_and_tool_calls_are_output_too() {
    let output = |call: &Call, data: &str| read(call, &format!("data: {data}\n\n")).output;
    let chunk = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"call_1","function":{"name":"look","arguments":"{\"a\": 1}"}}]}}]}"#;
    assert_eq!(output(&chat(), chunk), 4);
    let chunk = r#"{"choices":[{"delta":{"reasoning_content":"thought thought "}}]}"#;
    assert_eq!(output(&chat(), chunk), 4);
    let event = r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{\"at\": "}}"#;
    assert_eq!(output(&messages(), event), 2);
    let event = r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"thought thought "}}"#;
    assert_eq!(output(&messages(), event), 4);
    let chunk = r#"{"candidates":[{"content":{"parts":[{"functionCall":{"name":"look","args":{"at":"home"}}}]}}]}"#;
    assert!((2..6).contains(&output(&gemini(), chunk)));
    let image = r#"{"candidates":[{"content":{"parts":[{"inlineData":{"mimeType":"image/png","data":"iVBORw0KGgoAAAANSUhE"}}]}}]}"#;
    assert_eq!(output(&gemini(), image), 0);
    let audio = r#"{"delta":"UklGRiQAAABXQVZF","type":"response.audio.delta"}"#;
    assert_eq!(output(&responses(), audio), 0);
}

#[test]
fn errors_in_a_stream_are_classified() {
    let table = [
        (
            chat(),
            r#"{"error":{"message":"x","type":"server_error","code":null}}"#,
            Kind::Overloaded,
        ),
        (
            chat(),
            r#"{"error":{"message":"x","type":"tokens","code":"rate_limit_exceeded"}}"#,
            Kind::TokenQuota,
        ),
        (
            responses(),
            r#"{"type":"error","code":"rate_limit_exceeded","message":"x","param":null}"#,
            Kind::Quota,
        ),
        (
            responses(),
            r#"{"type":"response.failed","response":{"error":{"code":"server_error","message":"x"},"usage":null}}"#,
            Kind::Overloaded,
        ),
        (
            messages(),
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            Kind::Overloaded,
        ),
        (
            messages(),
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"x"}}"#,
            Kind::BadRequest,
        ),
        (
            gemini(),
            r#"{"error":{"code":429,"message":"x","status":"RESOURCE_EXHAUSTED"}}"#,
            Kind::Quota,
        ),
        (
            gemini(),
            r#"{"error":{"code":503,"message":"x","status":"UNAVAILABLE"}}"#,
            Kind::Overloaded,
        ),
    ];
    for (call, data, wanted) in table {
        assert_eq!(read(&call, &format!("data: {data}\n\n")).error, Some(wanted), "{data}");
    }
}

#[test]
fn what_is_not_of_the_dialect_is_ignored() {
    let noise = ": keep-alive\n\nretry: 5\n\ndata: nonsense\n\ndata: {\"choices\":7,\"usage\":[]}\n\ndata:\n\ndata: [1\n\n\n\n";
    for (call, stream) in all().into_iter().take(5) {
        assert_eq!(read(&call, &format!("{noise}{stream}{noise}")), read(&call, &stream));
    }
    // Data of several lines is one event.
    let lines = "data: {\"choices\":[],\ndata: \"usage\":{\"total_tokens\":7}}\n\n";
    assert_eq!(read(&chat(), lines).usage.unwrap().get("total_tokens"), Some(7));
}

#[test]
fn an_event_beyond_the_bound_is_skipped_and_the_next_is_read() {
    let huge = "x".repeat(tollgate_providers::bounds::EVENT_BYTES_MAX);
    for size in [1 << 16, usize::MAX] {
        for end in ["\n\n", "\r\n\r\n"] {
            let long =
                format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{huge}\"}}}}]}}{end}");
            let stream = format!("{long}{CHAT}");
            let mut reader = StreamReader::new(&chat());
            for chunk in stream.as_bytes().chunks(size.min(stream.len())) {
                reader.feed(chunk);
            }
            assert_eq!(super::streams::end(&reader), read(&chat(), CHAT));
        }
    }
}

proptest! {
    #[test]
    fn any_chunking_of_a_stream_gives_the_same_result(
        which in 0..7_usize,
        sizes in prop::collection::vec(1..60_usize, 1..40),
    ) {
        let (call, stream) = all().swap_remove(which);
        let mut reader = StreamReader::new(&call);
        let mut rest = stream.as_bytes();
        for size in sizes.iter().cycle() {
            let (chunk, after) = rest.split_at((*size).min(rest.len()));
            reader.feed(chunk);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        reader.finish();
        prop_assert_eq!(end(&reader), read(&call, &stream));
    }

    #[test]
    fn any_bytes_are_read_alike_however_they_are_cut(
        bytes in prop::collection::vec(prop_oneof![
            Just(b"data: ".to_vec()), Just(b"\n".to_vec()), Just(b"\r\n".to_vec()), Just(b"\r".to_vec()),
            Just(br#"{"choices":[{"delta":{"content":"four"}}]}"#.to_vec()), Just(b"[DONE]".to_vec()),
            Just(br#"{"usage":{"total_tokens":5}}"#.to_vec()), Just(b"[".to_vec()), Just(b"\"".to_vec()),
            Just(b"\\".to_vec()), prop::collection::vec(any::<u8>(), 0..4),
        ], 0..20),
        size in 1..9_usize,
        which in 0..7_usize,
    ) {
        let (call, _) = all().swap_remove(which);
        let bytes = bytes.concat();
        let mut whole = StreamReader::new(&call);
        whole.feed(&bytes);
        whole.finish();
        let mut cut = StreamReader::new(&call);
        bytes.chunks(size).for_each(|chunk| cut.feed(chunk));
        cut.finish();
        prop_assert_eq!(end(&cut), end(&whole));
    }
}
