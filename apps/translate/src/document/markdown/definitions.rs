//! Definitions of a document for all of its windows: link targets and footnotes.
//!
//! Whether `[words]` is a link depends on a definition anywhere in the document, often at the end. Only its existence matters: a hash
//! of each label is stored, which folds case like the parser, and the position of its title.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use unicase::UniCase;

use crate::document::table::at;

/// The definitions of a document.
#[derive(Clone, Debug, Default)]
pub(crate) struct Definitions {
    /// Hashes of the labels of links; sorted by [`close`](Self::close).
    links: Vec<u64>,
    /// Hashes of the labels of footnotes.
    pub(super) notes: Vec<u64>,
    /// Ranges of the titles of links; sorted by [`close`](Self::close).
    titles: Vec<(u32, u32)>,
    /// The links before [`close`](Self::close).
    seen: HashSet<u64>,
}

impl Definitions {
    pub(super) fn hash(label: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        UniCase::new(label).hash(&mut hasher);
        hasher.finish()
    }

    /// Adds the definition of a link, unless its label is defined.
    pub(super) fn put(&mut self, label: &str, title: Option<Range<usize>>) {
        let hash = Self::hash(label);
        if self.seen.insert(hash) {
            self.links.push(hash);
            self.titles.extend(title.map(|title| (at(title.start), at(title.end))));
        }
    }

    /// Returns the ranges of the titles in `window`.
    pub(super) fn titles_in(&self, window: Range<usize>) -> &[(u32, u32)] {
        let offset = |end: usize| self.titles.partition_point(|title| (title.0 as usize) < end);
        &self.titles[offset(window.start)..offset(window.end)]
    }

    /// Sorts the definitions for lookup.
    pub(crate) fn close(&mut self) {
        for labels in [&mut self.links, &mut self.notes] {
            labels.sort_unstable();
            labels.dedup();
            labels.shrink_to_fit();
        }
        self.titles.sort_unstable();
        self.titles.shrink_to_fit();
        self.seen = HashSet::new();
    }

    pub(super) fn has_link(&self, label: &str) -> bool {
        self.links.binary_search(&Self::hash(label)).is_ok()
    }

    /// Returns empty definitions of the footnotes that `text` may refer to, since the parser recognizes only footnotes with a
    /// definition. A rule ends them.
    pub(super) fn notes_for(&self, text: &str) -> String {
        let mut written = String::new();
        if self.notes.is_empty() {
            return written;
        }
        let mut seen = HashSet::new();
        for (offset, _) in text.match_indices("[^") {
            let Some(raw) = label(&text[offset + 2..]) else { continue };
            // In a cell of a table, the bar of a label is escaped.
            for raw in [raw.to_owned(), raw.replace("\\|", "|")] {
                let words: Vec<&str> = raw.split_ascii_whitespace().collect();
                let hash = Self::hash(&words.join(" "));
                if self.notes.binary_search(&hash).is_ok() && seen.insert(hash) {
                    let _ = writeln!(written, "[^{raw}]:");
                }
            }
        }
        if !written.is_empty() {
            written.push_str("***\n");
        }
        written
    }
}

/// Returns the label at the start of `text`, up to its bracket on the same line.
fn label(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut offset = 0;
    loop {
        match bytes.get(offset)? {
            b']' => return Some(&text[..offset]),
            b'[' | b'\n' | b'\r' => return None,
            b'\\' if bytes.get(offset + 1).is_some_and(u8::is_ascii_punctuation) => offset += 2,
            _ => offset += 1,
        }
    }
}
