//! Chunks: neighbouring segments in one request, with the source before them as context.
//!
//! Chunks are packed greedily, so they depend on the document and the size alone, and no chunk depends on the result of another.
//! Context is source text that the model does not translate: no text is in two chunks.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use unicode_segmentation::UnicodeSegmentation;

use crate::document::Document;
use crate::error::Error;
use crate::estimate;
use crate::language::Language;

/// The default size of a chunk, in estimated tokens of text.
pub const CHUNK_TOKENS: u64 = 3_500;

/// The default size of the context, in estimated tokens.
pub const CONTEXT_TOKENS: u64 = 250;

/// The minimum size of a chunk. Below it, a request is mostly instructions.
pub const CHUNK_TOKENS_MIN: u64 = 50;

/// The maximum tokens of an answer.
pub const OUTPUT_TOKENS_MAX: u64 = 65_536;

/// How many sizes one pass over a document compares: three passes then find one among all sizes.
const SIZES_AT_ONCE: u64 = 48;

/// Neighbouring segments in one request, identified by their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Chunk {
    /// The numbers of the segments.
    pub segments: Range<usize>,
    /// Their estimated tokens.
    pub tokens: u64,
}

impl Chunk {
    /// Returns the chunk of these segments of `document`.
    #[must_use]
    pub fn from_segments(document: &Document, segments: Range<usize>) -> Self {
        let tokens = document.segments_in(segments.clone()).map(|segment| segment.tokens()).sum();
        Self { segments, tokens }
    }

    /// Returns the number of segments.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Returns whether it has no segment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Splits the chunk between segments near the middle; `None` for a single segment.
    #[must_use]
    pub fn halves(&self, document: &Document) -> Option<[Self; 2]> {
        let Range { start, end } = self.segments;
        if end < start + 2 {
            return None;
        }
        let mut tokens = document.segments_in(start..end - 1).map(|segment| segment.tokens());
        let mut middle = start + 1;
        let mut before = tokens.next()?;
        for next in tokens {
            if self.tokens < 2 * before + next {
                break;
            }
            before += next;
            middle += 1;
        }
        let first = Self { segments: start..middle, tokens: before };
        Some([first, Self { segments: middle..end, tokens: self.tokens - before }])
    }

    /// Returns at most `tokens` of the source before the chunk, from the beginning of a sentence where possible.
    #[must_use]
    pub fn context(&self, document: &Document, tokens: u64) -> String {
        let mut left = tokens.saturating_mul(4);
        let mut texts = Vec::new();
        for segment in document.segments_in(0..self.segments.start).rev() {
            let text = segment.plain();
            let cost = estimate::quarters(&text) + estimate::quarters("\n");
            match left.checked_sub(cost) {
                Some(rest) => left = rest,
                None => {
                    texts.push(end_of(&text, left).to_owned());
                    break;
                }
            }
            texts.push(text);
        }
        texts.reverse();
        texts.join("\n").trim().to_owned()
    }
}

/// Cuts `document` into chunks of at most `size` tokens. A longer paragraph becomes several segments, cut at the ends of sentences;
/// only text without sentences and spaces exceeds the size.
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the size is below [`CHUNK_TOKENS_MIN`] or above
/// [`OUTPUT_TOKENS_MAX`].
pub fn cut(document: &mut Document, size: u64) -> Result<Vec<Chunk>, Error> {
    if !(CHUNK_TOKENS_MIN..=OUTPUT_TOKENS_MAX).contains(&size) {
        return Err(Error::invalid(format!(
            "a chunk cannot have {size} tokens; give {CHUNK_TOKENS_MIN} to {OUTPUT_TOKENS_MAX}, as in {CHUNK_TOKENS}"
        )));
    }
    // A token has three bytes or more, so that the list is not reallocated.
    let room = document.source_bytes() as u64 / (3 * size);
    let mut chunks: Vec<Chunk> = Vec::with_capacity(usize::try_from(room).unwrap_or_default());
    let mut open = Chunk { segments: 0..0, tokens: 0 };
    document.refine(size, |tokens| {
        if size < open.tokens + tokens && !open.is_empty() {
            let next = Chunk { segments: open.segments.end..open.segments.end, tokens: 0 };
            chunks.push(std::mem::replace(&mut open, next));
        }
        open.segments.end += 1;
        open.tokens += tokens;
    });
    if !open.is_empty() {
        chunks.push(open);
    }
    Ok(chunks)
}

/// Returns the largest size whose answer fits into [`OUTPUT_TOKENS_MAX`], with as much again for thoughts.
#[must_use]
pub fn size_max(from: &Language, to: &Language) -> u64 {
    let twice = 2 * from.tokens_in(to, OUTPUT_TOKENS_MAX).max(OUTPUT_TOKENS_MAX);
    OUTPUT_TOKENS_MAX * OUTPUT_TOKENS_MAX / twice
}

/// Returns the smallest size from [`CHUNK_TOKENS`] to `most` at which `document` needs at most `requests` requests, if there is
/// one.
#[must_use]
pub fn fitting_size(document: &Document, requests: u64, most: u64) -> Option<u64> {
    let (mut low, mut high) = (CHUNK_TOKENS, most.max(CHUNK_TOKENS));
    if requests < needed(document, &[high])[0] {
        return None;
    }
    while low < high {
        let step = (high - low).div_ceil(SIZES_AT_ONCE);
        let sizes: Vec<u64> = (1..SIZES_AT_ONCE)
            .map(|index| low + index * step - 1)
            .take_while(|size| *size < high)
            .collect();
        let needed = needed(document, &sizes);
        let fitting = sizes.iter().zip(&needed).position(|(_, needed)| *needed <= requests);
        let index = fitting.unwrap_or(sizes.len());
        high = sizes.get(index).copied().unwrap_or(high);
        low = index.checked_sub(1).map_or(low, |below| sizes[below] + 1);
    }
    Some(high)
}

/// Returns the number of requests for `document` at each of `sizes`.
fn needed(document: &Document, sizes: &[u64]) -> Vec<u64> {
    let mut packed = vec![(0_u64, 0_u64); sizes.len()];
    for segment in document.segments() {
        let tokens = segment.tokens();
        for (size, (chunks, open)) in sizes.iter().zip(&mut packed) {
            if *size < tokens {
                // Pieces that end with a sentence are not quite full, and each may be a chunk of its own.
                *chunks += tokens.div_ceil(size * 7 / 10);
                *open = *size;
            } else if *chunks == 0 || *size < *open + tokens {
                *chunks += 1;
                *open = tokens;
            } else {
                *open += tokens;
            }
        }
    }
    packed.into_iter().map(|(chunks, _)| chunks).collect()
}

/// Returns the end of `text` of at most `quarters` quarters of a token: whole sentences, or else whole words.
fn end_of(text: &str, quarters: u64) -> &str {
    let mut left = quarters;
    let mut from = text.len();
    for (offset, c) in text.char_indices().rev() {
        match left.checked_sub(estimate::quarters(&text[offset..offset + c.len_utf8()])) {
            Some(rest) => left = rest,
            None => break,
        }
        from = offset;
    }
    if from == 0 {
        return text;
    }
    let sentence = text
        .split_sentence_bound_indices()
        .map(|(offset, _)| offset)
        .find(|offset| from <= *offset);
    let word = || text[from..].find(char::is_whitespace).map(|offset| from + offset);
    &text[sentence.or_else(word).unwrap_or(from)..]
}
