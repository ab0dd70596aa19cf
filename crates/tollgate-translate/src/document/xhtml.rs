//! A page of a book: runs of text and inline elements are segments, every other element ends one.
//!
//! Positions come from the parser, so what is not text is copied as it was written: attributes, comments, entities.

use std::ops::Range;

use quick_xml::Reader;
use quick_xml::escape::resolve_html5_entity;
use quick_xml::events::{BytesStart, Event};

use super::BOM;
use super::table::{Kind, Mark, Role, Table, at};
use crate::error::Error;

/// Elements that are part of a sentence.
const INLINE: &[&str] = &[
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "br", "cite", "code", "data", "del", "dfn",
    "em", "font", "i", "img", "ins", "kbd", "mark", "math", "q", "rp", "rt", "ruby", "s", "samp",
    "small", "span", "strike", "strong", "sub", "sup", "svg", "time", "tt", "u", "var", "wbr",
];

/// Elements whose content is not translated.
const VERBATIM: &[&str] =
    &["code", "kbd", "math", "pre", "samp", "script", "style", "svg", "tt", "var"];

/// Elements whose content cannot have a line break.
const ONE_LINE: &[&str] = &["option", "text", "title"];

/// What kind of file a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// XHTML.
    Text,
    /// An index of EPUB 2 (NCX): only its labels are text.
    Index,
    /// The package file: only the titles of the book are text.
    Package,
}

impl Page {
    /// Whether what stands directly in the element `block` is text.
    fn has_text_in(self, block: &str) -> bool {
        match self {
            Self::Text => true,
            Self::Index => block == "text",
            Self::Package => block == "title",
        }
    }
}

/// The character that `&name;` stands for.
pub(super) fn entity(name: &str) -> Option<&'static str> {
    resolve_html5_entity(name)
}

/// Adds the segments of the page that is `window` of `source`.
pub(super) fn read(
    source: &str,
    window: Range<usize>,
    page: Page,
    table: &mut Table,
) -> Result<(), Error> {
    let text = &source[window.clone()];
    let start = window.end - text.strip_prefix(BOM).unwrap_or(text).len();
    let mut reader = Reader::from_str(&source[start..window.end]);
    let mut run =
        Run { source, page, from: None, marks: Vec::new(), open: Vec::new(), block: Vec::new() };
    let mut verbatim: Option<Verbatim> = None;
    let mut depth = 0_usize;
    loop {
        let first = start + position(reader.buffer_position());
        let event = reader.read_event().map_err(|error| {
            let line = source[start..first].matches('\n').count() + 1;
            Error::document(format!("line {line}: {error}; repair the book first"))
        })?;
        let end = start + position(reader.buffer_position());
        depth = match event {
            Event::Start(_) => depth + 1,
            Event::End(_) => depth.saturating_sub(1),
            Event::Eof => break,
            _ => depth,
        };
        if let Some(inside) = &verbatim {
            if depth < inside.depth {
                run.verbatim(inside, end, table);
                verbatim = None;
            }
            continue;
        }
        match &event {
            Event::Start(tag) if is_verbatim(tag) => {
                let inline = INLINE.contains(&tag.local_name().as_ref());
                verbatim = Some(Verbatim { start: first, depth, inline });
            }
            Event::Start(tag) => run.start(tag.local_name().as_ref(), first, end, table),
            Event::End(tag) => run.end(tag.local_name().as_ref(), first, end, table),
            Event::Empty(tag) if INLINE.contains(&tag.local_name().as_ref()) => {
                run.alone(first, end);
            }
            Event::Empty(_) | Event::Decl(_) | Event::DocType(_) => run.finish(first, table),
            Event::Text(_) | Event::GeneralRef(_) => run.from = run.from.or(Some(first)),
            Event::CData(_) | Event::Comment(_) | Event::PI(_) => run.alone(first, end),
            Event::Eof => break,
        }
    }
    Ok(())
}

fn position(position: u64) -> usize {
    usize::try_from(position).unwrap_or(usize::MAX)
}

/// An element that is not looked into: where it begins, and how deep its content is.
struct Verbatim {
    start: usize,
    depth: usize,
    inline: bool,
}

fn is_verbatim(tag: &BytesStart<'_>) -> bool {
    VERBATIM.contains(&tag.local_name().as_ref())
        || matches!(tag.try_get_attribute("translate"), Ok(Some(value)) if value.value == "no")
}

/// Text and inline elements that stand together, while their events come in.
struct Run<'a> {
    source: &'a str,
    page: Page,
    from: Option<usize>,
    marks: Vec<Mark>,
    /// Inline elements that this run opened: the mark and the name.
    open: Vec<(usize, String)>,
    /// The elements around the run, the innermost last.
    block: Vec<String>,
}

impl Run<'_> {
    fn start(&mut self, name: &str, first: usize, end: usize, table: &mut Table) {
        if INLINE.contains(&name) {
            self.open.push((self.marks.len(), name.to_owned()));
            self.alone(first, end);
        } else {
            self.finish(first, table);
            self.block.push(name.to_owned());
        }
    }

    fn end(&mut self, name: &str, first: usize, end: usize, table: &mut Table) {
        if !INLINE.contains(&name) {
            self.finish(first, table);
            self.block.pop();
            return;
        }
        let opened = self.open.pop_if(|(_, opened)| opened == name);
        self.alone(first, end);
        if let (Some((open, _)), Some(close)) = (opened, self.marks.len().checked_sub(1)) {
            let pair = at(open + 1);
            self.marks[open] = Mark { pair, role: Role::Open, ..self.marks[open] };
            self.marks[close] = Mark { pair, role: Role::Close, ..self.marks[close] };
        }
    }

    fn alone(&mut self, first: usize, end: usize) {
        self.from.get_or_insert(first);
        self.marks.push(Mark::new(first, end, Role::Alone));
    }

    fn verbatim(&mut self, inside: &Verbatim, end: usize, table: &mut Table) {
        if inside.inline {
            self.alone(inside.start, end);
        } else {
            self.finish(inside.start, table);
        }
    }

    fn finish(&mut self, end: usize, table: &mut Table) {
        let block = self.block.last().map_or("", String::as_str);
        if let Some(from) = self.from.take()
            && self.page.has_text_in(block)
        {
            let kind = if ONE_LINE.contains(&block) { Kind::Line } else { Kind::Paragraph };
            table.add(self.source, (from, end), &self.marks, kind);
        }
        self.marks.clear();
        self.open.clear();
    }
}
