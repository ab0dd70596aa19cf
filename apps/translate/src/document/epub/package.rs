//! The metadata of a book: its pages, their order, and copy protection.

use std::collections::{HashMap, HashSet};

use percent_encoding::percent_decode_str;
use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

use super::{Entry, Zip, text};
use crate::document::warning::Warning;
use crate::document::xhtml::Page;
use crate::error::Error;

/// Returns the name of the package file, from the container.
pub(super) fn package_name(zip: &mut Zip) -> Result<String, Error> {
    const CONTAINER: &str = "META-INF/container.xml";
    if zip.index_for_name(CONTAINER).is_none() {
        return Err(Error::document(format!("the document is not an EPUB: it has no {CONTAINER}")));
    }
    let container = text(zip, CONTAINER)?;
    let mut name = None;
    elements(CONTAINER, &container, |tag| {
        if tag.local_name().as_ref() == "rootfile" && name.is_none() {
            name = attribute(tag, "full-path");
        }
    })?;
    name.ok_or_else(|| Error::document(format!("{CONTAINER} names no package file")))
}

/// Returns the pages in reading order, then other pages, the index, and the package file for the title of the book.
pub(super) fn pages(
    zip: &mut Zip,
    package: &str,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Entry>, Error> {
    let folder = package.rsplit_once('/').map_or("", |(folder, _)| folder);
    let text = text(zip, package)?;
    let mut items: Vec<(String, String, Page)> = Vec::new();
    let mut spine: Vec<String> = Vec::new();
    elements(package, &text, |tag| match tag.local_name().as_ref() {
        "item" => {
            let page = match attribute(tag, "media-type").as_deref() {
                Some("application/xhtml+xml") => Page::Text,
                Some("application/x-dtbncx+xml") => Page::Index,
                _ => return,
            };
            if let (Some(id), Some(href)) = (attribute(tag, "id"), attribute(tag, "href")) {
                items.push((id, resolved(folder, &href), page));
            }
        }
        "itemref" => spine.extend(attribute(tag, "idref")),
        _ => {}
    })?;
    let mut places: HashMap<&str, usize> = HashMap::with_capacity(spine.len());
    for (place, id) in spine.iter().enumerate() {
        places.entry(id).or_insert(place);
    }
    let place = |id: &String| places.get(id.as_str()).copied().unwrap_or(usize::MAX);
    let is_read = |id: &String| places.contains_key(id.as_str());
    items.sort_by_key(|(id, _, page)| (*page == Page::Index, place(id)));
    let mut pages: Vec<Entry> = Vec::with_capacity(items.len());
    let mut seen = HashSet::with_capacity(items.len());
    let mut chapters = 0;
    for (id, name, page) in items {
        let Some(index) = zip.index_for_name(&name) else {
            let problem = format!("{package} names the page {name}, which the book does not have");
            warnings.push(Warning::new(problem, "it is left out"));
            continue;
        };
        if seen.insert(index) {
            let chapter = (page == Page::Text && is_read(&id)).then(|| chapters + 1);
            chapters = chapter.unwrap_or(chapters);
            pages.push(Entry { name, page, end: 0, chapter });
        }
    }
    if pages.is_empty() {
        return Err(Error::document(format!("{package} names no page of text")));
    }
    let name = package.to_owned();
    pages.push(Entry { name, page: Page::Package, end: 0, chapter: None });
    Ok(pages)
}

/// Refuses a book with encrypted pages; encrypted fonts are fine.
pub(super) fn refuse_protected(zip: &mut Zip, pages: &[Entry]) -> Result<(), Error> {
    const ENCRYPTION: &str = "META-INF/encryption.xml";
    if zip.index_for_name(ENCRYPTION).is_none() {
        return Ok(());
    }
    let text = text(zip, ENCRYPTION)?;
    let mut hidden = false;
    elements(ENCRYPTION, &text, |tag| {
        if tag.local_name().as_ref() == "CipherReference" {
            let name = attribute(tag, "URI").map(|name| resolved("", &name));
            hidden |= pages.iter().any(|entry| Some(&entry.name) == name.as_ref());
        }
    })?;
    if hidden {
        return Err(Error::document(
            "the book is copy-protected; only books without protection are translated",
        ));
    }
    Ok(())
}

fn elements(name: &str, text: &str, mut each: impl FnMut(&BytesStart<'_>)) -> Result<(), Error> {
    let mut reader = Reader::from_str(text);
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag) | Event::Empty(tag)) => each(&tag),
            Ok(Event::Eof) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(Error::document(format!("{name}: {error}"))),
        }
    }
}

fn attribute(tag: &BytesStart<'_>, name: &str) -> Option<String> {
    let value = tag.try_get_attribute(name).ok()??.value;
    quick_xml::escape::unescape(&value).ok().map(std::borrow::Cow::into_owned)
}

/// Resolves `href` in `folder` to the name of an entry, without percent-encoding and fragment.
fn resolved(folder: &str, href: &str) -> String {
    let path = href.split('#').next().unwrap_or_default();
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let name = parts.join("/");
    let decoded = percent_decode_str(&name).decode_utf8();
    decoded.map(std::borrow::Cow::into_owned).unwrap_or(name)
}
