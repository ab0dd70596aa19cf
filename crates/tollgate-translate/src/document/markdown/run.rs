//! A run of inline content: events of the parser come in, a segment with its marks comes out.

use std::ops::Range;

use pulldown_cmark::{Event, LinkType, Tag};

use crate::document::table::{Kind, Mark, Role, Table, at};

/// Inline content that stands together, while its events come in.
pub(super) struct Run<'a> {
    source: &'a str,
    pub(super) kind: Kind,
    /// Where it begins, and up to where it was seen.
    bounds: Option<(usize, usize)>,
    marks: Vec<Mark>,
    /// Which marks opened elements that are not closed yet.
    open: Vec<usize>,
    /// How deep inside an element that is protected as a whole.
    skip: usize,
}

impl<'a> Run<'a> {
    pub(super) const fn new(source: &'a str) -> Self {
        Self {
            source,
            kind: Kind::Paragraph,
            bounds: None,
            marks: Vec::new(),
            open: Vec::new(),
            skip: 0,
        }
    }

    pub(super) fn take(&mut self, event: &Event<'_>, range: Range<usize>) {
        if 0 < self.skip {
            match event {
                Event::Start(_) => self.skip += 1,
                Event::End(_) => self.skip -= 1,
                _ => {}
            }
            return;
        }
        if let Event::End(_) = event {
            return self.close(range.end);
        }
        self.reach(range.start);
        match event {
            Event::Text(_) => {}
            Event::Start(Tag::Link { link_type, .. } | Tag::Image { link_type, .. })
                if !has_own_words(*link_type) =>
            {
                self.skip = 1;
                self.marks.push(Mark::new(range.start, range.end, Role::Alone));
            }
            Event::Start(_) => {
                self.open.push(self.marks.len());
                self.marks.push(Mark::new(range.start, range.start, Role::Open));
                return self.seen(range.start);
            }
            Event::SoftBreak => {
                // Space before a break belongs to it, as space behind it does.
                let run = self.bounds.map_or(range.start, |(start, _)| start);
                let from = self.marks.last().map_or(run, |mark| mark.end as usize);
                let start = from + self.source[from..range.start].trim_end().len();
                self.marks.push(Mark::new(start, range.end, Role::Break));
            }
            _ => self.marks.push(Mark::new(range.start, range.end, Role::Alone)),
        }
        self.seen(range.end);
    }

    fn seen(&mut self, place: usize) {
        self.bounds = self.bounds.map(|(start, _)| (start, place));
    }

    /// Content goes on at `place`: what lies before it and was not seen is markup.
    fn reach(&mut self, place: usize) {
        let Some((_, seen)) = self.bounds else {
            self.bounds = Some((place, place));
            return;
        };
        if place <= seen {
            return;
        }
        let between = &self.source[seen..place];
        if self.last_grows(seen) {
            let last = self.marks.len() - 1;
            self.marks[last].end = at(place);
        } else if between != "\\" && !between.trim().is_empty() {
            // A backslash in front of a character is part of the text, as white space is.
            self.marks.push(Mark::new(seen, place, Role::Alone));
        }
        self.seen(place);
    }

    /// Whether what comes behind the last mark belongs to it: the delimiter that opens an element, or the prefix of a line
    /// that goes on.
    fn last_grows(&self, seen: usize) -> bool {
        self.marks.last().is_some_and(|mark| {
            let opens = mark.role == Role::Open && mark.start == mark.end;
            let breaks = self.source[mark.start as usize..seen].ends_with('\n');
            mark.end as usize == seen && (opens || breaks)
        })
    }

    fn close(&mut self, end: usize) {
        let Some((_, seen)) = self.bounds else { return };
        let Some(first) = self.open.pop() else { return };
        let empty =
            first + 1 == self.marks.len() && self.marks[first].end == self.marks[first].start;
        if empty {
            self.marks[first] = Mark::new(self.marks[first].start as usize, end, Role::Alone);
        } else {
            let pair = at(first + 1);
            self.marks[first].pair = pair;
            self.marks.push(Mark { pair, ..Mark::new(seen, end, Role::Close) });
        }
        self.seen(end);
    }

    pub(super) fn finish(&mut self, table: &mut Table) {
        if let Some(bounds) = self.bounds.take() {
            table.add(self.source, bounds, &self.marks, self.kind);
        }
        self.marks.clear();
        self.open.clear();
        self.skip = 0;
    }
}

/// Whether the words of a link are not the name of its target.
const fn has_own_words(link: LinkType) -> bool {
    matches!(link, LinkType::Inline | LinkType::Reference | LinkType::ReferenceUnknown)
}
