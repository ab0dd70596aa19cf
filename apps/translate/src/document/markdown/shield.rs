//! Hides extensions of Markdown from the parser: replaces them by other bytes of the same length.
//!
//! Template tags and displayed formulas become letters, so that nothing in them parses as markup. The head of a container
//! (`::: tip Title`) becomes the marker of a heading, so that it is a line of its own. The head of an admonition
//! (`!!! note "Title"`) becomes a list item with a heading, so that the indented text below is its content and not code.
//!
//! Hidden text has no empty line and no code markers, so a window never begins inside it.

use std::borrow::Cow;
use std::ops::Range;

use crate::document::inline::{self, TEMPLATE_BYTES_MAX};
use crate::document::text::lines;

/// Returns the input of the parser for `range` of `source`: of the same length, with blocks at the same positions.
pub(super) fn shielded(source: &str, range: Range<usize>) -> Cow<'_, str> {
    // A construct may end after the range.
    let behind = source.ceil_char_boundary(range.end.saturating_add(TEMPLATE_BYTES_MAX));
    match hidden(&source[range.start..behind]) {
        Some(mut bytes) => {
            bytes.truncate(range.len());
            String::from_utf8(bytes).map_or(Cow::Borrowed(&source[range]), Cow::Owned)
        }
        None => Cow::Borrowed(&source[range]),
    }
}

fn hidden(text: &str) -> Option<Vec<u8>> {
    if !["{{", "{%", "{#", "$$", ":::", "!!!", "???"].iter().any(|sign| text.contains(sign)) {
        return None;
    }
    let mut bytes = text.as_bytes().to_vec();
    for (first, end) in lines(text, 0) {
        let indented = &text[first..end];
        let start = end - indented.trim_start_matches([' ', '\t', '>']).len();
        let line = &text[start..end];
        if let Some(head) = container(line) {
            let sign = line.bytes().take_while(|byte| *byte == b':').count().min(6);
            bytes[start..start + head].fill(b' ');
            bytes[start..start + sign].fill(b'#');
            if line[head..].trim_end().ends_with(']') && line[..head].ends_with('[') {
                bytes[start + line.trim_end().len() - 1] = b' ';
            }
        } else if let Some((head, tail)) = admonition(line) {
            bytes[start..start + head].fill(b' ');
            bytes[start + tail..end].fill(b' ');
            bytes[start] = b'-';
            bytes[start + 4] = b'#';
        }
    }
    let mut hidden = 0;
    for (offset, _) in text.match_indices(['{', '$']) {
        if offset < hidden || text[..offset].ends_with('\\') {
            continue;
        }
        let rest = &text[offset..];
        let Some(length) = inline::template(rest).or_else(|| inline::display(rest)) else {
            continue;
        };
        if !rest[..length].contains('`') && !rest[..length].contains("~~~") {
            bytes[offset..offset + length].fill(b'x');
            hidden = offset + length;
        }
    }
    Some(bytes)
}

/// Returns the length of the head of a container before its title, or of its end.
fn container(line: &str) -> Option<usize> {
    let colons = line.bytes().take_while(|byte| *byte == b':').count();
    if colons < 3 {
        return None;
    }
    let space = |from: usize| line.len() - line[from..].trim_start_matches([' ', '\t']).len();
    let mut end = space(colons);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    end += line[end..].find(|c| !is_name(c)).unwrap_or(line.len() - end);
    let named = end;
    if line[space(end)..].starts_with('{') {
        end = space(end);
        end += line[end..].find('}')? + 1;
    }
    if end == named && end < line.len() && !line[end..].starts_with([' ', '\t', '[', '\r']) {
        return None;
    }
    end += usize::from(line[end..].starts_with('['));
    Some(end)
}

/// Returns the range of the title in the head of an admonition.
fn admonition(line: &str) -> Option<(usize, usize)> {
    let rest = line.strip_prefix("!!! ").or_else(|| line.strip_prefix("??? "));
    let rest = rest.or_else(|| line.strip_prefix("???+ "))?;
    let names = rest.split('"').next().unwrap_or_default();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_- |".contains(c);
    if names.trim().len() < 2 || !names.trim_end().chars().all(is_name) {
        return None;
    }
    let head = line.len() - rest.len() + names.len();
    match rest.strip_prefix(names)?.trim_end().strip_prefix('"') {
        None => Some((line.len(), line.len())),
        Some(title) => {
            let title = title.strip_suffix('"')?;
            Some((head + 1, head + 1 + title.len()))
        }
    }
}
