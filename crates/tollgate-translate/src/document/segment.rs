//! One segment as the translator sees it: text with markers, made from the source when it is asked for.

use std::borrow::Cow;
use std::fmt::Write as _;

use quick_xml::escape::unescape_with;

use super::table::{Cut, Mark, Role};
use super::{Document, Format};
use crate::estimate;

/// What a marker is estimated at, in tokens: two brackets and a number of one or two digits.
const MARKER_TOKENS: u64 = 4;

/// One segment of a [`Document`].
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    pub(super) document: &'a Document,
    number: usize,
}

/// A marker of a segment: ⟦`number`⟧.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Marker {
    /// The number, from 1.
    pub number: usize,
    /// The number of the marker that closes what this one opens.
    pub closed_by: Option<usize>,
}

impl<'a> Segment<'a> {
    pub(super) const fn new(document: &'a Document, number: usize) -> Self {
        Self { document, number }
    }

    /// Its number in the document, from 0.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// The text to translate. Markup, code, addresses and placeholders are markers: ⟦1⟧, ⟦2⟧ and so on, in order.
    #[must_use]
    pub fn text(&self) -> String {
        self.show(|marker, text| {
            let _ = write!(text, "⟦{marker}⟧");
        })
    }

    /// The text without markers: for context, for detecting a language, for finding terms.
    #[must_use]
    pub fn plain(&self) -> String {
        self.show(|_, _| {})
    }

    /// The source of the segment, as it stands in the document.
    #[must_use]
    pub fn source(&self) -> &'a str {
        let cut = self.cut();
        &self.document.source[cut.start as usize..cut.end as usize]
    }

    /// The markers, in order.
    #[must_use]
    pub fn markers(&self) -> Vec<Marker> {
        let shown: Vec<&Mark> = self.shown().collect();
        let closes = |open: &Mark| {
            let is_other = |mark: &&Mark| mark.pair == open.pair && mark.role == Role::Close;
            shown.iter().position(is_other).map(|place| place + 1)
        };
        let marker = |(place, mark): (usize, &&Mark)| Marker {
            number: place + 1,
            closed_by: if mark.role == Role::Open { closes(mark) } else { None },
        };
        shown.iter().enumerate().map(marker).collect()
    }

    /// An estimate of the tokens of [`text`](Self::text), made without making the text.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        let mut quarters = 0;
        for (text, mark) in self.pieces() {
            quarters += estimate::quarters(text);
            quarters += mark.map_or(0, mark_quarters);
        }
        quarters.div_ceil(4)
    }

    pub(super) fn cut(&self) -> Cut {
        self.document.table.cuts[self.number]
    }

    pub(super) fn marks(&self) -> &'a [Mark] {
        self.document.table.marks_of(self.number)
    }

    /// The marks that are shown as markers.
    pub(super) fn shown(&self) -> impl Iterator<Item = &'a Mark> {
        self.marks().iter().filter(|mark| mark.role != Role::Break)
    }

    /// Texts, each with the mark behind it.
    fn pieces(&self) -> impl Iterator<Item = (&'a str, Option<&'a Mark>)> {
        let (source, cut) = (&self.document.source, self.cut());
        let mut from = cut.start as usize;
        let marks = self.marks().iter().map(Some).chain([None]);
        marks.map(move |mark| {
            let end = mark.map_or(cut.end, |mark| mark.start);
            let text = &source[from..end as usize];
            from = mark.map_or(cut.end, |mark| mark.end) as usize;
            (text, mark)
        })
    }

    fn show(&self, marker: impl Fn(usize, &mut String)) -> String {
        let mut shown = String::with_capacity(self.source().len());
        let mut number = 0;
        for (text, mark) in self.pieces() {
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

    /// References to characters become the characters, in a book.
    fn decoded(&self, text: &'a str) -> Cow<'a, str> {
        if self.document.format != Format::Epub || !text.contains('&') {
            return Cow::Borrowed(text);
        }
        unescape_with(text, super::xhtml::entity).unwrap_or(Cow::Borrowed(text))
    }
}

/// What a mark is estimated at, in quarters of a token.
pub(super) fn mark_quarters(mark: &Mark) -> u64 {
    if mark.role == Role::Break { estimate::quarters("\n") } else { 4 * MARKER_TOKENS }
}
