//! EPUB: a ZIP archive whose package file lists its pages in reading order.
//!
//! The source is the text of all pages in reading order, so that a book is segmented, chunked and given context like any other
//! document. An entry that is not a page, or did not change, is copied in its compressed form.

mod package;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{Cursor, Read, Write};
use std::ops::Range;
use std::sync::Arc;

use zip::{ZipArchive, ZipWriter};

use super::chapters::Chapters;
use super::table::Table;
use super::warning::Warning;
use super::xhtml::{self, Page};
use super::{DOCUMENT_BYTES_MAX, labels, soup, too_large};
use crate::error::Error;
use crate::language::Language;
use package::{package_name, pages, refuse_protected};

/// The maximum ratio of deflate.
const PACKED_TIMES_MAX: usize = 1_032;

/// The archive, and the positions of its pages in the source.
#[derive(Clone)]
pub(super) struct Archive {
    packed: Packed,
    pages: Vec<Entry>,
}

/// The handling of invalid pages.
const COPIED: &str = "it is kept as it is";
const AS_BROWSERS_DO: &str = "it is read as browsers do";

/// A page: the entry of the archive, and its end in the source.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    page: Page,
    end: usize,
    /// Its number in reading order, from 1.
    chapter: Option<usize>,
}

/// The bytes of the archive, shared without the copy that `Arc<[u8]>` would make.
#[derive(Clone)]
struct Packed(Arc<Vec<u8>>);

impl AsRef<[u8]> for Packed {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Archive").field("pages", &self.pages).finish_non_exhaustive()
    }
}

type Zip = ZipArchive<Cursor<Packed>>;

/// Returns the archive and the text of all pages; adds invalid pages to `warnings`.
pub(super) fn read(
    bytes: Vec<u8>,
    warnings: &mut Vec<Warning>,
) -> Result<(Archive, String), Error> {
    let room = bytes.len().saturating_mul(PACKED_TIMES_MAX).min(DOCUMENT_BYTES_MAX);
    let packed = Packed(Arc::new(bytes));
    let mut zip = ZipArchive::new(Cursor::new(packed.clone()))
        .map_err(|error| Error::document(format!("the document is not an EPUB: {error}")))?;
    let package = package_name(&mut zip)?;
    let mut pages = pages(&mut zip, &package, warnings)?;
    refuse_protected(&mut zip, &pages)?;
    // The declared sizes are trusted as far as they are plausible, so that the text is not reallocated.
    let size = |entry: &Entry| {
        let index = zip.index_for_name(&entry.name)?;
        usize::try_from(zip.by_index_raw(index).ok()?.size()).ok()
    };
    let said = pages.iter().filter_map(size).fold(0, usize::saturating_add);
    let mut source = Vec::with_capacity(said.min(room));
    for entry in &mut pages {
        let start = source.len();
        unpack(&mut zip, &entry.name, DOCUMENT_BYTES_MAX - start, &mut source)?;
        match utf8(&entry.name, &source[start..]) {
            Err(error) if entry.page != Page::Package => {
                warnings.push(Warning::new(error.to_string(), COPIED));
                entry.page = Page::Copied;
                source.truncate(start);
            }
            read => drop(read?),
        }
        entry.end = source.len();
    }
    // A window must not be empty.
    let mut from = 0;
    pages.retain(|entry| std::mem::replace(&mut from, entry.end) < entry.end);
    let source = String::from_utf8(source).map_err(|error| Error::document(error.to_string()))?;
    Ok((Archive { packed, pages }, source))
}

impl Archive {
    /// Adds the segments of the page at `window` of `source`.
    pub(super) fn read_page(
        &self,
        number: usize,
        source: &str,
        window: Range<usize>,
        table: &mut Table,
    ) {
        match self.pages[number].page {
            Page::Copied => {}
            Page::Soup => soup::read(source, window, table, |_| {}),
            // `check_page` found it well-formed.
            page => drop(xhtml::read(source, window, page, table)),
        }
    }

