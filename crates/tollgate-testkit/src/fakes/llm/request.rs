//! What a request asks for, in any dialect.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value, json};

use crate::fakes::gemini::tokens_of;

/// The API that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dialect {
    OpenAi,
    Anthropic,
    Gemini,
}

impl Dialect {
    pub const ALL: [Self; 3] = [Self::OpenAi, Self::Anthropic, Self::Gemini];

    /// The name, which is also the optional first segment of a path.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoint {
    /// Chat completions of OpenAI.
    Chat,
    /// Responses of OpenAI.
    Responses,
    /// Messages of Anthropic.
    Messages,
    /// `generateContent` and `streamGenerateContent` of Gemini.
    Generate,
    Embeddings,
    CountTokens,
    Models,
}

/// A call of a function that the client offered.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolCall {
    pub(super) name: String,
    pub(super) arguments: Value,
}

/// A request in any dialect.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) dialect: Dialect,
    pub(super) endpoint: Endpoint,
    pub(super) model: String,
    /// Everything that is text.
    pub(super) text: String,
    pub(super) images: u64,
    /// The first tool that was offered.
    pub(super) tool: Option<ToolCall>,
    /// The result of a tool that ran.
    pub(super) tool_result: Option<String>,
    pub(super) output_max: Option<u64>,
    /// How many answers.
    pub(super) answers: u64,
    pub(super) is_stream: bool,
    /// Whether events have the usage (chat of OpenAI), or the stream is one of events (Gemini).
    pub(super) option: bool,
    /// The texts to embed.
    pub(super) inputs: Vec<String>,
}

/// What an image costs.
const IMAGE_TOKENS: u64 = 258;

impl Request {
    pub(super) fn new(dialect: Dialect, endpoint: Endpoint, model: &str) -> Self {
        Self {
            dialect,
            endpoint,
            model: model.to_owned(),
            text: String::new(),
            images: 0,
            tool: None,
            tool_result: None,
            output_max: None,
            answers: 1,
            is_stream: false,
            option: false,
            inputs: Vec::new(),
        }
    }

    pub(super) fn input(&self) -> u64 {
        let inputs: u64 = self.inputs.iter().map(|text| tokens_of(text)).sum();
        tokens_of(&self.text) + self.images * IMAGE_TOKENS + inputs
    }

    /// Returns a hash of the content, the same for the same conversation however it is asked for.
    pub(super) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.model, &self.text, self.images, &self.inputs).hash(&mut hasher);
        hasher.finish()
    }

    /// Adds a text with a space behind it.
    pub(super) fn push_text(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push(' ');
    }

    /// Takes the first function of `tools`, with an argument for each property of its schema.
    pub(super) fn offer(&mut self, name: &Value, schema: &Value) {
        if let (None, Some(name)) = (&self.tool, name.as_str()) {
            self.tool = Some(ToolCall { name: name.to_owned(), arguments: example(schema) });
        }
    }
}

/// Returns an object that fits `schema`.
fn example(schema: &Value) -> Value {
    let value = |schema: &Value| match schema["type"].as_str().map(str::to_lowercase).as_deref() {
        Some("number" | "integer") => json!(7),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("object") => json!({}),
        _ => json!("Paris"),
    };
    let properties = schema["properties"].as_object();
    let members = properties.into_iter().flatten();
    Value::Object(
        members.map(|(name, schema)| (name.clone(), value(schema))).collect::<Map<_, _>>(),
    )
}
