//! The prompt of one chunk: instructions, the terms that occur, the source before it, and numbered segments.
//!
//! Segments are numbered within their chunk, so that the same text makes the same prompt anywhere, and can be cached.

use std::fmt::Write as _;

use serde::Serialize;
use tollgate_providers::PaidTokens;

use crate::chunk::{CONTEXT_TOKENS, Chunk, OUTPUT_TOKENS_MAX};
use crate::document::{Document, Segment};
use crate::estimate::{self, Calibration};
use crate::glossary::Glossary;
use crate::language::Language;

/// The version of the prompt, a part of the cache key.
pub const PROMPT_VERSION: u32 = 2;

/// The overhead of a request beyond its texts, in tokens.
const FRAME_TOKENS: u64 = 16;

/// The maximum length of an answer, relative to the expected one, and its minimum, for thoughts.
const OUTPUT_TIMES: u64 = 3;
const OUTPUT_TOKENS_MIN: u64 = 2_048;

/// The parameters of a translation.
#[derive(Clone, Debug)]
pub struct Task {
    /// The language of the source.
    pub from: Language,
    /// The language to translate into.
    pub to: Language,
    /// Terms and their translations.
    pub glossary: Glossary,
    /// Additional instructions of the user, such as a tone.
    pub instructions: Option<String>,
    /// The size of the context before a chunk, in tokens.
    pub context_tokens: u64,
}

/// The prompt of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The instructions.
    pub system: String,
    /// Terms, context and segments.
    pub prompt: String,
    /// The estimated tokens of the request, before calibration.
    pub tokens: u64,
    /// The estimated tokens of the answer, an upper estimate.
    pub output_tokens: u64,
    /// The maximum tokens of the answer.
    pub max_output_tokens: u32,
}

/// The estimated tokens of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// Tokens of the whole request.
    pub input: u64,
    /// Tokens of the answer.
    pub output: u64,
}

impl From<Estimate> for PaidTokens {
    /// Assumes that nothing is cached.
    fn from(estimate: Estimate) -> Self {
        Self { input: estimate.input, output: estimate.output, ..Self::default() }
    }
}

impl Task {
    /// Returns a translation without a glossary and instructions, with [`CONTEXT_TOKENS`] of context.
    #[must_use]
    pub fn new(from: Language, to: Language) -> Self {
        Self {
            from,
            to,
            glossary: Glossary::default(),
            instructions: None,
            context_tokens: CONTEXT_TOKENS,
        }
    }

    /// Returns the prompt of `chunk` of `document`.
    #[must_use]
    pub fn prompt(&self, document: &Document, chunk: &Chunk) -> Prompt {
        let segments: Vec<_> = document.segments_in(chunk.segments.clone()).collect();
        self.prompt_for(document, &segments)
    }

    /// Returns the prompt of some segments of `document`. The context is the source before the first of them.
    #[must_use]
    pub fn prompt_for(&self, document: &Document, segments: &[Segment<'_>]) -> Prompt {
        let system = self.system();
        let mut prompt = String::new();
        let plain: Vec<String> = segments.iter().map(Segment::plain).collect();
        let terms = self.glossary.occurring(&plain.join("\n"));
        if !terms.is_empty() {
            prompt.push_str("Glossary (source => translation):\n");
            for term in terms {
                let _ = write!(prompt, "{} => {}", one_line(&term.source), one_line(&term.target));
                if let Some(note) = &term.note {
                    let _ = write!(prompt, " ({})", one_line(note));
                }
                prompt.push('\n');
            }
            prompt.push('\n');
        }
        let first = segments.first().map_or(0, Segment::number);
        let before = Chunk { segments: first..first, tokens: 0 };
        let context = before.context(document, self.context_tokens);
        if !context.is_empty() {
            let _ = write!(
                prompt,
                "Context, the text just before. Do not translate it:\n{context}\n\n"
            );
        }
        prompt.push_str("Translate these segments:\n");
        for (index, segment) in segments.iter().enumerate() {
            let _ = writeln!(prompt, "⟦#{}⟧ {}", index + 1, segment.text());
        }
        let heads = segments.len() as u64 * estimate::tokens("⟦#99⟧ \n");
        let texts: u64 = segments.iter().map(Segment::tokens).sum();
        let tokens = estimate::tokens(&system) + estimate::tokens(&prompt) + FRAME_TOKENS;
        let output_tokens = self.from.tokens_in(&self.to, texts) + heads;
        let most = (output_tokens * OUTPUT_TIMES).clamp(OUTPUT_TOKENS_MIN, OUTPUT_TOKENS_MAX);
        let max_output_tokens = u32::try_from(most).unwrap_or(u32::MAX);
        Prompt { system, prompt, tokens, output_tokens, max_output_tokens }
    }

    /// Estimates the tokens of the request for `chunk` on `model`.
    #[must_use]
    pub fn estimate(
        &self,
        document: &Document,
        chunk: &Chunk,
        model: &str,
        calibration: &Calibration,
    ) -> Estimate {
        let prompt = self.prompt(document, chunk);
        let input = calibration.corrected(model, &self.from, prompt.tokens);
        Estimate { input, output: prompt.output_tokens }
    }

    fn system(&self) -> String {
        let (from, to) = (self.from.name(), self.to.name());
        let mut system = format!(
            "You are a careful literary and technical translator from {from} into {to}.\n\
             Each segment begins with its number, as in ⟦#1⟧. Answer with every segment, in the same order, each with its \
             own number in front, and with nothing else: no remarks, no code fence.\n\
             Translate all of the text of a segment and add nothing. Do not merge segments and do not split them; keep a \
             line break inside a segment as one line break, and write no empty line inside one.\n\
             Marks such as ⟦1⟧ stand for markup, code, links and placeholders. Keep each exactly once, at the fitting place in \
             the translation; what ⟦1⟧ opens and ⟦2⟧ closes stays around the same words.\n\
             Keep numbers as they are, apart from the way {to} writes separators. Use the glossary where its terms occur, \
             inflected as the sentence needs. Keep names, tone and register consistent with the context."
        );
        if let Some(instructions) = &self.instructions {
            let _ = write!(system, "\n{}", instructions.trim());
        }
        system
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace(['⟦', '⟧'], "|")
}
