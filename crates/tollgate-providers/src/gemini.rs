//! Gemini: generation, token counts, embeddings, models.

use http::Method;

use crate::call::{self, Call, Endpoint, Framing, PathModel};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::json::{Kind, Names, Scanner};
use crate::request::{MESSAGE_QUARTERS, RequestFacts, read_content};
use crate::usage::UsageMap;

/// The URL of Gemini.
pub(crate) const URL: &str = "https://generativelanguage.googleapis.com";

/// The time zone in which the day of the quota begins.
pub(crate) const ZONE: &str = "America/Los_Angeles";

/// The calls that are covered, for errors.
const COVERED: &str = "use POST /v1beta/models/MODEL:generateContent, :streamGenerateContent, :countTokens, :embedContent or \
                       :batchEmbedContents, or GET /v1beta/models";

/// A limit of tokens counts input only.
pub(crate) fn usage_map() -> UsageMap {
    UsageMap::built_in(&[
        ("tokens", "promptTokenCount + toolUsePromptTokenCount"),
        ("input_tokens", "promptTokenCount + toolUsePromptTokenCount"),
        ("output_tokens", "candidatesTokenCount + thoughtsTokenCount"),
    ])
}

pub(crate) fn classify(method: &Method, path: &str, query: Option<&str>) -> Result<Call, Error> {
    let models =
        ["/v1beta/models", "/v1/models"].into_iter().find(|models| path.starts_with(models));
    let Some(models) = models else { return Err(unsupported(method, path)) };
    if method == Method::GET && call::is_models_path(path, models) {
        return Ok(Call::new(Dialect::Gemini, Endpoint::Models));
    }
    let named = path[models.len()..].strip_prefix('/').and_then(|rest| rest.rsplit_once(':'));
    let named = named.filter(|(model, _)| call::is_model_name(model) && !model.contains('/'));
    let Some((model, verb)) = named.filter(|_| method == Method::POST) else {
        return Err(unsupported(method, path));
    };
    let endpoint = match verb {
        "generateContent" | "streamGenerateContent" => Endpoint::GeminiGenerate,
        "countTokens" => Endpoint::GeminiCount,
        "embedContent" => Endpoint::GeminiEmbed,
        "batchEmbedContents" => Endpoint::GeminiBatchEmbed,
        _ => return Err(unsupported(method, path)),
    };
    let stream = verb == "streamGenerateContent";
    let is_sse = || query.is_some_and(|query| query.split('&').any(|pair| pair == "alt=sse"));
    Ok(Call {
        model: Some(PathModel { name: model.to_owned(), offset: models.len() + 1 }),
        stream: Some(stream),
        framing: if stream && !is_sse() { Framing::JsonArray } else { Framing::Events },
        ..Call::new(Dialect::Gemini, endpoint)
    })
}

fn unsupported(method: &Method, path: &str) -> Error {
    let why = if path.contains("/projects/") {
        format!("paths of Vertex AI are not covered; {COVERED}")
    } else if path.contains("/files") {
        format!("files are not covered; send the file's content in the request, and {COVERED}")
    } else if path.contains("batchGenerateContent") || path.contains("/batches") {
        format!("batches are not covered, since their usage is reported hours later; {COVERED}")
    } else if path.starts_with("/ws/") || path.contains("BidiGenerateContent") {
        format!("live connections are not covered; {COVERED}")
    } else if path.contains("/cachedContents") {
        format!("cached contents are not covered; {COVERED}")
    } else if path.contains("/openai/") {
        "Gemini's endpoint in OpenAI's dialect is not covered here; use an upstream of the dialect openai".to_owned()
    } else {
        format!("this call is not covered; {COVERED}")
    };
    call::unsupported(method, path, &why)
}

/// Returns whether `model` thinks unless told not to: Gemini 2.5 and later.
fn thinks(model: &str) -> bool {
    let Some(version) = model.strip_prefix("gemini-") else { return false };
    let major = version.split(['.', '-']).next().and_then(|major| major.parse::<u32>().ok());
    version.starts_with("2.5") || major.is_some_and(|major| 3 <= major) || major.is_none()
}

