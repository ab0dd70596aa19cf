//! Which calls are covered, and what a client is told about the others.

use http::Method;
use tollgate_providers::{CallKind as Kind, Dialect, ErrorKind};

#[test]
fn covered_calls_are_classified() {
    let table = [
        (Dialect::OpenAi, "POST", "/v1/chat/completions", Kind::Generate),
        (Dialect::OpenAi, "POST", "/v1/responses", Kind::Generate),
        (Dialect::OpenAi, "POST", "/v1/embeddings", Kind::Embed),
        (Dialect::OpenAi, "GET", "/v1/models", Kind::ListModels),
        (Dialect::OpenAi, "GET", "/v1/models/ft:gpt-4o:acme::1", Kind::ListModels),
        (Dialect::OpenAi, "GET", "/v1/models/meta-llama/Llama-3.1-8B", Kind::ListModels),
        (Dialect::Anthropic, "POST", "/v1/messages", Kind::Generate),
        (Dialect::Anthropic, "POST", "/v1/messages/count_tokens", Kind::CountTokens),
        (Dialect::Anthropic, "GET", "/v1/models", Kind::ListModels),
        (Dialect::Gemini, "POST", "/v1/models/gemini-2.5-pro:generateContent", Kind::Generate),
        (Dialect::Gemini, "POST", "/v1beta/models/g:streamGenerateContent", Kind::Generate),
        (Dialect::Gemini, "POST", "/v1beta/models/g:countTokens", Kind::CountTokens),
        (Dialect::Gemini, "POST", "/v1beta/models/g:embedContent", Kind::Embed),
        (Dialect::Gemini, "POST", "/v1beta/models/g:batchEmbedContents", Kind::Embed),
        (Dialect::Gemini, "GET", "/v1beta/models", Kind::ListModels),
        (Dialect::Gemini, "GET", "/v1beta/models/gemini-2.5-pro", Kind::ListModels),
    ];
    for (dialect, method, path, kind) in table {
        let call = dialect.classify(&method.parse().unwrap(), path, None).unwrap();
        assert_eq!((call.dialect(), call.kind()), (dialect, kind), "{path}");
    }
}

#[test]
fn a_path_of_gemini_names_model_and_streaming_and_the_model_can_be_replaced() {
    let path = "/v1beta/models/gemini-2.5-flash:streamGenerateContent";
    let call = Dialect::Gemini.classify(&Method::POST, path, Some("alt=sse")).unwrap();
    assert_eq!((call.model(), call.stream()), (Some("gemini-2.5-flash"), Some(true)));
    let mapped = call.path_with_model(path, "gemini-3.8-flash").unwrap();
    assert_eq!(mapped, "/v1beta/models/gemini-3.8-flash:streamGenerateContent");
    let path = "/v1/models/gemini-2.5-flash:generateContent";
    let call = Dialect::Gemini.classify(&Method::POST, path, None).unwrap();
    assert_eq!((call.model(), call.stream()), (Some("gemini-2.5-flash"), Some(false)));
    let call = super::chat();
    assert_eq!(
        (call.model(), call.stream(), call.path_with_model("/v1/x", "m")),
        (None, None, None)
    );
}

#[test]
fn other_calls_are_unsupported_and_the_text_says_what_is_possible() {
    let table = [
        (Dialect::OpenAi, "POST", "/v1/batches", "batches are not covered"),
        (Dialect::OpenAi, "POST", "/v1/files", "send the file's content in the request"),
        (Dialect::OpenAi, "GET", "/v1/realtime", "realtime connections are not covered"),
        (Dialect::OpenAi, "GET", "/v1/responses/resp_1", "stored responses are not covered"),
        (Dialect::OpenAi, "POST", "/v1/completions", "use POST /v1/chat/completions"),
        (Dialect::OpenAi, "POST", "/chat/completions", "base URL to end in /openai/v1"),
        (Dialect::OpenAi, "POST", "/deployments/d/chat/completions", "Azure OpenAI"),
        (Dialect::OpenAi, "GET", "/v1/chat/completions", "use POST /v1/chat/completions"),
        (Dialect::OpenAi, "GET", "/v1/models/../files", "this call is not covered"),
        (Dialect::OpenAi, "GET", "/v1/models/", "this call is not covered"),
        (Dialect::OpenAi, "POST", "/v1/images/generations", "this call is not covered"),
        (Dialect::Anthropic, "POST", "/v1/messages/batches", "batches are not covered"),
        (Dialect::Anthropic, "POST", "/v1/files", "files are not covered"),
        (Dialect::Anthropic, "POST", "/model/anthropic.claude/converse", "Amazon Bedrock"),
        (Dialect::Anthropic, "POST", "/v1/projects/p/locations/l/m:rawPredict", "Vertex AI"),
        (Dialect::Anthropic, "POST", "/v1/v1/messages", "base URL to end in /anthropic"),
        (
            Dialect::Gemini,
            "POST",
            "/v1beta/models/g:batchGenerateContent",
            "batches are not covered",
        ),
        (Dialect::Gemini, "POST", "/v1beta/files", "files are not covered"),
        (Dialect::Gemini, "POST", "/v1beta/cachedContents", "cached contents are not covered"),
        (Dialect::Gemini, "GET", "/ws/g.BidiGenerateContent", "live connections are not covered"),
        (Dialect::Gemini, "POST", "/v1beta1/projects/p/models/g:generateContent", "Vertex AI"),
        (Dialect::Gemini, "POST", "/v1beta/openai/chat/completions", "dialect openai"),
        (
            Dialect::Gemini,
            "POST",
            "/v1beta/models/a/../b:generateContent",
            "this call is not covered",
        ),
        (Dialect::Gemini, "POST", "/v1beta/models/:generateContent", "this call is not covered"),
        (Dialect::Gemini, "GET", "/v1beta/models/g:generateContent/..", "this call is not covered"),
    ];
    for (dialect, method, path, wanted) in table {
        let error = dialect.classify(&method.parse().unwrap(), path, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.starts_with(&format!("{method} {path}: ")) && text.contains(wanted), "{text}");
    }
    let long = format!("/{}", "x".repeat(10_000));
    let error = Dialect::OpenAi.classify(&Method::POST, &long, None).unwrap_err();
    assert!(error.to_string().len() < 500);
}
