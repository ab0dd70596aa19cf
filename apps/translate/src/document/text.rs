//! Plain text: paragraphs separated by empty lines.
//!
//! A block with a long line, which was not wrapped by hand, has a paragraph on each line. Such a block can be the whole document, so a
//! window may begin and end inside one.

use std::ops::Range;

use super::table::{Kind, Table};

/// The maximum length of a line that was wrapped by hand, in bytes.
const WRAPPED_BYTES_MAX: usize = 200;

/// Returns the end of the window of about `bytes` bytes from `start`, and whether it is inside a block with a paragraph on each line;
/// `inside` says so of its start.
pub(super) fn find_window(source: &str, start: usize, bytes: usize, inside: bool) -> (usize, bool) {
    let Some(offset) = next_line(source, start.saturating_add(bytes)) else {
        return (source.len(), false);
    };
    let mut above = source[start..offset].rsplit('\n').skip(1);
    let decisive = above.find(|line| is_empty(line) || is_long(line));
    if decisive.map_or(inside, |line| !is_empty(line)) {
        return (offset, true);
    }
    for (first, end) in lines(source, offset) {
        let line = &source[first..end];
        if is_empty(line) {
            return (first, false);
        } else if is_long(line) {
            return (offset, true);
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

/// Returns the start and the end of each line, without its line break.
pub(super) fn lines(source: &str, start: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut from = start;
    source.as_bytes()[start..].split_inclusive(|byte| *byte == b'\n').map(move |line| {
        let first = from;
        from += line.len();
        let ends = line.iter().rev().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
        (first, from - ends)
    })
}

/// Returns the start of the next line, if there is one.
pub(super) fn next_line(source: &str, offset: usize) -> Option<usize> {
    let rest = source.as_bytes().get(offset..)?;
    let next = offset + rest.iter().position(|byte| *byte == b'\n')? + 1;
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
