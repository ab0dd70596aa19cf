//! The calls of LLM dialects whose bodies are fuzzed.

use axum::http::Method;
use tollgate_providers::{Call, Dialect};

/// A dialect with a path and a query.
pub struct Path(Dialect, &'static str, Option<&'static str>);

/// A call of each shape.
pub const CALLS: [Path; 9] = [
    Path(Dialect::OpenAi, "/v1/chat/completions", None),
    Path(Dialect::OpenAi, "/v1/responses", None),
    Path(Dialect::OpenAi, "/v1/embeddings", None),
    Path(Dialect::Anthropic, "/v1/messages", None),
    Path(Dialect::Anthropic, "/v1/messages/count_tokens", None),
    Path(Dialect::Gemini, "/v1beta/models/m:streamGenerateContent", Some("alt=sse")),
    Path(Dialect::Gemini, "/v1beta/models/m:streamGenerateContent", None),
    Path(Dialect::Gemini, "/v1beta/models/m:countTokens", None),
    Path(Dialect::Gemini, "/v1beta/models/m:batchEmbedContents", None),
];

impl Path {
    /// Classifies it.
    pub fn call(&self) -> Call {
        self.0.classify(&Method::POST, self.1, self.2).expect("a call that is covered")
    }
}
