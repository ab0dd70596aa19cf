//! Writing a document: the source with other text in its segments.
//!
//! An unchanged text is copied from the source. Any other is rendered without introducing structure: its line breaks become those of the
//! source with their indentation, and special characters are escaped. Each marker must occur exactly once; otherwise markup would be
//! lost, so it is an error.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::patches::Patches;
use super::table::Kind;
use super::xhtml::Page;
use super::{Document, Format, labels};
use crate::error::Error;
use crate::language::Language;

/// The layout of the written document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// The translation in place of the source.
    #[default]
    Translation,
    /// The source and then the translation, paragraph by paragraph.
    Bilingual,
}

/// The content of one segment of the written document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling<'a> {
    /// This text, with the markers of the segment.
    Text(&'a str),
    /// The source.
    Source,
    /// The source, marked as not translated.
    Failed,
}

/// Marks the source of a segment that was not translated.
pub const FAILED_MARK: &str = "[NOT TRANSLATED] ";

impl Document {
    /// Writes the document with `fill` in its segments.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a text does not have each marker of its segment exactly once.
    pub fn write<'a>(
        &self,
        layout: Layout,
        fill: impl Fn(usize) -> Filling<'a>,
    ) -> Result<Vec<u8>, Error> {
        self.write_as(None, layout, fill)
    }

    /// Like [`write`](Self::write), and declares the `language` of an HTML page, or of a book and its pages, unless the layout is
    /// bilingual.
    ///
    /// # Errors
    /// Like [`write`](Self::write).
    pub fn write_in<'a>(
        &self,
        language: &Language,
        layout: Layout,
        fill: impl Fn(usize) -> Filling<'a>,
    ) -> Result<Vec<u8>, Error> {
        self.write_as(Some(language).filter(|_| layout == Layout::Translation), layout, fill)
    }

    fn write_as<'a>(
        &self,
        language: Option<&Language>,
        layout: Layout,
        fill: impl Fn(usize) -> Filling<'a>,
    ) -> Result<Vec<u8>, Error> {
        let mut pages = self.archive.iter().flat_map(super::epub::Archive::page_ends).peekable();
        let mut ends = Vec::new();
        let mut written = String::with_capacity(self.source.len() + self.source.len() / 8);
        let mut from = 0;
        let mut beside = String::new();
        let mut paragraph = None;
        let mut patches = Patches::default();
        for segment in self.segments() {
            let cut = segment.cut();
            let (start, end) = (cut.start as usize, cut.end as usize);
            if cut.kind == Kind::Attribute {
                patches.put(start..end, segment.attribute(layout, fill(segment.number()))?);
                continue;
            }
            while let Some(page) = pages.next_if(|page| *page <= start) {
                written.push_str(&patches.applied(&self.source, from..page));
                from = page;
                ends.push(written.len());
            }
            written.push_str(&patches.applied(&self.source, from..start));
            from = end;
            let own = || patches.applied(&self.source, start..end);
            match (layout, fill(segment.number())) {
                (_, Filling::Source) => written.push_str(&own()),
                (_, Filling::Failed) => {
                    written.push_str(FAILED_MARK);
                    written.push_str(&own());
                }
                (Layout::Translation, Filling::Text(text)) => {
                    written.push_str(&segment.rendered(text, &patches)?);
                }
                (Layout::Bilingual, Filling::Text(text)) => {
                    written.push_str(&own());
                    beside.push_str(if beside.is_empty() { "" } else { " " });
                    beside.push_str(&segment.rendered(text, &patches)?);
                }
            }
            let first = *paragraph.get_or_insert(start);
            if !cut.continues {
                if !beside.is_empty() {
                    written.push_str(&self.separator(first, cut.kind));
                    written.push_str(&std::mem::take(&mut beside));
                }
                paragraph = None;
            }
        }
        for page in pages {
            written.push_str(&patches.applied(&self.source, from..page));
            from = page;
            ends.push(written.len());
        }
        written.push_str(&patches.applied(&self.source, from..self.source.len()));
        match (&self.archive, language) {
            (Some(archive), _) => archive.write(&self.source, &written, &ends, language),
            (None, Some(language)) if self.format == Format::Html => {
                Ok(labels::set_language(written.into(), Page::Soup, language).into_owned().into())
            }
            (None, _) => Ok(written.into_bytes()),
        }
    }

    /// Returns the separator of the source of a segment and its translation.
    fn separator(&self, start: usize, kind: Kind) -> Cow<'static, str> {
        let line = self.source[..start].rfind('\n').map_or(0, |offset| offset + 1);
        let newline = if self.source[..line].ends_with("\r\n") { "\r\n" } else { "\n" };
        match (self.format, kind) {
            (_, Kind::Line | Kind::Attribute) => " / ".into(),
            (Format::Epub, Kind::Paragraph) => "<br/>".into(),
            (Format::Html, Kind::Paragraph) => "<br>".into(),
            (Format::Srt | Format::Vtt, Kind::Paragraph) => newline.into(),
            (Format::Text | Format::Markdown, Kind::Paragraph) => {
                // A quote goes on with its sign, a list item with as much space as its bullet takes.
                let prefix = self.source[line..start].trim_start_matches('\u{feff}').chars();
                let prefix: String =
                    prefix.map(|c| if c == '>' || c == '\t' { c } else { ' ' }).collect();
                let empty = prefix.trim_end();
                format!("{newline}{empty}{newline}{prefix}").into()
            }
        }
    }
}
