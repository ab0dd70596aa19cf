//! The starts of Markdown windows: top-level blocks that parse alike when the text begins there.

use std::ops::Range;

use pulldown_cmark::{Event, Tag};

/// The line ends of the parser.
const ENDS: [char; 2] = ['\n', '\r'];

/// Tracks the top-level blocks of a window by its events.
pub(super) struct Blocks<'a> {
    source: &'a str,
    start: usize,
    depth: usize,
    /// The last position at which another window can begin.
    pub(super) last: Option<usize>,
}

impl<'a> Blocks<'a> {
    pub(super) const fn new(source: &'a str, start: usize) -> Self {
        Self { source, start, depth: 0, last: None }
    }

    pub(super) fn take(&mut self, event: &Event<'_>, range: &Range<usize>) {
        if self.depth == 0 {
            let line = self.source[..range.start].rfind(ENDS).map_or(0, |offset| offset + 1);
            if self.start < line && self.is_apart(line, event) {
                self.last = Some(line);
            }
        }
        match event {
            Event::Start(_) => self.depth += 1,
            Event::End(_) => self.depth -= 1,
            _ => {}
        }
    }

    /// Returns whether the block at `line` and the text before it parse alike when separated: it follows an empty line, or is a heading
    /// with `#`. Elsewhere it is uncertain: a link definition may continue with a title, and ignores indentation; and whether a line is
    /// the head of a table depends on the next line.
    fn is_apart(&self, line: usize, event: &Event<'_>) -> bool {
        let above = &self.source[self.start..line];
        let above = above.strip_suffix('\n').unwrap_or(above);
        let above = above.strip_suffix('\r').unwrap_or(above).trim_end_matches([' ', '\t']);
        let has_sign = self.source[line..].trim_start_matches(' ').starts_with('#');
        above.ends_with(ENDS) || has_sign && matches!(event, Event::Start(Tag::Heading { .. }))
    }
}

/// Returns the end of the line at `offset`.
pub(super) fn line_end(source: &str, offset: usize) -> usize {
    let Some(rest) = source.as_bytes().get(offset..) else { return source.len() };
    let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
        return source.len();
    };
    let pair = rest[end..].starts_with(b"\r\n");
    offset + end + if pair { 2 } else { 1 }
}

/// Returns the length of the front matter of `text`, or 0: lines between `---` and `---` or `...`, or `+++` and `+++`.
pub(crate) fn front_matter(text: &str) -> usize {
    let mut lines = text.split_inclusive('\n');
    let Some(first) = lines.next().filter(|line| matches!(line.trim_end(), "---" | "+++")) else {
        return 0;
    };
    let mut length = first.len();
    for (number, line) in lines.enumerate() {
        let shown = line.trim_end_matches(ENDS).trim_end_matches(' ');
        let closes = shown == first.trim_end() || shown == "..." && first.starts_with('-');
        if number == 0 && (closes || shown.trim().is_empty()) {
            return 0;
        }
        length += line.len();
        if closes {
            return length;
        }
    }
    0
}
