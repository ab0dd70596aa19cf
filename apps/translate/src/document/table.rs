//! The segments and marks of a window.
//!
//! A format adds runs of inline content with their markup. The table does what every format needs: URLs and placeholders become marks,
//! markup at the edges is trimmed, and a run without a letter is not a segment.

use super::{entity, inline};
use crate::estimate;

/// The estimated tokens of a marker: two brackets and a number of one or two digits.
const MARKER_TOKENS: u64 = 4;

/// The kind of a segment, which determines the layout of a bilingual document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A paragraph: its translation can be another paragraph.
    Paragraph,
    /// A heading, a cell, a title: its translation stays on the same line.
    Line,
    /// The text of an attribute or the title of a link. It may be inside a mark of a later segment.
    Attribute,
}

/// One segment: a range of the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// The index of its first mark.
    pub(crate) marks: u32,
    pub(crate) kind: Kind,
    /// Whether the next segment belongs to the same paragraph, which was too long for a chunk.
    pub(crate) continues: bool,
}

/// The role of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Unpaired: code, a URL, a placeholder.
    Alone,
    /// Opens a pair.
    Open,
    /// Closes a pair.
    Close,
    /// Closes a shortcut link of Markdown.
    CloseNamed,
    /// A line break with the indentation of the next line, shown as a line break instead of a marker.
    Break,
}

/// A protected range inside a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) start: u32,
    pub(crate) end: u32,
    /// The same for both ends of a pair, unique within a run; 0 without a pair.
    pub(crate) pair: u32,
    pub(crate) role: Role,
}

impl Mark {
    pub(crate) fn new(start: usize, end: usize, role: Role) -> Self {
        Self { start: at(start), end: at(end), pair: 0, role }
    }

    pub(crate) const fn closes(&self) -> bool {
        matches!(self.role, Role::Close | Role::CloseNamed)
    }

    /// Returns its estimated tokens, in quarters.
    pub(crate) fn quarters(&self) -> u64 {
        if self.role == Role::Break { estimate::quarters("\n") } else { 4 * MARKER_TOKENS }
    }
}

/// Converts a position, which is at most [`DOCUMENT_BYTES_MAX`](super::DOCUMENT_BYTES_MAX).
pub(crate) fn at(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// The segments of a window, in order, with their marks, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) cuts: Vec<Cut>,
    pub(crate) marks: Vec<Mark>,
    /// Reused between runs.
    scratch: Vec<Mark>,
}

impl Table {
    /// Returns the marks of the segment at `index`.
    pub(crate) fn marks_of(&self, index: usize) -> &[Mark] {
        let first = self.cuts[index].marks as usize;
        let end = self.cuts.get(index + 1).map_or(self.marks.len(), |next| next.marks as usize);
        &self.marks[first..end]
    }

    /// Returns the texts of the segment at `index`, each with the mark after it.
    pub(crate) fn pieces<'a>(
        &'a self,
        source: &'a str,
        index: usize,
    ) -> impl Iterator<Item = (&'a str, Option<&'a Mark>)> {
        let cut = self.cuts[index];
        let mut from = cut.start as usize;
        let marks = self.marks_of(index).iter().map(Some).chain([None]);
        marks.map(move |mark| {
            let end = mark.map_or(cut.end, |mark| mark.start);
            let text = &source[from..end as usize];
            from = mark.map_or(cut.end, |mark| mark.end) as usize;
            (text, mark)
        })
    }

    /// Estimates the tokens of the segment at `index`, without allocating its text.
    pub(crate) fn tokens(&self, source: &str, index: usize) -> u64 {
        let quarters = self
            .pieces(source, index)
            .map(|(text, mark)| estimate::quarters(text) + mark.map_or(0, Mark::quarters));
        quarters.sum::<u64>().div_ceil(4)
    }

    /// Adds the run `start..end` of `source` with its sorted `markup`, if it has text.
    pub(crate) fn add(
        &mut self,
        source: &str,
        (start, end): (usize, usize),
        markup: &[Mark],
        kind: Kind,
    ) {
        let mut all = std::mem::take(&mut self.scratch);
        all.clear();
        let mut from = start;
        for mark in markup {
            inline::scan(source, from, mark.start as usize, &mut all);
            all.push(*mark);
            from = mark.end as usize;
        }
        inline::scan(source, from, end, &mut all);
        let (start, end, kept) = trim(source, start, end, &all);
        if has_letter(source, start, end, kept) {
            let marks = at(self.marks.len());
            self.cuts.push(Cut { start: at(start), end: at(end), marks, kind, continues: false });
            self.marks.extend_from_slice(kept);
        }
        self.scratch = all;
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.cuts.as_slice()) + size_of_val(self.marks.as_slice())
    }

    pub(crate) fn clear(&mut self) {
        self.cuts.clear();
        self.marks.clear();
    }

    pub(crate) fn shrink(&mut self) {
        self.scratch = Vec::new();
        self.cuts.shrink_to_fit();
        self.marks.shrink_to_fit();
    }
}

/// Trims white space, irrelevant tags, and a pair around everything. A placeholder or code at an edge stays: the sentence needs it,
/// possibly elsewhere in another language.
fn trim<'a>(
    source: &str,
    mut start: usize,
    mut end: usize,
    mut marks: &'a [Mark],
) -> (usize, usize, &'a [Mark]) {
    loop {
        let inner = &source[start..end];
        let first = marks.first().map_or(end, |mark| mark.start as usize);
        let last = marks.last().map_or(start, |mark| mark.end as usize);
        // White space inside a mark belongs to the mark.
        let lead = inner.len() - inner.trim_start().len();
        let lead = lead.min(first - start);
        let tail = inner.len() - inner.trim_end().len();
        let tail = tail.min(end - last.max(start + lead));
        start += lead;
        end -= tail;
        match marks {
            [open, rest @ .., close]
                if open.start as usize == start
                    && close.end as usize == end
                    && open.pair != 0
                    && open.pair == close.pair
                    && close.role == Role::Close =>
            {
                start = open.end as usize;
                end = close.start as usize;
                marks = rest;
            }
            [mark, rest @ ..] if mark.start as usize == start && is_idle(source, mark, marks) => {
                start = mark.end as usize;
                marks = rest;
            }
            [rest @ .., mark] if mark.end as usize == end && is_idle(source, mark, marks) => {
                end = mark.start as usize;
                marks = rest;
            }
            _ => return (start, end, marks),
        }
    }
}

/// Returns whether `mark` is irrelevant for a translator: a break, a task's box, a comment, an unpaired tag, a screen position.
fn is_idle(source: &str, mark: &Mark, marks: &[Mark]) -> bool {
    let text = &source[mark.start as usize..mark.end as usize];
    let lone = mark.pair == 0 || marks.iter().filter(|other| other.pair == mark.pair).count() < 2;
    let is_tag = || {
        let name = text.strip_prefix('<').and_then(|inner| inner.strip_suffix('>'));
        name.is_some_and(|name| !name.contains(['>', ':', '@'])) || text.starts_with("<!")
    };
    let is_box = || matches!(text, "[ ]" | "[x]" | "[X]");
    mark.role == Role::Break || lone && (is_tag() || is_box() || text.starts_with("{\\"))
}

/// Returns whether there is a letter outside of marks.
fn has_letter(source: &str, start: usize, end: usize, marks: &[Mark]) -> bool {
    let has_letter = |text: &str| entity::decoded(text).contains(char::is_alphabetic);
    let mut from = start;
    for mark in marks {
        if has_letter(&source[from..mark.start as usize]) {
            return true;
        }
        from = mark.end as usize;
    }
    has_letter(&source[from..end])
}