pub(crate) fn read_request(call: &Call, body: &[u8]) -> Result<RequestFacts, Error> {
    let mut reader = Reader {
        facts: RequestFacts {
            model: call.model().unwrap_or_default().to_owned(),
            stream: call.stream == Some(true),
            ..RequestFacts::default()
        },
        quarters: 0,
        thinking: None,
    };
    let mut scanner = Scanner::of_body(body, Names::Protobuf)?;
    scanner.expect_object()?;
    match call.endpoint {
        Endpoint::GeminiBatchEmbed => scanner.members(&["requests"], |scanner, _| {
            scanner.elements(|scanner| reader.content_request(scanner))
        })?,
        Endpoint::GeminiCount => reader.count_request(&mut scanner)?,
        _ => reader.content_request(&mut scanner)?,
    }
    scanner.end()?;
    let Reader { mut facts, quarters, thinking } = reader;
    facts.text_tokens = quarters.div_ceil(4);
    if call.endpoint == Endpoint::GeminiGenerate {
        facts.candidates = facts.candidates.max(1);
        facts.may_hide_output = thinking.unwrap_or_else(|| thinks(&facts.model));
    } else {
        (facts.candidates, facts.max_output_tokens) = (0, None);
    }
    facts.check_model().map(|()| facts)
}

struct Reader {
    facts: RequestFacts,
    quarters: u64,
    /// Whether thinking was turned on or off explicitly.
    thinking: Option<bool>,
}

impl Reader {
    /// Reads the body of a count: contents, or a whole request for a generation.
    fn count_request(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Error> {
        scanner.members(&["contents", "generateContentRequest"], |scanner, name| match name {
            "contents" => self.contents(scanner),
            _ => self.content_request(scanner),
        })
    }

    /// Reads a request for a generation or an embedding.
    fn content_request(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Error> {
        let names = [
            "model",
            "contents",
            "content",
            "systemInstruction",
            "generationConfig",
            "cachedContent",
            "tools",
            "title",
        ];
        scanner.members(&names, |scanner, name| {
            match name {
                "model" => return self.model(scanner),
                "contents" => return self.contents(scanner),
                "generationConfig" => return self.config(scanner),
                "content" | "systemInstruction" | "title" => {
                    self.quarters += MESSAGE_QUARTERS;
                    read_content(scanner, &mut self.facts, &mut self.quarters)?;
                }
                "cachedContent" => {
                    self.facts.has_stored_input |= scanner.kind()? != Kind::Null;
                    scanner.skip()?;
                }
                _ => self.quarters += scanner.all_quarters()?,
            }
            Ok(())
        })
    }

    /// Reads the model's name in the body, which repeats the one in the path.
    fn model(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Error> {
        let Some(text) = scanner.text()? else { return Ok(()) };
        let name = text.unescaped();
        if name.strip_prefix("models/").unwrap_or(&name) != self.facts.model {
            return Err(Error::request(format!(
                "the body names another model than the path; name {} in both",
                self.facts.model
            )));
        }
        self.facts.models.push(text.range());
        Ok(())
    }

    fn contents(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Error> {
        if scanner.kind()? != Kind::Array {
            // A single content is accepted in place of a list.
            self.quarters += MESSAGE_QUARTERS;
            return Ok(read_content(scanner, &mut self.facts, &mut self.quarters)?);
        }
        scanner.array(|scanner| {
            self.quarters += MESSAGE_QUARTERS;
            Ok(read_content(scanner, &mut self.facts, &mut self.quarters)?)
        })
    }

    fn config(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Error> {
        let names = [
            "maxOutputTokens",
            "candidateCount",
            "thinkingConfig",
            "responseSchema",
            "responseJsonSchema",
        ];
        scanner.members(&names, |scanner, name| {
            match name {
                "maxOutputTokens" => self.facts.max_output_tokens = scanner.number()?,
                "candidateCount" => self.facts.candidates = scanner.number()?.unwrap_or(1),
                "thinkingConfig" => {
                    self.thinking = Some(true);
                    scanner.members(&["thinkingBudget"], |scanner, _| {
                        self.thinking = Some(scanner.number()? != Some(0));
                        Ok::<_, Error>(())
                    })?;
                }
                _ => self.quarters += scanner.all_quarters()?,
            }
            Ok(())
        })
    }
}
