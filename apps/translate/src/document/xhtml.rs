//! A page of a book: runs of text and inline elements are segments; any other element ends one.
//!
//! Tags, comments and entities are copied by their positions in the source. Readable attributes, such as the `alt` of an image, are
//! segments of their own.

use std::ops::Range;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::table::{Kind, Mark, Role, Table, at};
use super::{BOM, attributes};

/// Inline elements, which are part of a sentence.
pub(super) const INLINE: &[&str] = &[
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "br", "cite", "code", "data", "del", "dfn",
    "em", "font", "i", "img", "input", "ins", "kbd", "label", "mark", "math", "nobr", "output",
    "q", "rp", "rt", "ruby", "s", "samp", "slot", "small", "span", "strike", "strong", "sub",
    "sup", "svg", "time", "tt", "u", "var", "wbr",
];

/// Elements whose content is not translated.
pub(super) const VERBATIM: &[&str] =
    &["code", "kbd", "math", "pre", "samp", "script", "style", "svg", "tt", "var"];

/// Elements without line breaks in their content.
const ONE_LINE: &[&str] = &["option", "text", "title"];

/// The kind of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// XHTML.
    Text,
    /// XHTML that is not well-formed, or HTML.
    Soup,
    /// The index of EPUB 2 (NCX): only its labels are text.
    Index,
    /// The package file: only the titles of the book are text.
    Package,
    /// A file that is copied.
    Copied,
}

impl Page {
    /// Returns whether the direct content of the element `block` is text.
    fn has_text_in(self, block: &str) -> bool {
        match self {
            Self::Text | Self::Soup => true,
            Self::Index => block == "text",
            Self::Package => block == "title",
            Self::Copied => false,
        }
    }
}

/// A syntax error of a page.
#[derive(Debug)]
pub(super) struct IllFormed {
    pub(super) offset: usize,
    pub(super) why: String,
}

/// Adds the segments of the page at `window` of `source`.
pub(super) fn read(
    source: &str,
    window: Range<usize>,
    page: Page,
    table: &mut Table,
) -> Result<(), IllFormed> {
    let text = &source[window.clone()];
    let start = window.end - text.strip_prefix(BOM).unwrap_or(text).len();
    let mut reader = Reader::from_str(&source[start..window.end]);
    let mut run = Run::new(source, page);
    let mut verbatim: Option<Verbatim> = None;
    let mut depth = 0_usize;
    loop {
        let first = start + position(reader.buffer_position());
        let event = reader
            .read_event()
            .map_err(|error| IllFormed { offset: first, why: error.to_string() })?;
        let end = start + position(reader.buffer_position());
        depth = match event {
            Event::Start(_) => depth + 1,
            Event::End(_) => depth.saturating_sub(1),
            Event::Eof => break,
            _ => depth,
        };
        if let Some(inside) = &verbatim {
            if depth < inside.depth {
                run.verbatim(&inside.name, inside.start, end, table);
                verbatim = None;
            }
            continue;
        }
        match &event {
            Event::Start(tag) if is_verbatim(tag) => {
                let name = tag.local_name().as_ref().to_owned();
                verbatim = Some(Verbatim { name, start: first, depth });
            }
            Event::Start(tag) => {
                run.attributes(first..end);
                run.start(tag.local_name().as_ref(), first, end, table);
            }
            Event::End(tag) => run.end(tag.local_name().as_ref(), first, end, table),
            Event::Empty(tag) => {
                if !is_verbatim(tag) {
                    run.attributes(first..end);
                }
                match INLINE.contains(&tag.local_name().as_ref()) {
                    true => run.alone(first, end),
                    false => run.finish(first, table),
                }
            }
            Event::Decl(_) | Event::DocType(_) => run.finish(first, table),
            Event::Text(_) | Event::GeneralRef(_) => run.text(first),
            Event::CData(_) | Event::Comment(_) | Event::PI(_) => run.alone(first, end),
            Event::Eof => break,
        }
    }
    run.finish(window.end, table);
    Ok(())
}

fn position(position: u64) -> usize {
    usize::try_from(position).unwrap_or(usize::MAX)
}

/// An opaque element: its start, and the depth of its content.
struct Verbatim {
    name: String,
    start: usize,
    depth: usize,
}

fn is_verbatim(tag: &BytesStart<'_>) -> bool {
    VERBATIM.contains(&tag.local_name().as_ref())
        || matches!(tag.try_get_attribute("translate"), Ok(Some(value)) if value.value == "no")
}

/// A run of text and inline elements, while its events arrive.
pub(super) struct Run<'a> {
    source: &'a str,
    page: Page,
    from: Option<usize>,
    marks: Vec<Mark>,
    /// Open inline elements of the run: the mark and the name.
    open: Vec<(usize, String)>,
    /// The elements around the run, innermost last.
    pub(super) block: Vec<String>,
    /// Readable attributes, which precede the run as segments.
    words: Vec<Range<usize>>,
}

impl<'a> Run<'a> {
    pub(super) const fn new(source: &'a str, page: Page) -> Self {
        Self {
            source,
            page,
            from: None,
            marks: Vec::new(),
            open: Vec::new(),
            block: Vec::new(),
            words: Vec::new(),
        }
    }

    pub(super) fn text(&mut self, first: usize) {
        self.from.get_or_insert(first);
    }

    /// Adds the readable attributes of `tag`.
    pub(super) fn attributes(&mut self, tag: Range<usize>) {
        if matches!(self.page, Page::Text | Page::Soup) {
            self.words.extend(attributes::readable_values(self.source, tag));
        }
    }

    pub(super) fn start(&mut self, name: &str, first: usize, end: usize, table: &mut Table) {
        if INLINE.contains(&name) {
            self.open.push((self.marks.len(), name.to_owned()));
            self.alone(first, end);
        } else {
            self.finish(first, table);
            self.block.push(name.to_owned());
        }
    }

    pub(super) fn end(&mut self, name: &str, first: usize, end: usize, table: &mut Table) {
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

    pub(super) fn alone(&mut self, first: usize, end: usize) {
        self.from.get_or_insert(first);
        self.marks.push(Mark::new(first, end, Role::Alone));
    }

    /// Adds an opaque element.
    pub(super) fn verbatim(&mut self, name: &str, first: usize, end: usize, table: &mut Table) {
        if INLINE.contains(&name) {
            self.alone(first, end);
        } else {
            self.finish(first, table);
        }
    }

    pub(super) fn finish(&mut self, end: usize, table: &mut Table) {
        for words in self.words.drain(..) {
            table.add(self.source, (words.start, words.end), &[], Kind::Attribute);
        }
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