    /// Selects the parser of the page at `window` of `source`; adds a page that is not well-formed to `warnings`.
    pub(super) fn check_page(
        &mut self,
        number: usize,
        source: &str,
        window: Range<usize>,
        warnings: &mut Vec<Warning>,
    ) -> Result<(), Error> {
        let (mut table, entry) = (Table::default(), &mut self.pages[number]);
        let Err(flaw) = xhtml::read(source, window.clone(), entry.page, &mut table) else {
            return Ok(());
        };
        let line = source[window.start..flaw.offset].matches('\n').count() + 1;
        let problem = format!("{}, line {line}: {}", entry.name, flaw.why);
        let (page, done) = match entry.page {
            Page::Package => {
                return Err(Error::document(format!("{problem}; repair the book first")));
            }
            Page::Text => (Page::Soup, AS_BROWSERS_DO),
            _ => (Page::Copied, COPIED),
        };
        entry.page = page;
        warnings.push(Warning::new(problem, done));
        Ok(())
    }

    /// Writes the book with `written` in place of the source; `ends` has the end of each page in it. Sets the language of the book to
    /// `language`.
    pub(super) fn write(
        &self,
        source: &str,
        written: &str,
        ends: &[usize],
        language: Option<&Language>,
    ) -> Result<Vec<u8>, Error> {
        let failed =
            |error: zip::result::ZipError| Error::document(format!("packing the book: {error}"));
        let mut zip = ZipArchive::new(Cursor::new(self.packed.clone())).map_err(failed)?;
        let mut changed = HashMap::new();
        let (mut from, mut start) = (0, 0);
        for (entry, end) in self.pages.iter().zip(ends) {
            let mut page = Cow::Borrowed(&written[start..*end]);
            if let Some(language) = language {
                page = labels::set_language(page, entry.page, language);
            }
            if page != source[from..entry.end] {
                changed.insert(entry.name.as_str(), page);
            }
            (from, start) = (entry.end, *end);
        }
        let mut packed = ZipWriter::new(Cursor::new(Vec::with_capacity(self.packed.0.len())));
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

    /// Excludes everything but `chapters` from translation.
    pub(super) fn choose(&mut self, chapters: &Chapters) -> Result<(), Error> {
        const NAMED_MAX: usize = 40;
        let all = || self.pages.iter().filter_map(|entry| Some((entry.chapter?, &entry.name)));
        let count = all().map(|(number, _)| number).max().unwrap_or(0);
        if let Some(number) = chapters.beyond(count) {
            let names = all().take(NAMED_MAX).map(|(number, name)| format!("{number} {name}"));
            let names = names.collect::<Vec<_>>().join(", ");
            return Err(Error::invalid(format!(
                "there is no chapter {number}; the book has {count}: {names}"
            )));
        }
        for entry in &mut self.pages {
            if !entry.chapter.is_some_and(|number| chapters.contains(number)) {
                entry.page = Page::Copied;
            }
        }
        Ok(())
    }

    pub(super) fn page_ends(&self) -> impl Iterator<Item = usize> {
        self.pages.iter().map(|entry| entry.end)
    }
}

/// Appends an entry of at most `most` bytes to `bytes`.
fn unpack(zip: &mut Zip, name: &str, most: usize, bytes: &mut Vec<u8>) -> Result<(), Error> {
    let broken = |error: &dyn std::fmt::Display| Error::document(format!("{name}: {error}"));
    let file = zip.by_name(name).map_err(|error| broken(&error))?;
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    let read = file.take(most.saturating_add(1)).read_to_end(bytes);
    if most < read.map_err(|error| broken(&error))? as u64 {
        return Err(too_large());
    }
    Ok(())
}

fn utf8<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a str, Error> {
    std::str::from_utf8(bytes).map_err(|_| {
        let right = "convert the book, for example with an editor of e-books";
        Error::document(format!("{name} is not UTF-8; {right}"))
    })
}

/// Returns the text of an entry.
fn text(zip: &mut Zip, name: &str) -> Result<String, Error> {
    let mut bytes = Vec::new();
    unpack(zip, name, DOCUMENT_BYTES_MAX, &mut bytes)?;
    utf8(name, &bytes).map(str::to_owned)
}
