//! Gemini: generation, token counts, embeddings, models.

use http::Method;

use crate::call::{Call, Endpoint};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::request::RequestFacts;
use crate::usage::UsageMap;

/// The URL of Gemini.
pub(crate) const URL: &str = "https://generativelanguage.googleapis.com";

/// The time zone in which the day of the quota begins.
pub(crate) const ZONE: &str = "America/Los_Angeles";

pub(crate) fn usage_map() -> UsageMap {
    UsageMap::default()
}

pub(crate) fn classify(method: &Method, path: &str, query: Option<&str>) -> Result<Call, Error> {
    let _ = (method, path, query);
    Ok(Call::new(Dialect::Gemini, Endpoint::GeminiGenerate))
}

pub(crate) fn read_request(call: &Call, body: &[u8]) -> Result<RequestFacts, Error> {
    let _ = (call, body);
    Ok(RequestFacts::default())
}
