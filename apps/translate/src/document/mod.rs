//! A document: its source, and the segments of text to translate.
//!
//! A segment is a range of the source, about a paragraph. The source between segments, and behind markers such as ⟦1⟧ inside them, is
//! copied byte by byte into the translation. So the structure of a document is preserved by construction, and a format is one function
//! that finds segments.
//!
//! The positions of segments are not stored: the document is divided into windows of 64 KiB that parse on their own, and a window is
//! parsed again on demand. Beyond the document itself, memory holds twelve bytes for each window, the tables of the most recent
//! windows with 16 bytes for each segment, marker and line break, and 8 bytes for each link, footnote and title that Markdown defines.
//! Text that parses only as a whole is one window of any length: a paragraph of wrapped lines, a block of Markdown, a page of a book or
//! of HTML.

mod attributes;
mod chapters;
mod cues;
mod entity;
mod epub;
mod inline;
mod labels;
mod markdown;
mod patches;
mod refine;
mod render;
mod segment;
mod soup;
mod srt;
mod table;
mod text;
mod vtt;
mod warning;
mod window;
mod write;
mod xhtml;

pub use chapters::Chapters;
pub use segment::{Marker, Segment};
pub use warning::Warning;
pub use write::{FAILED_MARK, Filling, Layout};

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use epub::Archive;
use markdown::Definitions;
use window::{TableCache, WINDOW_BYTES, Windows};

/// The maximum size of a document, uncompressed, in bytes. Positions fit in 32 bits.
pub const DOCUMENT_BYTES_MAX: usize = 512 << 20;

const BOM: &str = "\u{feff}";

/// The supported formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Plain text: paragraphs separated by empty lines, or one long line each.
    Text,
    /// Markdown: CommonMark with tables, footnotes, strikethrough and task lists.
    Markdown,
    /// HTML, well-formed or not.
    Html,
    /// SubRip subtitles.
    Srt,
    /// WebVTT subtitles.
    Vtt,
    /// An EPUB book without copy protection.
    Epub,
}

impl Format {
    const ALL: [(Self, &'static [&'static str]); 6] = [
        (Self::Text, &["txt", "text"]),
        (Self::Markdown, &["md", "markdown"]),
        (Self::Html, &["html", "htm", "xhtml"]),
        (Self::Srt, &["srt"]),
        (Self::Vtt, &["vtt"]),
        (Self::Epub, &["epub"]),
    ];

    /// Returns the format of a file by its extension.
    ///
    /// # Errors
    /// [`ErrorKind::Document`](crate::ErrorKind::Document) for any other extension.
    pub fn from_path(path: &Path) -> Result<Self, Error> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        ending.to_ascii_lowercase().parse().map_err(|_| {
            Error::document(format!(
                "{}: unsupported extension {ending:?}; use .txt, .md, .html, .srt, .vtt or .epub",
                path.display()
            ))
        })
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let known = Self::ALL.iter().find(|(_, names)| names.contains(&text));
        known.map(|(format, _)| *format).ok_or_else(|| {
            Error::invalid(format!("{text:?} is not a format; use txt, md, html, srt, vtt or epub"))
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::ALL.iter().find(|(format, _)| format == self).map(|(_, names)| names[0]);
        f.write_str(names.unwrap_or_default())
    }
}

/// A parsed document: segments in the order of the source, counted from 0.
///
/// ```
/// use tollgate_translate::{Document, Filling, Format, Layout};
///
/// let source = "# Title\n\nSee [the *guide*](https://example.com).\n";
/// let document = Document::read(source.as_bytes().to_vec(), Format::Markdown)?;
/// assert_eq!(document.segment(1).text(), "See ⟦1⟧the ⟦2⟧guide⟦3⟧⟦4⟧.");
/// let french = ["Titre", "Voir ⟦1⟧le ⟦2⟧guide⟦3⟧⟦4⟧."];
/// let written = document.write(Layout::Translation, |segment| Filling::Text(french[segment]))?;
/// assert_eq!(written, "# Titre\n\nVoir [le *guide*](https://example.com).\n".as_bytes());
/// # Ok::<(), tollgate_translate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Document {
    format: Format,
    source: String,
    windows: Windows,
    /// The Markdown definitions for all windows.
    definitions: Definitions,
    /// The maximum tokens of a segment, once chunks were cut.
    most: Option<u64>,
    tables: TableCache,
    archive: Option<Archive>,
    warnings: Vec<Warning>,
}

