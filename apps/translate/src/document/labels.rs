//! The declared language of a document: `lang` and `xml:lang` of a page, `dc:language` of a book, and the text direction.
//!
//! Only existing declarations are changed, except `dir="rtl"`, without which Arabic and Hebrew are displayed in the wrong direction. A
//! passage inside a page keeps its own language, since it may be a quotation.

use std::borrow::Cow;
use std::ops::Range;

use quick_xml::Reader;
use quick_xml::events::Event;

use super::patches::Patches;
use super::soup::{self, Part};
use super::xhtml::Page;
use super::{BOM, attributes};
use crate::language::Language;

/// Elements around all of the text.
const OUTERMOST: &[&str] = &["body", "html", "ncx", "package"];

/// A range and its replacement.
type Change = (Range<usize>, String);

/// Sets the declared language of the `text` of a page, or of another file of a book.
pub(super) fn set_language<'a>(
    text: Cow<'a, str>,
    page: Page,
    language: &Language,
) -> Cow<'a, str> {
    let changes = match page {
        Page::Copied => return text,
        Page::Soup => soup_changes(&text, language),
        Page::Text | Page::Index | Page::Package => xml_changes(&text, page, language),
    };
    match changes.is_empty() {
        true => text,
        false => Patches::from_iter(changes).applied(&text, 0..text.len()).into_owned().into(),
    }
}

fn soup_changes(text: &str, language: &Language) -> Vec<Change> {
    let mut changes = Vec::new();
    for piece in soup::pieces(text, 0..text.len()) {
        let Part::Start(name, _) = piece.kind else { continue };
        if OUTERMOST.contains(&name.as_str()) {
            changes.extend(tag_changes(text, piece.range, &name, language));
        }
        if name == "body" {
            break;
        }
    }
    changes
}

fn xml_changes(text: &str, page: Page, language: &Language) -> Vec<Change> {
    let ahead = text.len() - text.strip_prefix(BOM).unwrap_or(text).len();
    let mut reader = Reader::from_str(&text[ahead..]);
    let mut changes = Vec::new();
    // The first of several languages is that of the book.
    let mut said = page != Page::Package;
    let mut inside = false;
    let mut was_right_to_left = false;
    let offset = |position: u64| ahead + usize::try_from(position).unwrap_or(text.len());
    loop {
        let start = offset(reader.buffer_position());
        let event = reader.read_event();
        let end = offset(reader.buffer_position());
        match event {
            Ok(Event::Start(tag)) => {
                let name = tag.local_name();
                if OUTERMOST.contains(&name.as_ref()) {
                    changes.extend(tag_changes(text, start..end, name.as_ref(), language));
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

/// Changes the language and the direction of an outermost element.
fn tag_changes(text: &str, tag: Range<usize>, name: &str, language: &Language) -> Vec<Change> {
    let direction = if language.is_right_to_left() { "rtl" } else { "ltr" };
    let mut changes = Vec::new();
    let mut has_direction = name != "html";
    for (attribute, value) in attributes::parse_tag(text, tag.clone()) {
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

/// Changes the page progression of a book.
fn progression(text: &str, tag: Range<usize>, to: &Language, was: bool) -> Option<Change> {
    const NAME: &str = "page-progression-direction";
    let found = attributes::parse_tag(text, tag.clone()).find(|(name, _)| *name == NAME);
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
