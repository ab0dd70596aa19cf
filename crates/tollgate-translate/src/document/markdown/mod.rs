//! Markdown: the parser says where inline content is, and what in it is text; everything else becomes a marker.
//!
//! Code, front matter, HTML, tables' rules and link definitions are never inside a run of inline content, so they are copied.
//! A link by its own words (`[words]`) keeps them: they are the name of its target.
//!
//! The parser builds a tree of what it is given, so it is given a window. Blocks are parsed from left to right: all but the
//! last block of a window are what they are in the whole document, and the next window begins with the last. What is
//! left is that a reference may need a definition from anywhere in the document ([`definitions`]).

mod blocks;
mod definitions;
mod run;

use std::ops::Range;

use pulldown_cmark::{BrokenLink, CowStr, Event, OffsetIter, Options, Parser, Tag, TagEnd};

use super::table::{Kind, Table};
pub(super) use blocks::front_matter;
use blocks::{Blocks, line_end};
pub(super) use definitions::Definitions;
use run::Run;

/// The parser would take what stands between any two rules for front matter, so [`front_matter`] finds it.
const OPTIONS: Options = Options::ENABLE_TABLES
    .union(Options::ENABLE_FOOTNOTES)
    .union(Options::ENABLE_STRIKETHROUGH)
    .union(Options::ENABLE_TASKLISTS)
    .union(Options::ENABLE_HEADING_ATTRIBUTES)
    .union(Options::ENABLE_GFM);

/// A window that was found.
pub(super) struct Found {
    /// Where the next one begins.
    pub(super) end: usize,
    /// How many segments it has as far as it can be told without the definitions of other windows.
    pub(super) segments: usize,
    /// Whether it may need them.
    pub(super) refers: bool,
}

/// The window of about `bytes` bytes that begins at `start`; `table` is used for it, and `definitions` gets what it defines.
pub(super) fn find(
    source: &str,
    start: usize,
    bytes: usize,
    table: &mut Table,
    definitions: &mut Definitions,
) -> Found {
    let mut bytes = bytes.max(1);
    loop {
        let until = line_end(source, start.saturating_add(bytes));
        let text = &source[start..until];
        let mut refers = text.contains("[^");
        let mut ask = |_: BrokenLink<'_>| {
            refers = true;
            None::<(CowStr<'_>, CowStr<'_>)>
        };
        let mut events = Parser::new_with_broken_link_callback(text, OPTIONS, Some(&mut ask))
            .into_offset_iter();
        let mut blocks = Blocks::new(source, start);
        let mut notes = Vec::new();
        table.clear();
        walk(&mut events, source, start, 0, table, |event, range| {
            blocks.take(event, &range);
            if let Event::Start(Tag::FootnoteDefinition(label)) = event {
                notes.push((range.start, Definitions::hash(label)));
            }
        });
        let end = if until == source.len() { Some(until) } else { blocks.last };
        if let Some(end) = end {
            notes.retain(|(place, _)| *place < end);
            definitions.notes.extend(notes.iter().map(|(_, label)| label));
            let links = events.reference_definitions().iter();
            let links = links.filter(|(_, link)| start + link.span.start < end);
            definitions.links.extend(links.map(|(label, _)| Definitions::hash(label)));
            drop(events);
            let segments = table.cuts.partition_point(|cut| (cut.start as usize) < end);
            return Found { end, segments, refers };
        }
        // One block, or definitions alone.
        bytes = bytes.saturating_mul(2);
    }
}

/// Adds the segments of a window that [`find`] found; `definitions` are for one that refers to others.
pub(super) fn read(
    source: &str,
    window: Range<usize>,
    definitions: Option<&Definitions>,
    table: &mut Table,
) {
    let text = &source[window.clone()];
    let Some(definitions) = definitions else {
        let mut events = Parser::new_ext(text, OPTIONS).into_offset_iter();
        return walk(&mut events, source, window.start, 0, table, |_, _| {});
    };
    let mut known = |link: BrokenLink<'_>| {
        definitions.has_link(&link.reference).then_some((CowStr::from(""), CowStr::from("")))
    };
    let notes = definitions.of_notes_in(text);
    let text = if notes.is_empty() { text.into() } else { notes.clone() + text };
    let mut events =
        Parser::new_with_broken_link_callback(&text, OPTIONS, Some(&mut known)).into_offset_iter();
    walk(&mut events, source, window.start, notes.len(), table, |_, _| {});
}

/// Goes through the events of a window, whose text has `ahead` bytes before what stands in the source from `start` on.
fn walk<'t, F: pulldown_cmark::BrokenLinkCallback<'t>>(
    events: &mut OffsetIter<'t, F>,
    source: &str,
    start: usize,
    ahead: usize,
    table: &mut Table,
    mut each: impl FnMut(&Event<'t>, Range<usize>),
) {
    let mut run = Run::new(source);
    let mut verbatim = 0_u32;
    for (event, range) in events {
        if range.start < ahead {
            continue;
        }
        let range = range.start - ahead + start..range.end - ahead + start;
        each(&event, range.clone());
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
            _ => run.take(&event, range),
        }
    }
    run.finish(table);
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
