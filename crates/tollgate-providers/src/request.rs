//! What a request asks for, and rewriting of the few bytes of it that a gateway changes.

use std::borrow::Cow;
use std::ops::Range;

use crate::bounds::MODEL_BYTES_MAX;
use crate::error::Error;
use crate::json::{JsonError, Kind, Result, Scanner, Text};

/// The estimated tokens of an image, whose real cost depends on its size and the model.
const IMAGE_TOKENS: u64 = 1_000;
/// The estimated tokens of an audio part.
const AUDIO_TOKENS: u64 = 2_000;
/// The estimated tokens of a file, such as a document or a video.
const FILE_TOKENS: u64 = 4_000;

/// The overhead of a message beyond its text, in quarters of a token.
pub(crate) const MESSAGE_QUARTERS: u64 = 16;

/// What a gateway needs to know about a request. Made by [`Call::read_request`](crate::Call::read_request).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestFacts {
    /// The model, from the body or the path.
    pub model: String,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// The declared maximum output of one candidate, in tokens.
    pub max_output_tokens: Option<u64>,
    /// The number of answers to generate, at least 1 for a generation.
    pub candidates: u64,
    /// The estimated tokens of the text, before calibration.
    pub text_tokens: u64,
    /// The number of images.
    pub images: u64,
    /// The number of audio parts.
    pub audio: u64,
    /// The number of other files: documents, videos.
    pub files: u64,
    /// Whether the request refers to input that the provider holds, such as an earlier response or cached content, whose size is
    /// unknown here.
    pub has_stored_input: bool,
    /// Whether the client asked for usage in the stream itself.
    pub asks_usage: bool,
    /// Whether the provider may generate output that it charges and does not send: reasoning.
    pub may_hide_output: bool,
    /// The values of the model in the body, without quotes.
    pub(crate) models: Vec<Range<usize>>,
    /// Where `stream_options.include_usage` is or would be, if the dialect has it.
    pub(crate) usage_option: Option<UsageOption>,
}

/// Where usage is asked for in the body of a chat completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UsageOption {
    /// `stream_options` is absent: the position after the opening brace of the body, which has members.
    Absent(usize),
    /// `stream_options` is not an object: its value.
    NotObject(Range<usize>),
    /// `stream_options` lacks `include_usage`: the position after its brace, and whether it has members.
    Object { start: usize, is_empty: bool },
    /// `include_usage` is there: its value.
    Value(Range<usize>),
}

/// The changes that [`RequestFacts::rewrite`] makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewrite<'a> {
    /// The model to name instead. Where the path names it, [`Call::path_with_model`](crate::Call::path_with_model) replaces it there.
    pub model: Option<&'a str>,
    /// Whether to ask for usage in the stream of a chat completion, if the client does not.
    pub include_usage: bool,
}

impl RequestFacts {
    /// Returns the declared maximum output of all candidates, in tokens.
    #[must_use]
    pub fn output_tokens_declared(&self) -> Option<u64> {
        Some(self.max_output_tokens?.saturating_mul(self.candidates.max(1)))
    }

    /// Returns the estimated input: text, before calibration, plus a fixed cost per image, audio part and file.
    #[must_use]
    pub const fn input_tokens(&self) -> u64 {
        self.text_tokens.saturating_add(self.media_tokens())
    }

    /// Returns the estimated tokens of images, audio and files.
    #[must_use]
    pub const fn media_tokens(&self) -> u64 {
        let images = self.images.saturating_mul(IMAGE_TOKENS);
        let audio = self.audio.saturating_mul(AUDIO_TOKENS);
        images.saturating_add(audio).saturating_add(self.files.saturating_mul(FILE_TOKENS))
    }

    /// Returns whether the input is text, all of it in the body: only then can the estimate be compared with the reported usage.
    #[must_use]
    pub const fn is_text_only(&self) -> bool {
        self.images == 0 && self.audio == 0 && self.files == 0 && !self.has_stored_input
    }

