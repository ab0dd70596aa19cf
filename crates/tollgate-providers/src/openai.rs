//! OpenAI: chat completions, responses, embeddings, models. Compatible servers speak it too.

use http::Method;

use crate::call::{self, Call, Endpoint};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::json::{Kind, Names, Scanner};
use crate::request::{MESSAGE_QUARTERS, RequestFacts, UsageOption, read_content};
use crate::usage::UsageMap;

/// The URL of OpenAI.
pub(crate) const URL: &str = "https://api.openai.com";

/// The calls that are covered, for errors.
const COVERED: &str =
    "use POST /v1/chat/completions, /v1/responses or /v1/embeddings, or GET /v1/models";

/// A limit of tokens counts input and output. Chat completions and responses name the same numbers differently, so that one of each
/// pair is absent.
pub(crate) fn usage_map() -> UsageMap {
    UsageMap::built_in(&[
        ("tokens", "total_tokens"),
        ("input_tokens", "prompt_tokens + input_tokens"),
        ("output_tokens", "completion_tokens + output_tokens"),
    ])
}

pub(crate) fn classify(method: &Method, path: &str) -> Result<Call, Error> {
    let endpoint = match (method.as_str(), path) {
        ("POST", "/v1/chat/completions") => Endpoint::OpenAiChat,
        ("POST", "/v1/responses") => Endpoint::OpenAiResponses,
        ("POST", "/v1/embeddings") => Endpoint::OpenAiEmbeddings,
        ("GET", _) if call::is_models_path(path, "/v1/models") => Endpoint::Models,
        _ => return Err(unsupported(method, path)),
    };
    Ok(Call::new(Dialect::OpenAi, endpoint))
}

