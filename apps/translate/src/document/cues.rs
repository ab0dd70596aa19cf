//! The common parts of both subtitle formats: blocks between empty lines, timestamps, tags.

use std::ops::Range;

use super::table::{Kind, Mark, Role, Table, at};
use super::text::{lines, next_line};
use super::warning::Mistake;

/// The maximum length of a tag, in bytes.
const TAG_BYTES_MAX: usize = 128;

/// The handling of an invalid cue.
pub(super) const KEPT: &str = "the cue is kept as it is";

/// Reports `text` at `offset` instead of `right`.
pub(super) fn unexpected(offset: usize, text: &str, right: &str) -> Mistake {
    let text: String = text.chars().take(40).collect();
    Mistake { offset, problem: format!("expected {right}, found {text:?}"), done: KEPT }
}

/// Returns the end of the window of about `bytes` bytes from `start`: after an empty line, which ends a cue.
pub(super) fn window_end(source: &str, start: usize, bytes: usize) -> usize {
    let Some(offset) = next_line(source, start.saturating_add(bytes)) else {
        return source.len();
    };
    let mut lines = lines(source, offset);
    let is_empty = |(first, end): &(usize, usize)| source[*first..*end].trim().is_empty();
    let found = lines.by_ref().find(is_empty).and_then(|_| lines.next());
    found.map_or(source.len(), |(next, _)| next)
}

/// Returns the lines of each block of `window`; empty lines separate blocks.
pub(super) fn blocks(
    source: &str,
    window: Range<usize>,
) -> impl Iterator<Item = Vec<(usize, usize)>> {
    let mut lines = lines(&source[..window.end], window.start);
    std::iter::from_fn(move || {
        let is_empty = |(first, end): &(usize, usize)| source[*first..*end].trim().is_empty();
        let mut block = vec![lines.by_ref().find(|line| !is_empty(line))?];
        block.extend(lines.by_ref().take_while(|line| !is_empty(line)));
        Some(block)
    })
}

/// Adds the text of a cue, with its tags as marks.
pub(super) fn add(source: &str, lines: &[(usize, usize)], table: &mut Table) {
    let (Some((start, _)), Some((_, end))) = (lines.first(), lines.last()) else { return };
    table.add(source, (*start, *end), &tags(source, *start, *end), Kind::Paragraph);
}

/// Returns whether `text` is `hh:mm:ss,mmm --> hh:mm:ss,mmm`, optionally with a position on the screen.
pub(super) fn are_times(text: &str) -> bool {
    let is_time = |text: &str| {
        text.bytes().any(|byte| byte == b':')
            && text.bytes().all(|byte| byte.is_ascii_digit() || b":,.".contains(&byte))
    };
    let Some(end) = text.bytes().position(|byte| byte == b'>') else { return false };
    let Some(from) = text[..end].strip_suffix("--") else { return false };
    is_time(from.trim()) && text[end + 1..].split_whitespace().next().is_some_and(is_time)
}

/// Returns the tags in `from..until`, such as `<i>` and `</i>`, paired where both exist.
fn tags(source: &str, from: usize, until: usize) -> Vec<Mark> {
    let mut marks: Vec<Mark> = Vec::new();
    let mut open: Vec<(&str, usize)> = Vec::new();
    let mut offset = from;
    while let Some(found) = source[offset..until].find('<') {
        let start = offset + found;
        let Some(length) = tag(&source[start..until]) else {
            offset = start + 1;
            continue;
        };
        offset = start + length;
        let inner = &source[start + 1..offset - 1];
        let name = inner.trim_start_matches('/').split([' ', '.', '\t']).next().unwrap_or_default();
        let mut mark = Mark::new(start, offset, Role::Alone);
        if !inner.starts_with('/') {
            open.push((name, marks.len()));
        } else if let Some((_, first)) =
            open.pop_if(|(opened, _)| opened.eq_ignore_ascii_case(name))
        {
            mark.pair = at(first + 1);
            mark.role = Role::Close;
            marks[first].pair = mark.pair;
            marks[first].role = Role::Open;
        }
        marks.push(mark);
    }
    marks
}

/// Returns the length of the tag or the timestamp at the start of `text`.
fn tag(text: &str) -> Option<usize> {
    let name = text[1..].trim_start_matches('/');
    let end = text.bytes().take(TAG_BYTES_MAX).position(|byte| byte == b'>')?;
    let is_time = || {
        let inner = &text[1..end];
        inner.contains(':')
            && inner.bytes().all(|byte| byte.is_ascii_digit() || b":.".contains(&byte))
    };
    (name.starts_with(|c: char| c.is_ascii_alphabetic()) || is_time()).then_some(end + 1)
}
