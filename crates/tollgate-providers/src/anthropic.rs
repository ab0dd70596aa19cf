//! Anthropic: messages, token counts, models.

use http::Method;

use crate::call::{self, Call, Endpoint};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::json::{Names, Scanner};
use crate::request::{MESSAGE_QUARTERS, RequestFacts, read_content};
use crate::usage::UsageMap;

/// The URL of Anthropic.
pub(crate) const URL: &str = "https://api.anthropic.com";

/// The calls that are covered, for errors.
const COVERED: &str = "use POST /v1/messages or /v1/messages/count_tokens, or GET /v1/models";

/// Input that is read from the cache does not count against the limits of current models; `input_tokens` leaves it out.
pub(crate) fn usage_map() -> UsageMap {
    UsageMap::built_in(&[
        ("tokens", "input_tokens + cache_creation_input_tokens + output_tokens"),
        ("input_tokens", "input_tokens + cache_creation_input_tokens"),
        ("output_tokens", "output_tokens"),
    ])
}

pub(crate) fn classify(method: &Method, path: &str) -> Result<Call, Error> {
    let endpoint = match (method.as_str(), path) {
        ("POST", "/v1/messages") => Endpoint::AnthropicMessages,
        ("POST", "/v1/messages/count_tokens") => Endpoint::AnthropicCount,
        ("GET", _) if call::is_models_path(path, "/v1/models") => Endpoint::Models,
        _ => return Err(unsupported(method, path)),
    };
    Ok(Call::new(Dialect::Anthropic, endpoint))
}

fn unsupported(method: &Method, path: &str) -> Error {
    let why = if path.starts_with("/v1/messages/batches") {
        format!("batches are not covered, since their usage is reported hours later; {COVERED}")
    } else if path.starts_with("/v1/files") {
        format!("files are not covered; send the file's content in the request, and {COVERED}")
    } else if path.starts_with("/model/") {
        format!("paths of Amazon Bedrock are not covered; {COVERED}")
    } else if path.contains("/projects/") {
        format!("paths of Vertex AI are not covered; {COVERED}")
    } else if path == "/messages" || path.starts_with("/v1/v1/") {
        "the version must occur once; set the client's base URL to end in /anthropic".to_owned()
    } else {
        format!("this call is not covered; {COVERED}")
    };
    call::unsupported(method, path, &why)
}

pub(crate) fn read_messages(body: &[u8], endpoint: Endpoint) -> Result<RequestFacts, Error> {
    let mut facts = RequestFacts::default();
    let (mut quarters, mut thinks) = (0, false);
    let mut scanner = Scanner::of_body(body, Names::Exact)?;
    scanner.expect_object()?;
    let names = [
        "model",
        "messages",
        "system",
        "max_tokens",
        "stream",
        "tools",
        "thinking",
        "output_format",
        "output_config",
        "container",
    ];
    scanner.members(&names, |scanner, name| {
        match name {
            "model" => facts.read_model(scanner)?,
            "messages" => scanner.elements(|scanner| {
                quarters += MESSAGE_QUARTERS;
                read_content(scanner, &mut facts, &mut quarters)
            })?,
            "system" => read_content(scanner, &mut facts, &mut quarters)?,
            "max_tokens" => facts.max_output_tokens = scanner.number()?,
            "stream" => facts.stream = scanner.boolean()?.unwrap_or(false),
            // Summaries of thoughts are sent, and the whole thoughts are charged.
            "thinking" => scanner.members(&["type"], |scanner, _| {
                thinks = scanner.text()?.is_some_and(|kind| !kind.is("disabled"));
                Ok::<_, Error>(())
            })?,
            "container" => {
                facts.has_stored_input |= scanner.kind()? != crate::json::Kind::Null;
                scanner.skip()?;
            }
            _ => quarters += scanner.all_quarters()?,
        }
        Ok::<_, Error>(())
    })?;
    scanner.end()?;
    facts.text_tokens = quarters.div_ceil(4);
    if endpoint == Endpoint::AnthropicMessages {
        facts.candidates = 1;
        facts.may_hide_output = thinks;
    } else {
        (facts.stream, facts.max_output_tokens) = (false, None);
    }
    facts.check_model().map(|()| facts)
}