impl Document {
    /// Parses a document. An invalid page or cue is parsed as browsers do, or kept unchanged, and reported by
    /// [`warnings`](Self::warnings).
    ///
    /// # Errors
    /// [`ErrorKind::Document`](crate::ErrorKind::Document) if it is not UTF-8, too large, or not of this format.
    pub fn read(bytes: Vec<u8>, format: Format) -> Result<Self, Error> {
        Self::read_in_windows(bytes, format, WINDOW_BYTES)
    }

    /// Like [`read`](Self::read), but fails on the first of the [`warnings`](Self::warnings).
    ///
    /// # Errors
    /// Like [`read`](Self::read), and for a warning.
    pub fn read_strict(bytes: Vec<u8>, format: Format) -> Result<Self, Error> {
        let document = Self::read(bytes, format)?;
        match document.warnings.first() {
            Some(warning) => Err(Error::document(warning.problem.clone())),
            None => Ok(document),
        }
    }

    /// Excludes all but some chapters of a book from translation.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if it is not a book, or has no such chapter.
    pub fn choose(&mut self, chapters: &Chapters) -> Result<(), Error> {
        let Some(archive) = &mut self.archive else {
            return Err(Error::invalid("only a book (.epub) has chapters; leave --chapters out"));
        };
        archive.choose(chapters)?;
        *self = self.uncut();
        Ok(())
    }

    /// Returns the warnings about invalid parts of the document, in order.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Like [`read`](Self::read), in windows of about `window` bytes. The size affects memory and time, but not the segments.
    ///
    /// # Errors
    /// Like [`read`](Self::read).
    pub fn read_in_windows(bytes: Vec<u8>, format: Format, window: usize) -> Result<Self, Error> {
        if DOCUMENT_BYTES_MAX < bytes.len() {
            return Err(too_large());
        }
        let mut warnings = Vec::new();
        let (archive, source) = match format {
            Format::Epub => {
                let (archive, source) = epub::read(bytes, &mut warnings)?;
                (Some(archive), source)
            }
            _ => (None, utf8(bytes)?),
        };
        let mut document = Self {
            format,
            source,
            windows: Windows::default(),
            definitions: Definitions::default(),
            most: None,
            tables: TableCache::default(),
            archive,
            warnings,
        };
        document.find_windows(window)?;
        Ok(document)
    }

    /// Returns the format.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Returns the number of segments.
    #[must_use]
    pub fn len(&self) -> usize {
        self.firsts().last().map_or(0, |segments| *segments as usize)
    }

    /// Returns whether there is nothing to translate.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size of the source in bytes; of a book, of the files with text.
    #[must_use]
    pub fn source_bytes(&self) -> usize {
        self.source.len()
    }

    /// Returns a segment.
    ///
    /// # Panics
    /// If there is no segment of this number.
    #[must_use]
    pub fn segment(&self, number: usize) -> Segment<'_> {
        self.in_window(number, &mut None)
    }

    /// Returns all segments, in order.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = Segment<'_>> + ExactSizeIterator {
        self.segments_in(0..self.len())
    }
}

fn too_large() -> Error {
    Error::document(format!(
        "the document has more than {} MiB of text; cut it in parts",
        DOCUMENT_BYTES_MAX >> 20
    ))
}

fn utf8(bytes: Vec<u8>) -> Result<String, Error> {
    let marked = match bytes.as_slice() {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some("UTF-16"),
        [b'P', b'K', 3, 4, ..] => Some("a ZIP archive (EPUB has the ending .epub)"),
        [b'%', b'P', b'D', b'F', ..] => Some("PDF"),
        _ => None,
    };
    // Text has no NUL bytes, but Latin letters in UTF-16 do.
    let marked =
        marked.or_else(|| bytes.contains(&0).then_some("UTF-16 or no text (it has NUL bytes)"));
    if let Some(marked) = marked {
        return Err(Error::document(format!(
            "the document is {marked}, not text in UTF-8; convert it to UTF-8 first"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
        Error::document(format!(
            "the document is not UTF-8: byte {at}, on line {line}, belongs to another encoding; convert it, as in \
             iconv -f WINDOWS-1252 -t UTF-8"
        ))
    })
}
