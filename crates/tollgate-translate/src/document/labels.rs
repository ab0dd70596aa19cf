//! The language that a book says it is in: `dc:language` of the package file, `lang` and `xml:lang` of each file.
//!
//! Only what is there is changed. A passage inside a page keeps its own language, since it may be a quotation.

use std::borrow::Cow;
use std::ops::Range;

use quick_xml::Reader;
use quick_xml::events::Event;

use super::xhtml::Page;

/// Elements that are around all of the text.
const OUTERMOST: &[&str] = &["body", "html", "ncx", "package"];

/// `text` of a file of a book, with the language `tag` wherever the file says which one it is in.
pub(super) fn in_language<'a>(text: Cow<'a, str>, page: Page, tag: &str) -> Cow<'a, str> {
    let places = places(&text, page);
    if places.is_empty() {
        return text;
    }
    let mut written = String::with_capacity(text.len() + places.len() * tag.len());
    let mut from = 0;
    for place in places {
        written.push_str(&text[from..place.start]);
        written.push_str(tag);
        from = place.end;
    }
    written.push_str(&text[from..]);
    written.into()
}

/// Where `text` says in which language it is.
fn places(text: &str, page: Page) -> Vec<Range<usize>> {
    let mut reader = Reader::from_str(text);
    let mut places = Vec::new();
    // Of several languages the first is the one of the book.
    let mut said = page != Page::Package;
    let mut inside = false;
    loop {
        let start = usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX);
        let event = reader.read_event();
        let end = usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX);
        match event {
            Ok(Event::Start(tag)) => {
                let name = tag.local_name();
                if OUTERMOST.contains(&name.as_ref()) {
                    places.extend(attributes(text, start..end));
                }
                inside = !said && name.as_ref() == "language";
                if page == Page::Text && name.as_ref() == "body" {
                    return places;
                }
            }
            Ok(Event::Text(_)) if inside && !text[start..end].trim().is_empty() => {
                let word = text[start..end].trim();
                let first = start + (text[start..end].len() - text[start..end].trim_start().len());
                places.push(first..first + word.len());
                (inside, said) = (false, true);
            }
            Ok(Event::Eof) | Err(_) => return places,
            Ok(_) => {}
        }
    }
}

/// The values of `lang` and `xml:lang` in the tag that is `range` of `text`.
fn attributes(text: &str, range: Range<usize>) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let mut from = range.start;
    while let Some(equals) = text[from..range.end].find('=').map(|place| from + place) {
        let name = text[from..equals].trim_end().rsplit(char::is_whitespace).next();
        let Some(open) = text[equals..range.end].find(['"', '\'']).map(|place| equals + place)
        else {
            break;
        };
        let quote = if text[open..].starts_with('"') { '"' } else { '\'' };
        let Some(close) = text[open + 1..range.end].find(quote).map(|place| open + 1 + place)
        else {
            break;
        };
        if matches!(name, Some("lang" | "xml:lang")) {
            places.push(open + 1..close);
        }
        from = close + 1;
    }
    places
}
