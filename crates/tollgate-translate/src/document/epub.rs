//! A book: a ZIP archive whose package file says which entries are pages, and in which order.
//!
//! The text of all pages stands in one source, page after page in the order of reading, so that a book is segmented, chunked
//! and given context like any other document. Every entry that is not a page, or whose text did not change, is copied as it is
//! packed.

use std::collections::HashMap;
use std::io::{Cursor, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};
use zip::{ZipArchive, ZipWriter};

use super::table::Table;
use super::xhtml::{self, Page};
use super::{BOM, DOCUMENT_BYTES_MAX, too_large};
use crate::error::Error;

/// The packed book, and where its pages are in the source.
#[derive(Clone)]
pub(super) struct Archive {
    bytes: Arc<[u8]>,
    pages: Vec<(String, Range<usize>)>,
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Archive").field("pages", &self.pages).finish_non_exhaustive()
    }
}

type Zip = ZipArchive<Cursor<Arc<[u8]>>>;

pub(super) fn read(bytes: Vec<u8>) -> Result<(Archive, String, Table), Error> {
    let bytes: Arc<[u8]> = bytes.into();
    let mut zip = ZipArchive::new(Cursor::new(Arc::clone(&bytes)))
        .map_err(|error| Error::document(format!("the document is not an EPUB: {error}")))?;
    let package = package_name(&mut zip)?;
    let pages = pages(&mut zip, &package)?;
    refuse_protected(&mut zip, &pages)?;
    let (mut source, mut table) = (String::new(), Table::default());
    let mut archive = Archive { bytes, pages: Vec::with_capacity(pages.len()) };
    for (name, page) in pages {
        let start = source.len();
        source.push_str(&entry(&mut zip, &name, DOCUMENT_BYTES_MAX - start)?);
        let text = start + if source[start..].starts_with(BOM) { BOM.len() } else { 0 };
        xhtml::read(&source, text, page, &mut table)
            .map_err(|error| Error::document(format!("{name}, {error}")))?;
        archive.pages.push((name, start..source.len()));
    }
    table.shrink();
    Ok((archive, source, table))
}

impl Archive {
    /// Packs the book with `written` in place of the source; `ends` has the end of each page in it.
    pub(super) fn write(
        &self,
        source: &str,
        written: &str,
        ends: &[usize],
    ) -> Result<Vec<u8>, Error> {
        let failed =
            |error: zip::result::ZipError| Error::document(format!("packing the book: {error}"));
        let mut zip = ZipArchive::new(Cursor::new(Arc::clone(&self.bytes))).map_err(failed)?;
        let mut changed = HashMap::new();
        let mut start = 0;
        for ((name, range), end) in self.pages.iter().zip(ends) {
            let page = &written[start..*end];
            if page != &source[range.clone()] {
                changed.insert(name.as_str(), page);
            }
            start = *end;
        }
        let mut packed = ZipWriter::new(Cursor::new(Vec::with_capacity(self.bytes.len())));
        for number in 0..zip.len() {
            let file = zip.by_index_raw(number).map_err(failed)?;
            let name = file.name().map_err(failed)?.into_owned();
            match changed.get(name.as_str()) {
                None => packed.raw_copy_file(file).map_err(failed)?,
                Some(page) => {
                    packed.start_file(&name, file.options()).map_err(failed)?;
                    packed.write_all(page.as_bytes()).map_err(|error| failed(error.into()))?;
                }
            }
        }
        packed.set_raw_comment(zip.comment().into()).map_err(failed)?;
        Ok(packed.finish().map_err(failed)?.into_inner())
    }

    pub(super) fn page_ends(&self) -> impl Iterator<Item = usize> {
        self.pages.iter().map(|(_, range)| range.end)
    }
}

/// The text of an entry of at most `most` bytes.
fn entry(zip: &mut Zip, name: &str, most: usize) -> Result<String, Error> {
    let broken = |error: &dyn std::fmt::Display| Error::document(format!("{name}: {error}"));
    let file = zip.by_name(name).map_err(|error| broken(&error))?;
    let mut bytes = Vec::new();
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    let read = file.take(most.saturating_add(1)).read_to_end(&mut bytes);
    if most < read.map_err(|error| broken(&error))? as u64 {
        return Err(too_large());
    }
    String::from_utf8(bytes).map_err(|_| {
        broken(&"is not UTF-8; convert the book, for example with an editor of e-books")
    })
}

/// The name of the package file, from the container.
fn package_name(zip: &mut Zip) -> Result<String, Error> {
    const CONTAINER: &str = "META-INF/container.xml";
    if zip.index_for_name(CONTAINER).is_none() {
        return Err(Error::document(format!("the document is not an EPUB: it has no {CONTAINER}")));
    }
    let container = entry(zip, CONTAINER, DOCUMENT_BYTES_MAX)?;
    let mut name = None;
    elements(CONTAINER, &container, |tag| {
        if tag.local_name().as_ref() == "rootfile" && name.is_none() {
            name = attribute(tag, "full-path");
        }
    })?;
    name.ok_or_else(|| Error::document(format!("{CONTAINER} names no package file")))
}

/// The pages in the order of reading, then other pages, then the index.
fn pages(zip: &mut Zip, package: &str) -> Result<Vec<(String, Page)>, Error> {
    let folder = package.rsplit_once('/').map_or("", |(folder, _)| folder);
    let text = entry(zip, package, DOCUMENT_BYTES_MAX)?;
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
    let place = |id: &String| spine.iter().position(|other| other == id).unwrap_or(usize::MAX);
    items.sort_by_key(|(id, _, page)| (*page == Page::Index, place(id)));
    let mut pages: Vec<(String, Page)> = Vec::with_capacity(items.len());
    for (_, name, page) in items {
        if zip.index_for_name(&name).is_none() {
            return Err(Error::document(format!(
                "{package} names the page {name}, which the book does not have"
            )));
        }
        if pages.iter().all(|(other, _)| *other != name) {
            pages.push((name, page));
        }
    }
    if pages.is_empty() {
        return Err(Error::document(format!("{package} names no page of text")));
    }
    Ok(pages)
}

/// A book may hide its fonts, but not its pages.
fn refuse_protected(zip: &mut Zip, pages: &[(String, Page)]) -> Result<(), Error> {
    const ENCRYPTION: &str = "META-INF/encryption.xml";
    if zip.index_for_name(ENCRYPTION).is_none() {
        return Ok(());
    }
    let text = entry(zip, ENCRYPTION, DOCUMENT_BYTES_MAX)?;
    let mut hidden = false;
    elements(ENCRYPTION, &text, |tag| {
        if tag.local_name().as_ref() == "CipherReference" {
            let name = attribute(tag, "URI").map(|name| resolved("", &name));
            hidden |= pages.iter().any(|(page, _)| Some(page) == name.as_ref());
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

/// The name of an entry: `href` seen from `folder`, without escapes and without a fragment.
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
    percent_decoded(&parts.join("/"))
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        let code = tail.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match (byte, code.and_then(|code| u8::from_str_radix(code, 16).ok())) {
            (b'%', Some(decoded)) => {
                bytes.push(decoded);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}
