//! The language that a document says it is in: `lang` and `xml:lang` of a page, `dc:language` of a book, and the direction in
//! which it is read.
//!
//! Only what is there is changed, apart from `dir="rtl"`, without which a page in Arabic or Hebrew is set the wrong way round. A
//! passage inside a page keeps its own language, since it may be a quotation.

use std::borrow::Cow;
use std::ops::Range;

use quick_xml::Reader;
use quick_xml::events::Event;

use super::soup::{self, Part};
use super::xhtml::Page;
use super::{BOM, attributes};
use crate::language::Language;

/// Elements that are around all of the text.
const OUTERMOST: &[&str] = &["body", "html", "ncx", "package"];

/// What is written in place of a range.
type Change = (Range<usize>, String);

/// `text` of a page or another file of a book, in `language` wherever the file says which one it is in.
pub(super) fn in_language<'a>(text: Cow<'a, str>, page: Page, language: &Language) -> Cow<'a, str> {
    let changes = match page {
        Page::Copied => return text,
        Page::Soup => of_soup(&text, language),
        Page::Text | Page::Index | Page::Package => of_xml(&text, page, language),
    };
    if changes.is_empty() {
        return text;
    }
    let mut written = String::with_capacity(text.len() + changes.len() * 16);
    let mut from = 0;
    for (place, change) in changes {
        written.push_str(&text[from..place.start]);
        written.push_str(&change);
        from = place.end;
    }
    written.push_str(&text[from..]);
    written.into()
}

fn of_soup(text: &str, language: &Language) -> Vec<Change> {
    let mut changes = Vec::new();
    for piece in soup::pieces(text, 0..text.len()) {
        let Part::Start(name, _) = piece.kind else { continue };
        if OUTERMOST.contains(&name.as_str()) {
            changes.extend(of_tag(text, piece.range, &name, language));
        }
        if name == "body" {
            break;
        }
    }
    changes
}

fn of_xml(text: &str, page: Page, language: &Language) -> Vec<Change> {
    let ahead = text.len() - text.strip_prefix(BOM).unwrap_or(text).len();
    let mut reader = Reader::from_str(&text[ahead..]);
    let mut changes = Vec::new();
    // Of several languages the first is the one of the book.
    let mut said = page != Page::Package;
    let mut inside = false;
    let mut was_right_to_left = false;
    let place = |position: u64| ahead + usize::try_from(position).unwrap_or(text.len());
    loop {
        let start = place(reader.buffer_position());
        let event = reader.read_event();
        let end = place(reader.buffer_position());
        match event {
            Ok(Event::Start(tag)) => {
                let name = tag.local_name();
                if OUTERMOST.contains(&name.as_ref()) {
                    changes.extend(of_tag(text, start..end, name.as_ref(), language));
                } else if page == Page::Package && name.as_ref() == "spine" {
                    changes.extend(progression(text, start..end, language, was_right_to_left));
                }
                inside = !said && name.as_ref() == "language";
                if page == Page::Text && name.as_ref() == "body" {
                    return changes;
                }
            }
            Ok(Event::Text(_)) if inside && !text[start..end].trim().is_empty() => {
                let word = text[start..end].trim();
                let first = start + (text[start..end].len() - text[start..end].trim_start().len());
                was_right_to_left =
                    word.parse().is_ok_and(|found: Language| found.is_right_to_left());
                changes.push((first..first + word.len(), language.tag().to_owned()));
                (inside, said) = (false, true);
            }
            Ok(Event::Eof) | Err(_) => return changes,
            Ok(_) => {}
        }
    }
}

/// The changes in the tag of an outermost element: its language and its direction.
fn of_tag(text: &str, tag: Range<usize>, name: &str, language: &Language) -> Vec<Change> {
    let direction = if language.is_right_to_left() { "rtl" } else { "ltr" };
    let mut changes = Vec::new();
    let mut has_direction = name != "html";
    for (attribute, value) in attributes::of_tag(text, tag.clone()) {
        match attribute.to_ascii_lowercase().as_str() {
            "lang" | "xml:lang" => changes.push((value, language.tag().to_owned())),
            "dir" => {
                has_direction = true;
                if ["ltr", "rtl"]
                    .iter()
                    .any(|known| text[value.clone()].eq_ignore_ascii_case(known))
                {
                    changes.push((value, direction.to_owned()));
                }
            }
            _ => {}
        }
    }
    if !has_direction && language.is_right_to_left() {
        let behind = tag.start + 1 + name.len();
        changes.insert(0, (behind..behind, " dir=\"rtl\"".to_owned()));
    }
    changes
}

/// The side from which the pages of a book are turned.
fn progression(text: &str, tag: Range<usize>, to: &Language, was: bool) -> Option<Change> {
    const NAME: &str = "page-progression-direction";
    let found = attributes::of_tag(text, tag.clone()).find(|(name, _)| *name == NAME);
    match (found, to.is_right_to_left()) {
        (Some((_, value)), true) => Some((value, "rtl".to_owned())),
        (Some((_, value)), false) if was => Some((value, "ltr".to_owned())),
        (None, true) => {
            let name = text[tag.clone()].find(|c: char| c.is_whitespace() || "/>".contains(c))?;
            let behind = tag.start + name;
            Some((behind..behind, format!(" {NAME}=\"rtl\"")))
        }
        _ => None,
    }
}
