//! Subtitles: numbered cues with times. The lines of a cue are a segment; tags inside them are markers.

use std::ops::Range;

use super::table::{Kind, Mark, Role, Table, at};
use super::text::{line_behind, lines};
use crate::error::Error;

/// The longest tag, in bytes.
const TAG_BYTES_MAX: usize = 128;

/// What comes next in the file.
enum Next {
    /// The number of a cue, or its times.
    Head,
    /// Times.
    Times,
    /// Lines of text, up to an empty one.
    Text,
}

/// Where the window of about `bytes` bytes ends that begins at `start`: behind an empty line, which ends a cue.
pub(super) fn find(source: &str, start: usize, bytes: usize) -> usize {
    let Some(place) = line_behind(source, start.saturating_add(bytes)) else {
        return source.len();
    };
    let mut lines = lines(source, place);
    let is_empty = |(first, end): &(usize, usize)| source[*first..*end].trim().is_empty();
    let found = lines.by_ref().find(is_empty).and_then(|_| lines.next());
    found.map_or(source.len(), |(next, _)| next)
}

/// Adds the segments of a window.
pub(super) fn read(source: &str, window: Range<usize>, table: &mut Table) -> Result<(), Error> {
    let mut marks = Vec::new();
    cues(source, window, |start, end| {
        tags(source, start, end, &mut marks);
        table.add(source, (start, end), &marks, Kind::Paragraph);
    })
}

/// Tells where the text of each cue of a window begins and ends.
pub(super) fn cues(
    source: &str,
    window: Range<usize>,
    mut each: impl FnMut(usize, usize),
) -> Result<(), Error> {
    let mut cue: Option<(usize, usize)> = None;
    let mut next = Next::Head;
    for line in lines(&source[..window.end], window.start) {
        let text = source[line.0..line.1].trim();
        next = match next {
            Next::Head if text.is_empty() => Next::Head,
            Next::Head if text.bytes().all(|byte| byte.is_ascii_digit()) => Next::Times,
            Next::Head | Next::Times if are_times(text) => Next::Text,
            Next::Head => {
                return Err(wrong(source, line.0, text, "the number of a cue, such as 12"));
            }
            Next::Times => {
                let times = "times, such as 00:01:02,500 --> 00:01:04,000";
                return Err(wrong(source, line.0, text, times));
            }
            Next::Text if text.is_empty() => {
                if let Some((start, end)) = cue.take() {
                    each(start, end);
                }
                Next::Head
            }
            Next::Text => {
                cue = Some((cue.map_or(line.0, |(first, _)| first), line.1));
                Next::Text
            }
        };
    }
    if let Some((start, end)) = cue {
        each(start, end);
    }
    Ok(())
}

fn wrong(source: &str, place: usize, text: &str, right: &str) -> Error {
    let line = source[..place].matches('\n').count();
    let text: String = text.chars().take(40).collect();
    Error::document(format!("line {}: {text:?} stands where {right} should", line + 1))
}

/// Whether `text` is `hh:mm:ss,mmm --> hh:mm:ss,mmm`, with a place on the screen behind it or not.
fn are_times(text: &str) -> bool {
    let is_time = |text: &str| {
        text.bytes().any(|byte| byte == b':')
            && text.bytes().all(|byte| byte.is_ascii_digit() || b":,.".contains(&byte))
    };
    let Some(end) = text.bytes().position(|byte| byte == b'>') else { return false };
    let Some(from) = text[..end].strip_suffix("--") else { return false };
    is_time(from.trim()) && text[end + 1..].split_whitespace().next().is_some_and(is_time)
}

/// The tags in `from..until`, such as `<i>` and `</i>`, in pairs where both ends are there.
fn tags(source: &str, from: usize, until: usize, marks: &mut Vec<Mark>) {
    marks.clear();
    let mut open: Vec<(&str, usize)> = Vec::new();
    let mut place = from;
    while let Some(found) = source[place..until].find('<') {
        let start = place + found;
        let Some(length) = tag(&source[start..until]) else {
            place = start + 1;
            continue;
        };
        place = start + length;
        let inner = &source[start + 1..place - 1];
        let name = inner.trim_start_matches('/').split(' ').next().unwrap_or_default();
        let mut mark = Mark::new(start, place, Role::Alone);
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
}

/// The length of the tag at the start of `text`.
fn tag(text: &str) -> Option<usize> {
    let name = text[1..].trim_start_matches('/');
    let end = text.bytes().take(TAG_BYTES_MAX).position(|byte| byte == b'>')?;
    name.starts_with(|c: char| c.is_ascii_alphabetic()).then_some(end + 1)
}