fn unsupported(method: &Method, path: &str) -> Error {
    let below = |prefix: &str| {
        path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let why = if below("/chat/completions") || below("/responses") || below("/embeddings") {
        "the path lacks the version; set the client's base URL to end in /openai/v1".to_owned()
    } else if below("/v1/batches") {
        format!("batches are not covered, since their usage is reported hours later; {COVERED}")
    } else if below("/v1/files") || below("/v1/uploads") {
        format!("files are not covered; send the file's content in the request, and {COVERED}")
    } else if below("/v1/realtime") {
        format!("realtime connections are not covered; {COVERED}")
    } else if below("/v1/responses") {
        format!("stored responses are not covered; {COVERED}")
    } else if below("/v1/completions") {
        "legacy completions are not covered; use POST /v1/chat/completions".to_owned()
    } else if below("/deployments") {
        format!("paths of Azure OpenAI are not covered; {COVERED}")
    } else {
        format!("this call is not covered; {COVERED}")
    };
    call::unsupported(method, path, &why)
}

/// Returns whether `model` reasons before it answers: the o series and GPT-5 and later. Such a model charges output that it does not
/// send, takes `max_completion_tokens` in place of `max_tokens`, and rejects a temperature.
#[must_use]
pub fn is_openai_reasoning_model(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or(model);
    let digits = |rest: &str| rest.bytes().take_while(u8::is_ascii_digit).count();
    if let Some(rest) = name.strip_prefix("gpt-") {
        let major = rest[..digits(rest)].parse::<u32>();
        return major.is_ok_and(|major| 5 <= major) && !rest.contains("chat");
    }
    let rest = name.strip_prefix("codex-").or_else(|| name.strip_prefix("computer-use-"));
    rest.is_some() || name.strip_prefix('o').is_some_and(|rest| 0 < digits(rest))
}

pub(crate) fn read_chat(body: &[u8]) -> Result<RequestFacts, Error> {
    let mut facts = RequestFacts { candidates: 1, ..RequestFacts::default() };
    let (mut quarters, mut has_effort) = (0, false);
    let mut scanner = Scanner::of_body(body, Names::Exact)?;
    scanner.expect_object()?;
    facts.usage_option = Some(UsageOption::Absent(scanner.position() + 1));
    let names = [
        "model",
        "messages",
        "max_completion_tokens",
        "max_tokens",
        "n",
        "stream",
        "stream_options",
        "tools",
        "functions",
        "response_format",
        "prediction",
        "reasoning_effort",
    ];
    scanner.members(&names, |scanner, name| {
        match name {
            "model" => facts.read_model(scanner)?,
            "messages" => scanner.elements(|scanner| {
                quarters += MESSAGE_QUARTERS;
                read_content(scanner, &mut facts, &mut quarters)
            })?,
            // Where a client sends both, servers differ in which they read.
            "max_completion_tokens" | "max_tokens" => {
                facts.max_output_tokens = facts.max_output_tokens.max(scanner.number()?);
            }
            "n" => facts.candidates = scanner.number()?.unwrap_or(1).max(1),
            "stream" => facts.stream = scanner.boolean()?.unwrap_or(false),
            "stream_options" => {
                let (option, asks_usage) = read_stream_options(scanner)?;
                (facts.usage_option, facts.asks_usage) = (Some(option), asks_usage);
            }
            "reasoning_effort" => {
                has_effort = scanner.text()?.is_some_and(|effort| !effort.is("none"));
            }
            "prediction" => read_content(scanner, &mut facts, &mut quarters)?,
            _ => quarters += scanner.all_quarters()?,
        }
        Ok::<_, Error>(())
    })?;
    scanner.end()?;
    facts.text_tokens = quarters.div_ceil(4);
    facts.may_hide_output = has_effort || is_openai_reasoning_model(&facts.model);
    facts.check_model().map(|()| facts)
}

fn read_stream_options(scanner: &mut Scanner<'_>) -> Result<(UsageOption, bool), Error> {
    let is_object = scanner.kind()? == Kind::Object;
    let start = scanner.position();
    let mut value = None;
    let mut inner = scanner.clone();
    inner.members(&["include_usage"], |scanner, _| {
        value = Some(scanner.range()?);
        Ok::<_, Error>(())
    })?;
    let range = scanner.range()?;
    Ok(match value {
        _ if !is_object => (UsageOption::NotObject(range), false),
        Some(value) => {
            let asks_usage = scanner.slice(value.clone()) == "true";
            (UsageOption::Value(value), asks_usage)
        }
        None => {
            let inside = &scanner.slice(range)[1..];
            let is_empty = inside.trim_start().starts_with('}');
            (UsageOption::Object { start: start + 1, is_empty }, false)
        }
    })
}

pub(crate) fn read_responses(body: &[u8]) -> Result<RequestFacts, Error> {
    let mut facts = RequestFacts { candidates: 1, ..RequestFacts::default() };
    let (mut quarters, mut reasons, mut background) = (MESSAGE_QUARTERS, false, false);
    let mut scanner = Scanner::of_body(body, Names::Exact)?;
    scanner.expect_object()?;
    let names = [
        "model",
        "input",
        "instructions",
        "max_output_tokens",
        "stream",
        "background",
        "previous_response_id",
        "conversation",
        "prompt",
        "reasoning",
        "tools",
        "text",
    ];
    scanner.members(&names, |scanner, name| {
        match name {
            "model" => facts.read_model(scanner)?,
            "input" if scanner.kind()? == Kind::Array => scanner.elements(|scanner| {
                quarters += MESSAGE_QUARTERS;
                read_content(scanner, &mut facts, &mut quarters)
            })?,
            "input" | "instructions" => read_content(scanner, &mut facts, &mut quarters)?,
            "max_output_tokens" => facts.max_output_tokens = scanner.number()?,
            "stream" => facts.stream = scanner.boolean()?.unwrap_or(false),
            "background" => background = scanner.boolean()?.unwrap_or(false),
            "previous_response_id" | "conversation" | "prompt" => {
                facts.has_stored_input |= scanner.kind()? != Kind::Null;
                scanner.skip()?;
            }
            "reasoning" => {
                reasons = scanner.kind()? == Kind::Object;
                scanner.skip()?;
            }
            _ => quarters += scanner.all_quarters()?,
        }
        Ok::<_, Error>(())
    })?;
    scanner.end()?;
    if background {
        let why = "\"background\": true is not covered, since the answer is not in the response; send \"background\": false";
        return Err(Error::unsupported(why));
    }
    facts.text_tokens = quarters.div_ceil(4);
    facts.may_hide_output = reasons || is_openai_reasoning_model(&facts.model);
    facts.check_model().map(|()| facts)
}

pub(crate) fn read_embeddings(body: &[u8]) -> Result<RequestFacts, Error> {
    let mut facts = RequestFacts::default();
    let (mut quarters, mut tokens) = (0, 0);
    let mut scanner = Scanner::of_body(body, Names::Exact)?;
    scanner.expect_object()?;
    scanner.members(&["model", "input"], |scanner, name| match name {
        "model" => facts.read_model(scanner),
        _ => read_embedding_input(scanner, &mut quarters, &mut tokens),
    })?;
    scanner.end()?;
    facts.text_tokens = quarters.div_ceil(4) + tokens;
    facts.check_model().map(|()| facts)
}

/// Reads a string, an array of tokens, or an array of either.
fn read_embedding_input(
    scanner: &mut Scanner<'_>,
    quarters: &mut u64,
    tokens: &mut u64,
) -> crate::json::Result<()> {
    match scanner.kind()? {
        Kind::Array => scanner.array(|scanner| read_embedding_input(scanner, quarters, tokens)),
        Kind::Number => {
            *tokens += 1;
            scanner.skip()
        }
        _ => {
            *quarters += scanner.text()?.map_or(0, |text| text.quarters());
            Ok(())
        }
    }
}
