//! Plain text: paragraphs with empty lines between them.
//!
//! Some texts have a paragraph on each line and no empty lines. A block with a line that nobody would have wrapped by hand
//! is taken that way. Such a block can be the whole document, so a window may begin and end inside one.

use std::ops::Range;

use super::table::{Kind, Table};

/// A line longer than this, in bytes, was not broken by hand.
const WRAPPED_BYTES_MAX: usize = 200;

/// Where the window of about `bytes` bytes ends that begins at `start`, and whether that is inside a block with a paragraph on
/// each line; `inside` says so of its start.
pub(super) fn find(source: &str, start: usize, bytes: usize, inside: bool) -> (usize, bool) {
    let Some(place) = line_behind(source, start.saturating_add(bytes)) else {
        return (source.len(), false);
    };
    let mut above = source[start..place].rsplit('\n').skip(1);
    let decisive = above.find(|line| is_empty(line) || is_long(line));
    if decisive.map_or(inside, |line| !is_empty(line)) {
        return (place, true);
    }
    for (first, end) in lines(source, place) {
        let line = &source[first..end];
        if is_empty(line) {
            return (first, false);
        } else if is_long(line) {
            return (place, true);
        }
    }
    (source.len(), false)
}

/// Adds the segments of a window; `inside` says whether it begins and ends inside a block with a paragraph on each line.
pub(super) fn read(source: &str, window: Range<usize>, inside: (bool, bool), table: &mut Table) {
    let mut block: Option<(usize, usize)> = None;
    let mut by_line = inside.0;
    for (first, end) in lines(&source[..window.end], window.start) {
        let line = &source[first..end];
        if is_empty(line) {
            add(table, source, block.take(), by_line);
            by_line = false;
        } else {
            block = Some((block.map_or(first, |(first, _)| first), end));
            by_line |= is_long(line);
        }
    }
    add(table, source, block, by_line || inside.1);
}

/// Where each line begins and ends, without its line break.
pub(super) fn lines(source: &str, start: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut from = start;
    source.as_bytes()[start..].split_inclusive(|byte| *byte == b'\n').map(move |line| {
        let first = from;
        from += line.len();
        let ends = line.iter().rev().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
        (first, from - ends)
    })
}

/// Where the next line begins, if there is one.
pub(super) fn line_behind(source: &str, place: usize) -> Option<usize> {
    let rest = source.as_bytes().get(place..)?;
    let next = place + rest.iter().position(|byte| *byte == b'\n')? + 1;
    (next < source.len()).then_some(next)
}

fn is_empty(line: &str) -> bool {
    line.trim().is_empty()
}

fn is_long(line: &str) -> bool {
    WRAPPED_BYTES_MAX < line.trim_end_matches('\r').len()
}

fn add(table: &mut Table, source: &str, block: Option<(usize, usize)>, by_line: bool) {
    let Some((first, end)) = block else { return };
    if by_line {
        for line in lines(&source[..end], first) {
            table.add(source, line, &[], Kind::Paragraph);
        }
    } else {
        table.add(source, (first, end), &[], Kind::Paragraph);
    }
}
