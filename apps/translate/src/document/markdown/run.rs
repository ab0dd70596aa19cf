//! A run of inline content: collects events of the parser into a segment with marks.

use std::ops::Range;

use pulldown_cmark::{Event, LinkType, Tag};

use crate::document::inline::is_formula;
use crate::document::table::{Kind, Mark, Role, Table, at};

/// A run of inline content, while its events arrive.
pub(super) struct Run<'a> {
    source: &'a str,
    pub(super) kind: Kind,
    /// Its start, and the end of the last event.
    bounds: Option<(usize, usize)>,
    marks: Vec<Mark>,
    /// The marks of open elements, and how those close.
    open: Vec<(usize, Closing)>,
    /// Titles of links, which precede the run as segments.
    titles: Vec<Range<usize>>,
    /// The depth inside an element that is protected as a whole.
    skip: usize,
}

/// The end of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    /// A delimiter.
    Plain,
    /// The target and the title of a link.
    Titled,
    /// The end of a shortcut link: `[words]`.
    Named,
    /// The end of a collapsed link: `[words][]`.
    Collapsed,
}

impl<'a> Run<'a> {
    pub(super) const fn new(source: &'a str) -> Self {
        Self {
            source,
            kind: Kind::Paragraph,
            bounds: None,
            marks: Vec::new(),
            open: Vec::new(),
            titles: Vec::new(),
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
            Event::InlineMath(inner) if !is_formula(inner) && !inner.contains(['\n', '\r']) => {}
            Event::Start(Tag::Link { link_type, .. } | Tag::Image { link_type, .. })
                if !has_words(*link_type) =>
            {
                self.skip = 1;
                self.marks.push(Mark::new(range.start, range.end, Role::Alone));
            }
            Event::Start(tag) => {
                self.open.push((self.marks.len(), closing(tag)));
                self.marks.push(Mark::new(range.start, range.start, Role::Open));
                return self.seen(range.start);
            }
            Event::SoftBreak => {
                // Space before a break belongs to it, like space after it.
                let run = self.bounds.map_or(range.start, |(start, _)| start);
                let from = self.marks.last().map_or(run, |mark| mark.end as usize);
                let start = from + self.source[from..range.start].trim_end().len();
                self.marks.push(Mark::new(start, range.end, Role::Break));
            }
            _ => self.marks.push(Mark::new(range.start, range.end, Role::Alone)),
        }
        self.seen(range.end);
    }

    fn seen(&mut self, offset: usize) {
        self.bounds = self.bounds.map(|(start, _)| (start, offset));
    }

    /// Continues at `offset`: text before it without an event is markup.
    fn reach(&mut self, offset: usize) {
        let Some((_, seen)) = self.bounds else {
            self.bounds = Some((offset, offset));
            return;
        };
        if offset <= seen {
            return;
        }
        let between = &self.source[seen..offset];
        if self.last_grows(seen) {
            let last = self.marks.len() - 1;
            self.marks[last].end = at(offset);
        } else if between != "\\" && !between.trim().is_empty() {
            // An escaping backslash is part of the text, like white space.
            self.marks.push(Mark::new(seen, offset, Role::Alone));
        }
        self.seen(offset);
    }

    /// Returns whether the last mark continues: the opening delimiter of an element, or the prefix of a continued line.
    fn last_grows(&self, seen: usize) -> bool {
        self.marks.last().is_some_and(|mark| {
            let opens = mark.role == Role::Open && mark.start == mark.end;
            let breaks = self.source[mark.start as usize..seen].ends_with('\n');
            mark.end as usize == seen && (opens || breaks)
        })
    }

    fn close(&mut self, end: usize) {
        let Some((_, seen)) = self.bounds else { return };
        let Some((first, closing)) = self.open.pop() else { return };
        // The range of the parser excludes the empty name.
        let is_short = closing == Closing::Collapsed && self.source[end..].starts_with("[]");
        let end = if is_short { end + 2 } else { end };
        let empty =
            first + 1 == self.marks.len() && self.marks[first].end == self.marks[first].start;
        if empty {
            self.marks[first] = Mark::new(self.marks[first].start as usize, end, Role::Alone);
        } else {
            let pair = at(first + 1);
            self.marks[first].pair = pair;
            let role = match closing {
                Closing::Named | Closing::Collapsed => Role::CloseNamed,
                Closing::Plain | Closing::Titled => Role::Close,
            };
            self.marks.push(Mark { pair, ..Mark::new(seen, end, role) });
        }
        if closing == Closing::Titled {
            self.titles.extend(title(self.source, seen..end));
        }
        self.seen(end);
    }

    /// Returns whether the run has content.
    pub(super) const fn is_open(&self) -> bool {
        self.bounds.is_some()
    }

    pub(super) fn finish(&mut self, table: &mut Table) {
        for title in self.titles.drain(..) {
            table.add(self.source, (title.start, title.end), &[], Kind::Attribute);
        }
        if let Some(bounds) = self.bounds.take() {
            table.add(self.source, bounds, &self.marks, self.kind);
        }
        self.marks.clear();
        self.open.clear();
        self.skip = 0;
    }
}

/// Returns whether a link has words to translate.
const fn has_words(link: LinkType) -> bool {
    !matches!(link, LinkType::Autolink | LinkType::Email | LinkType::WikiLink { .. })
}

fn closing(tag: &Tag<'_>) -> Closing {
    let (Tag::Link { link_type, title, .. } | Tag::Image { link_type, title, .. }) = tag else {
        return Closing::Plain;
    };
    match link_type {
        LinkType::Inline if !title.is_empty() => Closing::Titled,
        LinkType::Collapsed | LinkType::CollapsedUnknown => Closing::Collapsed,
        LinkType::Shortcut | LinkType::ShortcutUnknown => Closing::Named,
        _ => Closing::Plain,
    }
}

/// Finds the title in the end of a link, `](target "title")`, or in a definition, `[name]: target "title"`.
pub(super) fn title(source: &str, range: Range<usize>) -> Option<Range<usize>> {
    let text = source[range.clone()].trim_end();
    let text = if text.starts_with(']') { text.strip_suffix(')')?.trim_end() } else { text };
    let close = text.chars().next_back()?;
    let open = match close {
        '"' | '\'' => close,
        ')' => '(',
        _ => return None,
    };
    let end = text.len() - 1;
    let is_escaped = |offset: usize| {
        let before = &text[..offset];
        (before.len() - before.trim_end_matches('\\').len()) % 2 == 1
    };
    let mut found = text[..end].rmatch_indices(open).map(|(offset, _)| offset);
    let start = found.find(|offset| !is_escaped(*offset))? + 1;
    // A title of several lines may contain block quote markers.
    let is_one_line = !text[start..end].contains(['\n', '\r']);
    is_one_line.then_some(range.start + start..range.start + end)
}
