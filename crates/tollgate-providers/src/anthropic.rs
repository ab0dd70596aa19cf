//! Anthropic: messages, token counts, models.

use http::Method;

use crate::call::{Call, Endpoint};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::request::RequestFacts;
use crate::usage::UsageMap;

/// The URL of Anthropic.
pub(crate) const URL: &str = "https://api.anthropic.com";

pub(crate) fn usage_map() -> UsageMap {
    UsageMap::default()
}

pub(crate) fn classify(method: &Method, path: &str) -> Result<Call, Error> {
    let _ = (method, path);
    Ok(Call::new(Dialect::Anthropic, Endpoint::AnthropicMessages))
}

pub(crate) fn read_messages(body: &[u8], endpoint: Endpoint) -> Result<RequestFacts, Error> {
    let _ = (body, endpoint);
    Ok(RequestFacts::default())
}
