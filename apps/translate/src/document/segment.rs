//! A segment: its text with markers, extracted from the source on demand.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::table::{Cut, Mark, Role, Table};
use super::{Document, Format, entity};

/// One segment of a [`Document`].
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    pub(super) document: &'a Document,
    number: usize,
    /// The table of its window, and its index there.
    table: Arc<Table>,
    index: usize,
}

/// A marker of a segment: ⟦`number`⟧.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Marker {
    /// The number, from 1.
    pub number: usize,
    /// The number of the closing marker of a pair.
    pub closed_by: Option<usize>,
}

impl<'a> Segment<'a> {
    pub(super) const fn new(
        document: &'a Document,
        number: usize,
        table: Arc<Table>,
        index: usize,
    ) -> Self {
        Self { document, number, table, index }
    }

    /// Returns its number in the document, from 0.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// Returns the text to translate. Markup, code, URLs and placeholders are markers: ⟦1⟧, ⟦2⟧ and so on, in order.
    #[must_use]
    pub fn text(&self) -> String {
        self.show(|marker, text| {
            let _ = write!(text, "⟦{marker}⟧");
        })
    }

    /// Returns the text without markers.
    #[must_use]
    pub fn plain(&self) -> String {
        self.show(|_, _| {})
    }

    /// Returns the source of the segment.
    #[must_use]
    pub fn source(&self) -> &'a str {
        let cut = self.cut();
        &self.document.source[cut.start as usize..cut.end as usize]
    }

    /// Returns the markers, in order.
    #[must_use]
    pub fn markers(&self) -> Vec<Marker> {
        let closing: HashMap<u32, usize> = (1..)
            .zip(self.shown())
            .filter(|(_, mark)| mark.closes())
            .map(|(number, mark)| (mark.pair, number))
            .collect();
        let marker = |(number, mark): (usize, &Mark)| {
            let closed_by = match mark.role {
                Role::Open => closing.get(&mark.pair).copied(),
                _ => None,
            };
            Marker { number, closed_by }
        };
        (1..).zip(self.shown()).map(marker).collect()
    }

    /// Estimates the tokens of [`text`](Self::text), without allocating it.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.table.tokens(&self.document.source, self.index)
    }

    pub(super) fn cut(&self) -> Cut {
        self.table.cuts[self.index]
    }

    pub(super) fn marks(&self) -> &[Mark] {
        self.table.marks_of(self.index)
    }

    /// Returns the marks that are shown as markers.
    pub(super) fn shown(&self) -> impl Iterator<Item = &Mark> {
        self.marks().iter().filter(|mark| mark.role != Role::Break)
    }

    fn show(&self, marker: impl Fn(usize, &mut String)) -> String {
        let mut shown = String::with_capacity(self.source().len());
        let mut number = 0;
        for (text, mark) in self.table.pieces(&self.document.source, self.index) {
            shown.push_str(&self.decoded(text));
            match mark.map(|mark| mark.role) {
                None => {}
                Some(Role::Break) => shown.push('\n'),
                Some(_) => {
                    number += 1;
                    marker(number, &mut shown);
                }
            }
        }
        shown
    }

    /// Decodes character references, where the format has them.
    fn decoded<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self.document.format {
            Format::Text | Format::Srt => Cow::Borrowed(text),
            Format::Markdown | Format::Html | Format::Vtt | Format::Epub => entity::decoded(text),
        }
    }
}
