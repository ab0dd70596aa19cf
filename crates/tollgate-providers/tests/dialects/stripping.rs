//! A client that did not ask for usage gets the stream of one that did not.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tollgate_providers::UsageStripper;
use tollgate_providers::bounds::EVENT_BYTES_MAX;

use super::streams::CHAT;

fn stripped(stream: &[u8], size: usize) -> Vec<u8> {
    let mut stripper = UsageStripper::new();
    let mut output = Vec::new();
    stream.chunks(size.max(1)).for_each(|chunk| stripper.feed(chunk, &mut output));
    stripper.finish(&mut output);
    output
}

fn text(stream: &str) -> String {
    String::from_utf8(stripped(stream.as_bytes(), stream.len())).expect("the stream is UTF-8")
}

#[test]
fn the_usage_chunk_and_the_nulls_are_removed() {
    let start =
        CHAT.find(r#"data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[],"#);
    let end = CHAT.find("data: [DONE]").unwrap();
    let wanted =
        format!("{}{}", &CHAT[..start.unwrap()], &CHAT[end..]).replace(r#","usage":null"#, "");
    assert_eq!(text(CHAT), wanted);
    assert_eq!(text(&CHAT.replace('\n', "\r\n")), wanted.replace('\n', "\r\n"));
}

#[test]
fn the_comma_goes_with_the_member() {
    for (data, wanted) in [
        (r#"{"choices":[1],"usage":null}"#, r#"{"choices":[1]}"#),
        (r#"{"choices": [1], "usage": null, "a": 1}"#, r#"{"choices": [1], "a": 1}"#),
        (r#"{"usage":null,"choices":[1]}"#, r#"{"choices":[1]}"#),
        (r#"{ "usage" : null , "choices":[1]}"#, r#"{ "choices":[1]}"#),
        (r#"{"usage":null}"#, r"{}"),
        (r#"{"choices":[],"usage":null}"#, r#"{"choices":[]}"#),
    ] {
        assert_eq!(text(&format!("data: {data}\n\n")), format!("data: {wanted}\n\n"));
    }
}

#[test]
fn everything_else_passes_unchanged() {
    for stream in [
        "",
        "\n\n\n",
        ": comment\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\":null\"}}]}\n\n",
        "data: {\"choices\":[{\"usage\":null}]}\n\n",
        "data: {\"choices\":[{\"delta\":{}}],\"usage\":{\"total_tokens\":1}}\n\n",
        "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n",
        "data: {\"error\":{\"message\":\"x\"}}\n\n",
        "data: {\"choices\":[1],\"usage\":null\n\n",
        "data: not json\n\ndata: [DONE]\n\n",
        "data: {\"choices\":[1]}",
        "event: x\nid: 1\ndata: [DONE]\n\n",
    ] {
        assert_eq!(text(stream), stream);
    }
    assert_eq!(stripped(b"data: \xff\xfe\n\n", 3), b"data: \xff\xfe\n\n");
    assert_eq!(text("data: {\"choices\":[],\"usage\":{}}"), "", "also without a line end");
    assert_eq!(text("id: 1\ndata: {\"choices\":[],\"usage\":{}}\n\n"), "", "the whole event");
}

#[test]
fn an_event_beyond_the_bound_passes_and_the_next_is_stripped() {
    let long = format!("data: {{\"a\":\"{}\",\"usage\":null}}\n\n", "x".repeat(EVENT_BYTES_MAX));
    let stream = format!("{long}data: {{\"choices\":[1],\"usage\":null}}\r\n\r\n");
    let wanted = format!("{long}data: {{\"choices\":[1]}}\r\n\r\n");
    for size in [1 << 16, stream.len()] {
        assert!(stripped(stream.as_bytes(), size) == wanted.as_bytes());
    }
}

/// A chunk, and its members before and after the usage.
fn any_chunk() -> impl Strategy<Value = (Map<String, Value>, bool)> {
    let member = (
        "[a-t]{1,4}",
        prop_oneof![
            Just(json!(null)),
            ".{0,6}".prop_map(Value::from),
            Just(json!([1, {"usage": null}]))
        ],
    );
    (prop::collection::vec(member, 0..4), any::<bool>()).prop_map(|(members, is_empty)| {
        let mut chunk: Map<String, Value> = members.into_iter().collect();
        chunk.insert(
            "choices".to_owned(),
            if is_empty { json!([]) } else { json!([{"delta": {"content": "x"}}]) },
        );
        (chunk, is_empty)
    })
}

proptest! {
    #[test]
    fn the_output_is_the_stream_of_a_client_that_did_not_ask(
        chunks in prop::collection::vec((any_chunk(), any::<prop::sample::Index>()), 0..8),
        (pretty, crlf) in any::<(bool, bool)>(),
        size in 1..64_usize,
    ) {
        let end = if crlf { "\r\n\r\n" } else { "\n\n" };
        let separator = if pretty { ", " } else { "," };
        let event = |members: &[String]| format!("data: {{{}}}{end}", members.join(separator));
        let (mut asked, mut unasked) = (String::new(), String::new());
        for ((chunk, _), index) in chunks {
            let mut members: Vec<String> =
                chunk.iter().map(|(name, value)| format!("{}:{value}", json!(name))).collect();
            unasked += &event(&members);
            members.insert(index.index(members.len() + 1), "\"usage\":null".to_owned());
            asked += &event(&members);
        }
        asked += &event(&["\"choices\":[]".to_owned(), "\"usage\":{\"total_tokens\":3}".to_owned()]);
        for stream in [&mut asked, &mut unasked] {
            *stream += &format!("data: [DONE]{end}");
        }
        prop_assert_eq!(stripped(asked.as_bytes(), size), unasked.as_bytes());
    }

    #[test]
    fn any_bytes_pass_alike_however_they_are_cut(
        bytes in prop::collection::vec(prop_oneof![
            Just(b"data: ".to_vec()), Just(b"\n".to_vec()), Just(b"\r\n".to_vec()), Just(b"\r".to_vec()),
            Just(br#"{"usage":null}"#.to_vec()), Just(br#"{"choices":[],"usage":{}}"#.to_vec()),
            prop::collection::vec(any::<u8>(), 0..4),
        ], 0..20),
        size in 1..9_usize,
    ) {
        let bytes = bytes.concat();
        prop_assert_eq!(stripped(&bytes, size), stripped(&bytes, bytes.len()));
    }
}
