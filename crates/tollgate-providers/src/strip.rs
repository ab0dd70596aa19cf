//! Removal of usage that the client did not ask for from the stream of a chat completion.

use std::ops::Range;

use crate::bounds::EVENT_BYTES_MAX;
use crate::json::{JsonError, Kind, Names, Result, Scanner};

/// Removes the effects of an injected `stream_options.include_usage`: the chunk with usage and no choices, and every
/// `"usage": null`. Every other byte passes unchanged.
///
/// ```
/// use tollgate_providers::UsageStripper;
///
/// let mut client = Vec::new();
/// let mut stripper = UsageStripper::new();
/// stripper.feed(b"data: {\"choices\":[{\"delta\":{}}],\"usage\":null}\n\n", &mut client);
/// stripper.feed(b"data: {\"choices\":[],\"usage\":{\"total_tokens\":9}}\n\ndata: [DONE]\n\n", &mut client);
/// assert_eq!(client, b"data: {\"choices\":[{\"delta\":{}}]}\n\ndata: [DONE]\n\n");
/// ```
#[derive(Clone, Debug, Default)]
pub struct UsageStripper {
    /// The event so far, with its line ends.
    event: Vec<u8>,
    /// Whether the last line so far is more than a line end.
    has_text: bool,
    /// Whether the event is too long to be held, and passes unread.
    is_passing: bool,
}

impl UsageStripper {
    /// Returns a stripper at the beginning of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes of the stream and appends what the client gets to `output`. Holds back an incomplete event of up to
    /// [`EVENT_BYTES_MAX`].
    pub fn feed(&mut self, mut bytes: &[u8], output: &mut Vec<u8>) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(end + 1);
            self.hold(line, output);
            if !std::mem::take(&mut self.has_text) {
                self.finish(output);
            }
            bytes = rest;
        }
        self.hold(bytes, output);
    }

    /// Appends what was held back, at the end of the body.
    pub fn finish(&mut self, output: &mut Vec<u8>) {
        match strip(&self.event) {
            Strip::Nothing => output.extend_from_slice(&self.event),
            Strip::Event => {}
            Strip::Range(range) => {
                output.extend_from_slice(&self.event[..range.start]);
                output.extend_from_slice(&self.event[range.end..]);
            }
        }
        self.event.clear();
        self.is_passing = false;
    }

    fn hold(&mut self, bytes: &[u8], output: &mut Vec<u8>) {
        self.has_text |= bytes.iter().any(|byte| !b"\r\n".contains(byte));
        if !self.is_passing && EVENT_BYTES_MAX < self.event.len() + bytes.len() {
            self.is_passing = true;
            output.append(&mut self.event);
        }
        let buffer = if self.is_passing { output } else { &mut self.event };
        buffer.extend_from_slice(bytes);
    }
}

/// What to remove from an event.
enum Strip {
    Nothing,
    Event,
    Range(Range<usize>),
}

fn strip(event: &[u8]) -> Strip {
    let mut data = None;
    let mut start = 0;
    for line in event.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(b"data:") {
            if data.is_some() {
                // Data of several lines is not sent by any server known.
                return Strip::Nothing;
            }
            let end = start + line.trim_ascii_end().len();
            data = Some(start + b"data:".len()..end);
        }
        start += line.len();
    }
    let Some(data) = data else { return Strip::Nothing };
    let Ok(text) = std::str::from_utf8(&event[data.clone()]) else { return Strip::Nothing };
    match usage_member(text) {
        Ok(Some(Usage::Only)) => Strip::Event,
        Ok(Some(Usage::Null(range))) => {
            Strip::Range(data.start + range.start..data.start + range.end)
        }
        Ok(None) | Err(_) => Strip::Nothing,
    }
}

/// The usage in a chunk.
enum Usage {
    /// The chunk has usage and no choices.
    Only,
    /// The usage is null: the member with its comma.
    Null(Range<usize>),
}

fn usage_member(text: &str) -> Result<Option<Usage>> {
    let mut scanner = Scanner::new(text, Names::Exact);
    let (mut has_no_choices, mut usage, mut null) = (false, None, None);
    // The end of the member before, and whether the member after the null must give its comma.
    let (mut previous_end, mut is_first_null) = (None, false);
    scanner.object(|scanner, key| {
        let key_start = key.range().start - 1;
        if is_first_null {
            is_first_null = false;
            null = null.take().map(|range: Range<usize>| range.start..key_start);
        }
        if key.is("usage") {
            let kind = scanner.kind()?;
            let range = scanner.range()?;
            usage = Some(kind);
            if kind == Kind::Null {
                is_first_null = previous_end.is_none();
                null = Some(previous_end.unwrap_or(key_start)..range.end);
            }
        } else if key.is("choices") {
            let range = scanner.range()?;
            let inside = scanner.slice(range).strip_prefix('[');
            has_no_choices = inside.is_some_and(|inside| inside.trim_start() == "]");
        } else {
            scanner.skip()?;
        }
        previous_end = Some(scanner.position());
        Ok::<_, JsonError>(())
    })?;
    scanner.end()?;
    Ok(match usage {
        Some(Kind::Object) if has_no_choices => Some(Usage::Only),
        _ => null.map(Usage::Null),
    })
}
