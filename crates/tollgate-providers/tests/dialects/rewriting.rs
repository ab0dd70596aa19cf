//! Rewriting changes the named bytes and no others.

use std::borrow::Cow;

use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate_providers::{Dialect, Rewrite};

use super::{chat, post, read};

fn rewritten(body: &str, changes: &Rewrite<'_>) -> String {
    let facts = read(&chat(), body);
    String::from_utf8(facts.rewrite(body.as_bytes(), changes).into_owned())
        .expect("a body is UTF-8")
}

const USAGE: Rewrite<'_> = Rewrite { model: None, include_usage: true };

#[test]
fn usage_is_asked_for_wherever_the_option_is() {
    let table = [
        (
            r#"{ "model":"m","stream":true}"#,
            r#"{"stream_options":{"include_usage":true}, "model":"m","stream":true}"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":null}"#,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options":{ }}"#,
            r#"{"model":"m","stream":true,"stream_options":{"include_usage":true }}"#,
        ),
        (
            r#"{"model":"m","stream":true,"stream_options": {"include_obfuscation":false}}"#,
            r#"{"model":"m","stream":true,"stream_options": {"include_usage":true,"include_obfuscation":false}}"#,
        ),
        (
            r#"{"stream_options":{"include_usage": false },"model":"m","stream":true}"#,
            r#"{"stream_options":{"include_usage": true },"model":"m","stream":true}"#,
        ),
    ];
    for (body, wanted) in table {
        assert_eq!(rewritten(body, &USAGE), wanted);
        assert!(read(&chat(), wanted).asks_usage);
    }
}

/// Outside of Gemini, `models/` is part of a name.
#[test]
fn a_name_with_a_collection_is_replaced_whole() {
    let change = Rewrite { model: Some("other"), include_usage: false };
    assert_eq!(rewritten(r#"{"model":"models/m"}"#, &change), r#"{"model":"other"}"#);
}

#[test]
fn a_body_without_changes_is_not_copied() {
    for body in [
        r#"{"model":"m","stream":false}"#,
        r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#,
    ] {
        let facts = read(&chat(), body);
        let same = Rewrite { model: Some("m"), include_usage: true };
        assert!(matches!(facts.rewrite(body.as_bytes(), &same), Cow::Borrowed(_)), "{body}");
    }
}

#[test]
fn the_model_is_replaced_wherever_it_is() {
    let model = Rewrite { model: Some("new \"one\""), include_usage: false };
    let body = r#"{"messages":[{"model":"m"}], "model" : "\u006d" ,"n":1}"#;
    let wanted = r#"{"messages":[{"model":"m"}], "model" : "new \"one\"" ,"n":1}"#;
    assert_eq!(rewritten(body, &model), wanted);

    let call = post(Dialect::Gemini, "/v1beta/models/old:batchEmbedContents");
    let body = r#"{"requests":[{"model":"models/old","content":{}},{"content":{},"model":"old"}]}"#;
    let wanted =
        r#"{"requests":[{"model":"models/new","content":{}},{"content":{},"model":"new"}]}"#;
    let facts = read(&call, body);
    let changes = Rewrite { model: Some("new"), include_usage: true };
    assert_eq!(&*facts.rewrite(body.as_bytes(), &changes), wanted.as_bytes());
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u32>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(".{0,6}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn only_the_named_members_change(
        extra in prop::collection::btree_map("x.{0,6}", any_value(), 0..5),
        messages in any_value(),
        options in prop_oneof![
            Just(None),
            Just(Some(json!(null))),
            Just(Some(json!({}))),
            Just(Some(json!({"include_usage": false, "a": [1]}))),
            Just(Some(json!({"include_usage": true}))),
            Just(Some(json!({"a": {"include_usage": false}}))),
        ],
        (pretty, stream) in any::<(bool, bool)>(),
        model in "[a-z\"\\\\é-]{1,8}",
        new in "[a-z\"\\\\é-]{1,8}",
    ) {
        let mut body = Value::Object(extra.into_iter().collect());
        body["model"] = model.into();
        body["messages"] = messages;
        body["stream"] = stream.into();
        if let Some(options) = options {
            body["stream_options"] = options;
        }
        let text = if pretty { format!("{body:#}") } else { body.to_string() };
        let changes = Rewrite { model: Some(&new), include_usage: true };
        let after: Value = serde_json::from_str(&rewritten(&text, &changes)).unwrap();
        body["model"] = new.clone().into();
        if stream {
            if !body["stream_options"].is_object() {
                body["stream_options"] = json!({});
            }
            body["stream_options"]["include_usage"] = true.into();
        }
        prop_assert_eq!(after, body);
    }
}
