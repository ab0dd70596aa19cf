//! A classified call: what it is, and how its request and its answer are read.

use http::Method;

use crate::bounds::{MODEL_BYTES_MAX, PATH_CHARS_MAX};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::request::RequestFacts;
use crate::usage::UsageFields;
use crate::{anthropic, gemini, openai};

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallKind {
    /// Generates output: chat completions, responses, messages, `generateContent`.
    Generate,
    /// Computes embeddings; all its tokens are input.
    Embed,
    /// Counts tokens without generating.
    CountTokens,
    /// Lists models or describes one. It has no body and uses no tokens.
    ListModels,
}

/// The endpoint of a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Endpoint {
    OpenAiChat,
    OpenAiResponses,
    OpenAiEmbeddings,
    AnthropicMessages,
    AnthropicCount,
    GeminiGenerate,
    GeminiCount,
    GeminiEmbed,
    GeminiBatchEmbed,
    Models,
}

/// How a streamed answer is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Framing {
    /// Server-sent events.
    Events,
    /// One JSON array, whose elements arrive one by one.
    JsonArray,
}

/// A call that a dialect covers. Made by [`Dialect::classify`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub(crate) dialect: Dialect,
    pub(crate) endpoint: Endpoint,
    /// The model in the path, with where it is.
    pub(crate) model: Option<PathModel>,
    /// Whether the answer is streamed, if the path determines it.
    pub(crate) stream: Option<bool>,
    pub(crate) framing: Framing,
}

/// The model in a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathModel {
    pub(crate) name: String,
    /// The offset of the name in the path.
    pub(crate) offset: usize,
}

impl Call {
    pub(crate) const fn new(dialect: Dialect, endpoint: Endpoint) -> Self {
        Self { dialect, endpoint, model: None, stream: None, framing: Framing::Events }
    }

    /// Returns the dialect.
    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Returns what the call does.
    #[must_use]
    pub const fn kind(&self) -> CallKind {
        match self.endpoint {
            Endpoint::OpenAiChat
            | Endpoint::OpenAiResponses
            | Endpoint::AnthropicMessages
            | Endpoint::GeminiGenerate => CallKind::Generate,
            Endpoint::OpenAiEmbeddings | Endpoint::GeminiEmbed | Endpoint::GeminiBatchEmbed => {
                CallKind::Embed
            }
            Endpoint::AnthropicCount | Endpoint::GeminiCount => CallKind::CountTokens,
            Endpoint::Models => CallKind::ListModels,
        }
    }

    /// Returns the model in the path. The other dialects name it in the body: [`RequestFacts::model`].
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.model.as_ref().map(|model| model.name.as_str())
    }

    /// Returns whether the answer is streamed, if the path determines it; otherwise [`RequestFacts::stream`] does.
    #[must_use]
    pub const fn stream(&self) -> Option<bool> {
        self.stream
    }

    /// Returns whether usage in a stream must be asked for: [`Rewrite::include_usage`](crate::Rewrite::include_usage).
    #[must_use]
    pub const fn needs_usage_option(&self) -> bool {
        matches!(self.endpoint, Endpoint::OpenAiChat)
    }

    /// Returns `path` with the model in it replaced by `model`, and every other byte unchanged; `None` if the path names no model.
    /// `path` is the one that was classified.
    #[must_use]
    pub fn path_with_model(&self, path: &str, model: &str) -> Option<String> {
        let old = self.model.as_ref()?;
        let (before, rest) = path.split_at_checked(old.offset)?;
        let after = rest.strip_prefix(old.name.as_str())?;
        Some(format!("{before}{model}{after}"))
    }

    /// Reads the body of a request: which model, how large, streamed or not. Allocates nothing but the model's name and positions.
    ///
    /// # Errors
    /// [`ErrorKind::Request`](crate::ErrorKind::Request) if the body is not JSON of the dialect's shape, and
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for features that are not covered, such as `background`.
    pub fn read_request(&self, body: &[u8]) -> Result<RequestFacts, Error> {
        match self.endpoint {
            Endpoint::OpenAiChat => openai::read_chat(body),
            Endpoint::OpenAiResponses => openai::read_responses(body),
            Endpoint::OpenAiEmbeddings => openai::read_embeddings(body),
            Endpoint::AnthropicMessages | Endpoint::AnthropicCount => {
                anthropic::read_messages(body, self.endpoint)
            }
            Endpoint::GeminiGenerate
            | Endpoint::GeminiCount
            | Endpoint::GeminiEmbed
            | Endpoint::GeminiBatchEmbed => gemini::read_request(self, body),
            Endpoint::Models => Ok(RequestFacts::default()),
        }
    }

    /// Returns the usage that the body of a complete, unstreamed answer reports.
    #[must_use]
    pub fn read_response(&self, body: &[u8]) -> Option<UsageFields> {
        crate::usage::read_response(self.endpoint, body)
    }

    /// Returns whether the body of an unstreamed answer is JSON from its first to its last byte.
    #[must_use]
    pub fn is_whole_response(&self, body: &[u8]) -> bool {
        crate::json::is_whole(body)
    }
}

/// Returns whether `path` is the list at `models`, or one model in it.
pub(crate) fn is_models_path(path: &str, models: &str) -> bool {
    let rest = path.strip_prefix(models);
    rest.is_some_and(|rest| rest.is_empty() || rest.strip_prefix('/').is_some_and(is_model_name))
}

/// Returns whether `name` can be a model in a path: no empty or dotted segment, and no character with a meaning there.
pub(crate) fn is_model_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:@/".contains(&byte);
    name.len() <= MODEL_BYTES_MAX
        && name.bytes().all(is_plain)
        && name.split('/').all(|part| !["", ".", ".."].contains(&part))
}

/// Returns the error for a call that is not covered.
pub(crate) fn unsupported(method: &Method, path: &str, why: &str) -> Error {
    let path: String = path.chars().take(PATH_CHARS_MAX).collect();
    Error::unsupported(format!("{method} {path}: {why}"))
}
