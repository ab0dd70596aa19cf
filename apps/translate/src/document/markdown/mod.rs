//! Markdown: the parser finds inline content; everything in it that is not text becomes a marker.
//!
//! Code, front matter, HTML, table rules and link definitions are not inline content, so they are copied. A shortcut link (`[words]`)
//! gets the name of its target once its words change (`[mots][words]`). The title of a link or of a definition is a segment of its own.
//! Extensions of other programs are hidden from the parser ([`shield`]).
//!
//! The parser builds a tree of its input, so it gets a window. All but the last block of a window parse as in the whole document, and
//! the next window begins with the last. References may need a definition from anywhere in the document ([`definitions`]).

mod blocks;
mod definitions;
mod run;
mod shield;

use std::ops::Range;

use pulldown_cmark::{BrokenLink, CowStr, Event, OffsetIter, Options, Parser, Tag, TagEnd};

use super::table::{Kind, Table};
pub(super) use blocks::front_matter;
use blocks::{Blocks, line_end};
pub(super) use definitions::Definitions;
use run::Run;

/// Without metadata blocks: the parser takes text between any two rules for front matter, so [`front_matter`] finds it.
const OPTIONS: Options = Options::ENABLE_TABLES
    .union(Options::ENABLE_FOOTNOTES)
    .union(Options::ENABLE_STRIKETHROUGH)
    .union(Options::ENABLE_TASKLISTS)
    .union(Options::ENABLE_HEADING_ATTRIBUTES)
    .union(Options::ENABLE_GFM)
    .union(Options::ENABLE_MATH)
    .union(Options::ENABLE_WIKILINKS);

/// Returns the end of the window of about `bytes` bytes from `start`, and whether it may refer to definitions of other windows. Adds its
/// own to `definitions`.
pub(super) fn find_window(
    source: &str,
    start: usize,
    bytes: usize,
    definitions: &mut Definitions,
) -> (usize, bool) {
    let mut bytes = bytes.max(1);
    loop {
        let until = line_end(source, start.saturating_add(bytes));
        let shielded = shield::shielded(source, start..until);
        let text = shielded.as_ref();
        let mut refers = text.contains("[^");
        let mut ask = |_: BrokenLink<'_>| {
            refers = true;
            None::<(CowStr<'_>, CowStr<'_>)>
        };
        let parser = Parser::new_with_broken_link_callback(text, OPTIONS, Some(&mut ask));
        let mut events = parser.into_offset_iter();
        let mut blocks = Blocks::new(source, start);
        let mut notes = Vec::new();
        for (event, range) in &mut events {
            let range = start + range.start..start + range.end;
            if let Event::Start(Tag::FootnoteDefinition(label)) = &event {
                notes.push((range.start, Definitions::hash(label)));
            }
            blocks.take(&event, &range);
        }
        let end = if until == source.len() { Some(until) } else { blocks.last };
        let Some(end) = end else {
            // A single block, or only definitions. Large steps, since all of it is parsed again.
            bytes = bytes.saturating_mul(4);
            continue;
        };
        let is_own = |(offset, _): &&(usize, u64)| *offset < end;
        definitions.notes.extend(notes.iter().filter(is_own).map(|(_, label)| label));
        // A definition of another window may have been found here.
        let mut foreign = false;
        for (label, link) in events.reference_definitions().iter() {
            if start + link.span.start < end {
                let span = start + link.span.start..start + link.span.end;
                let title = link.title.is_some().then(|| run::title(source, span)).flatten();
                definitions.put(label, title);
            } else {
                foreign = true;
            }
        }
        drop(events);
        return (end, refers || foreign);
    }
}

/// Adds the segments of a window of [`find_window`].
pub(super) fn read(
    source: &str,
    window: Range<usize>,
    refers: bool,
    definitions: &Definitions,
    table: &mut Table,
) {
    let text = shield::shielded(source, window.clone());
    let titles = definitions.titles_in(window.clone());
    if !refers {
        let mut events = Parser::new_ext(&text, OPTIONS).into_offset_iter();
        return walk(&mut events, source, (window.start, 0), titles, table);
    }
    let mut known = |link: BrokenLink<'_>| {
        definitions.has_link(&link.reference).then_some((CowStr::from(""), CowStr::from("")))
    };
    let notes = definitions.notes_for(&text);
    let text = if notes.is_empty() { text } else { (notes.clone() + &text).into() };
    let mut events =
        Parser::new_with_broken_link_callback(&text, OPTIONS, Some(&mut known)).into_offset_iter();
    walk(&mut events, source, (window.start, notes.len()), titles, table);
}

/// Processes the events of a window, whose text has `ahead` bytes before the source from `start`; `titles` are those of its
/// definitions.
fn walk<'t, F: pulldown_cmark::BrokenLinkCallback<'t>>(
    events: &mut OffsetIter<'t, F>,
    source: &str,
    (start, ahead): (usize, usize),
    titles: &[(u32, u32)],
    table: &mut Table,
) {
    let mut titles = titles.iter().map(|(start, end)| (*start as usize, *end as usize)).peekable();
    let add = |title: (usize, usize), table: &mut Table| {
        table.add(source, title, &[], Kind::Attribute);
    };
    let mut run = Run::new(source);
    let mut verbatim = 0_u32;
    for (event, range) in events {
        if range.start < ahead {
            continue;
        }
        let range = range.start - ahead + start..range.end - ahead + start;
        match &event {
            Event::Start(Tag::CodeBlock(_) | Tag::HtmlBlock) => {
                run.finish(table);
                verbatim += 1;
            }
            Event::End(TagEnd::CodeBlock | TagEnd::HtmlBlock) => verbatim -= 1,
            _ if 0 < verbatim => {}
            Event::Start(tag) if !is_inline(tag) => {
                run.finish(table);
                run.kind = match tag {
                    Tag::Heading { .. } | Tag::TableCell => Kind::Line,
                    _ => Kind::Paragraph,
                };
            }
            Event::End(tag) if !is_inline_end(*tag) => run.finish(table),
            Event::Rule => run.finish(table),
            _ => {
                while !run.is_open()
                    && let Some(title) = titles.next_if(|title| title.0 < range.start)
                {
                    add(title, table);
                }
                run.take(&event, range);
            }
        }
    }
    run.finish(table);
    titles.for_each(|title| add(title, table));
}

fn is_inline(tag: &Tag<'_>) -> bool {
    is_inline_end(tag.to_end())
}

const fn is_inline_end(tag: TagEnd) -> bool {
    matches!(
        tag,
        TagEnd::Emphasis
            | TagEnd::Strong
            | TagEnd::Strikethrough
            | TagEnd::Superscript
            | TagEnd::Subscript
            | TagEnd::Link
            | TagEnd::Image
    )
}
