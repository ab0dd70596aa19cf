//! Splits paragraphs that are too long for one request at the ends of sentences.
//!
//! The tables of the document are split, so that a chunk is always a range of segments. The end of a sentence is searched only in the
//! last stretch before the limit, so that a book of one paragraph costs hardly more than any other.

use unicode_segmentation::UnicodeSegmentation;

use super::table::{Cut, Kind, Mark, Role, Table, at};
use crate::estimate;

/// The distance before the limit that is searched for the end of a sentence, in bytes.
const STRETCH_BYTES: usize = 4_096;

/// Splits every segment of more than `most` tokens, where possible.
pub(super) fn refine(source: &str, table: Table, most: u64) -> Table {
    let fits = |index: usize| {
        table.cuts[index].kind == Kind::Attribute || table.tokens(source, index) <= most
    };
    let Some(first) = (0..table.cuts.len()).find(|index| !fits(*index)) else { return table };
    let mut refined = Table::default();
    refined.marks.reserve_exact(table.marks.len());
    for (index, cut) in table.cuts.iter().enumerate() {
        if index < first || fits(index) {
            push(&mut refined, *cut, table.marks_of(index));
        } else {
            split(&mut refined, source, *cut, table.marks_of(index), most);
        }
    }
    refined.shrink();
    refined
}

fn push(table: &mut Table, cut: Cut, marks: &[Mark]) {
    table.cuts.push(Cut { marks: at(table.marks.len()), ..cut });
    table.marks.extend_from_slice(marks);
}

fn split(table: &mut Table, source: &str, whole: Cut, marks: &[Mark], most: u64) {
    let mut start = whole.start as usize;
    let end = whole.end as usize;
    let named = named_links(marks);
    while let Some((until, next)) = split_point(source, start, end, (marks, &named), most) {
        let piece = Cut { start: at(start), end: at(until), continues: true, ..whole };
        push(table, piece, marks_between(marks, start, until));
        start = next;
    }
    let last = Cut { start: at(start), ..whole };
    push(table, last, marks_between(marks, start, end));
}

/// Returns the ranges of shortcut links, which must not be split.
fn named_links(marks: &[Mark]) -> Vec<(usize, usize)> {
    let closing = marks.iter().filter(|mark| mark.role == Role::CloseNamed);
    let link = |close: &Mark| {
        let open = marks.iter().find(|mark| mark.role == Role::Open && mark.pair == close.pair)?;
        Some((open.start as usize, close.end as usize))
    };
    closing.filter_map(link).collect()
}

fn marks_between(marks: &[Mark], start: usize, end: usize) -> &[Mark] {
    let first = marks.partition_point(|mark| (mark.start as usize) < start);
    let last = marks.partition_point(|mark| mark.end as usize <= end);
    &marks[first..last.max(first)]
}

/// Returns the end of the piece from `start` and the start of the next; `None` if all of it fits or cannot be split.
fn split_point(
    source: &str,
    start: usize,
    end: usize,
    (marks, named): (&[Mark], &[(usize, usize)]),
    most: u64,
) -> Option<(usize, usize)> {
    let limit = reach(source, start, end, marks, most);
    if limit == end {
        return None;
    }
    let mut from = limit.saturating_sub(STRETCH_BYTES).max(start);
    while !source.is_char_boundary(from) {
        from += 1;
    }
    let stretch = &source[from..limit];
    let free = |offset: usize| {
        let inside = marks.partition_point(|mark| mark.end as usize <= offset);
        let in_mark = marks
            .get(inside)
            .is_some_and(|mark| (mark.start as usize) < offset && mark.role != Role::Break);
        !in_mark && !named.iter().any(|(first, last)| *first < offset && offset < *last)
    };
    let sentence = || {
        let bounds = stretch.split_sentence_bound_indices().map(|(offset, _)| from + offset);
        bounds.filter(|offset| start < *offset && free(*offset)).last()
    };
    let space = || {
        let spaces = stretch.char_indices().rev().filter(|(_, c)| c.is_whitespace());
        spaces
            .map(|(offset, c)| from + offset + c.len_utf8())
            .find(|offset| start < *offset && free(*offset))
    };
    // A sentence longer than the limit is split between words; without spaces, at its end.
    let cut = sentence().or_else(space).or_else(|| {
        let rest = source[limit..end].split_sentence_bound_indices();
        rest.map(|(offset, _)| limit + offset).find(|offset| limit < *offset && free(*offset))
    })?;
    let until = start + source[start..cut].trim_end().len();
    let next = end - source[cut..end].trim_start().len();
    (start < until && next < end).then_some((until, next))
}

/// Returns the position that `most` tokens reach from `start`, at most `end`.
fn reach(source: &str, start: usize, end: usize, marks: &[Mark], most: u64) -> usize {
    let mut left = most.saturating_mul(4);
    let mut from = start;
    for mark in marks_between(marks, start, end).iter().map(Some).chain([None]) {
        let until = mark.map_or(end, |mark| mark.start as usize);
        match estimate::reach(&source[from..until], left) {
            Ok(rest) => left = rest,
            Err(offset) => return from + offset,
        }
        let Some(mark) = mark else { return end };
        let Some(rest) = left.checked_sub(mark.quarters()) else {
            return until;
        };
        left = rest;
        from = mark.end as usize;
    }
    end
}