    /// Applies `changes` to `body`, the one that was read. Every other byte stays as it is, and a body without changes is borrowed.
    #[must_use]
    pub fn rewrite<'a>(&self, body: &'a [u8], changes: &Rewrite<'_>) -> Cow<'a, [u8]> {
        let mut edits: Vec<(Range<usize>, Cow<'_, str>)> = Vec::new();
        if let Some(model) = changes.model.filter(|model| *model != self.model) {
            let quoted = serde_json::Value::from(model).to_string();
            let model = quoted[1..quoted.len() - 1].to_owned();
            for range in &self.models {
                // Gemini's bodies may name the collection before the model; elsewhere it is part of the name.
                let old = body.get(range.clone()).unwrap_or_default();
                let has_collection =
                    old.starts_with(b"models/") && !self.model.starts_with("models/");
                let prefix = if has_collection { "models/" } else { "" };
                edits.push((range.clone(), format!("{prefix}{model}").into()));
            }
        }
        if changes.include_usage && self.stream && !self.asks_usage {
            edits.extend(self.usage_option.as_ref().map(UsageOption::edit));
        }
        if edits.is_empty() {
            return Cow::Borrowed(body);
        }
        edits.sort_by_key(|(range, _)| range.start);
        let mut rewritten = Vec::with_capacity(body.len() + 64 * edits.len());
        let mut copied = 0;
        for (range, text) in edits {
            rewritten.extend_from_slice(body.get(copied..range.start).unwrap_or_default());
            rewritten.extend_from_slice(text.as_bytes());
            copied = range.end;
        }
        rewritten.extend_from_slice(body.get(copied..).unwrap_or_default());
        Cow::Owned(rewritten)
    }

    /// Takes the model from the value at `scanner`.
    pub(crate) fn read_model(&mut self, scanner: &mut Scanner<'_>) -> Result<()> {
        let Some(text) = scanner.text()? else {
            return Err(scanner.error("\"model\" must be a string"));
        };
        self.models.push(text.range());
        self.model = text.unescaped().into_owned();
        Ok(())
    }

    /// Checks the body's model.
    pub(crate) fn check_model(&self) -> Result<(), Error> {
        if self.model.is_empty() {
            return Err(Error::request("the body names no model; add \"model\""));
        }
        if MODEL_BYTES_MAX < self.model.len() || self.model.contains(|c: char| c.is_control()) {
            return Err(Error::request(format!(
                "the model's name must have at most {MODEL_BYTES_MAX} bytes and no control characters"
            )));
        }
        Ok(())
    }

    /// Adds an image, an audio part or a file by its media type.
    pub(crate) fn add_media(&mut self, media_type: &str) {
        match media_type.split('/').next() {
            Some("image") => self.images += 1,
            Some("audio") => self.audio += 1,
            _ => self.files += 1,
        }
    }
}

impl UsageOption {
    fn edit(&self) -> (Range<usize>, Cow<'static, str>) {
        match self {
            Self::Absent(start) => {
                (*start..*start, r#""stream_options":{"include_usage":true},"#.into())
            }
            Self::NotObject(value) => (value.clone(), r#"{"include_usage":true}"#.into()),
            Self::Object { start, is_empty: true } => {
                (*start..*start, r#""include_usage":true"#.into())
            }
            Self::Object { start, .. } => (*start..*start, r#""include_usage":true,"#.into()),
            Self::Value(value) => (value.clone(), "true".into()),
        }
    }
}

/// Reads content: a string, or parts in nested arrays and objects. Text counts, binary data is counted by part, and members that are
/// neither are skipped. The names are those of all dialects.
pub(crate) fn read_content(
    scanner: &mut Scanner<'_>,
    facts: &mut RequestFacts,
    quarters: &mut u64,
) -> Result<()> {
    match scanner.kind()? {
        Kind::String => {
            *quarters += scanner.text()?.map_or(0, |text| text.quarters());
            Ok(())
        }
        Kind::Array => scanner.array(|scanner| read_content(scanner, facts, quarters)),
        Kind::Object => read_part(scanner, facts, quarters),
        Kind::Number | Kind::Bool | Kind::Null => scanner.skip(),
    }
}

fn read_part(
    scanner: &mut Scanner<'_>,
    facts: &mut RequestFacts,
    quarters: &mut u64,
) -> Result<()> {
    let mut kind: Option<Text<'_>> = None;
    let mut source: Option<Scanner<'_>> = None;
    scanner.object(|scanner, key| {
        match &*key.unescaped() {
            "text"
            | "content"
            | "parts"
            | "output"
            | "summary"
            | "refusal"
            | "thinking"
            | "reasoning_content"
            | "reasoning"
            | "name"
            | "title"
            | "context"
            | "tool_calls"
            | "function_call"
            | "functionCall"
            | "function"
            | "functionResponse"
            | "function_response"
            | "executableCode"
            | "executable_code"
            | "code"
            | "codeExecutionResult"
            | "code_execution_result" => {
                read_content(scanner, facts, quarters)?;
            }
            // Of any shape: a tool's input and output.
            "arguments" | "input" | "args" | "response" => *quarters += scanner.all_quarters()?,
            "image_url" => facts.images += read_presence(scanner)?,
            "input_audio" => facts.audio += read_presence(scanner)?,
            // Binary data of Gemini's has a media type; other dialects have a string or a number of members.
            "inlineData" | "inline_data" | "fileData" | "file_data"
                if scanner.kind()? == Kind::Object =>
            {
                let media_type = read_media_type(scanner)?;
                facts.add_media(&media_type);
            }
            "file" | "file_data" | "file_id" | "file_url" => facts.files += read_presence(scanner)?,
            "type" => kind = scanner.text()?,
            // Its meaning depends on the type, which may follow.
            "source" => {
                source = Some(scanner.clone());
                scanner.skip()?;
            }
            _ => scanner.skip()?,
        }
        Ok::<_, JsonError>(())
    })?;
    if kind.is_some_and(|kind| kind.is("item_reference")) {
        facts.has_stored_input = true;
    }
    match source {
        Some(mut source) => read_source(&mut source, kind, facts, quarters),
        None => Ok(()),
    }
}

/// Skips the next value and returns 1, or 0 if it is null.
fn read_presence(scanner: &mut Scanner<'_>) -> Result<u64> {
    let is_present = scanner.kind()? != Kind::Null;
    scanner.skip()?;
    Ok(u64::from(is_present))
}

/// Returns the media type of Gemini's binary data.
fn read_media_type(scanner: &mut Scanner<'_>) -> Result<String> {
    let mut media_type = String::new();
    scanner.members(&["mimeType", "mime_type"], |scanner, _| {
        media_type = scanner.text()?.map_or_else(String::new, |text| text.unescaped().into_owned());
        Ok::<_, JsonError>(())
    })?;
    Ok(media_type)
}

/// Reads the source of an image or a document of Anthropic's.
fn read_source(
    scanner: &mut Scanner<'_>,
    part: Option<Text<'_>>,
    facts: &mut RequestFacts,
    quarters: &mut u64,
) -> Result<()> {
    let mut is_text = false;
    let mut text = 0;
    scanner.members(&["type", "data", "content"], |scanner, name| {
        match name {
            "type" => {
                let kind = scanner.text()?;
                is_text = kind.is_some_and(|kind| kind.is("text") || kind.is("content"));
            }
            "data" => text += scanner.text()?.map_or(0, |data| data.quarters()),
            _ => read_content(scanner, facts, quarters)?,
        }
        Ok::<_, JsonError>(())
    })?;
    match part {
        _ if is_text => *quarters += text,
        Some(part) if part.is("image") => facts.images += 1,
        _ => facts.files += 1,
    }
    Ok(())
}
