//! Windows: stretches of the source that are read alone, so that a long document takes no more memory than a short one.
//!
//! Of a window only its start and the number of its first segment are kept. Its table is made when one of its segments is asked
//! for, and made alike each time; the tables of a few windows are kept, for those who ask for neighbours, and for workers that
//! translate several chunks at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::refine::refine;
use super::table::{Table, at};
use super::{BOM, Document, Format, Segment, markdown, srt, text};
use crate::error::Error;

/// How much source a window has, in bytes, unless a paragraph, a block of Markdown or a page of a book is longer.
pub(super) const WINDOW_BYTES: usize = 64 << 10;

/// How many tables are kept. Ten chunks of the usual size that follow each other are in four windows.
const TABLES: usize = 8;

/// Where a window begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    start: u32,
    /// The number of its first segment.
    first: u32,
    is: Is,
}

/// What must be known of a window to read it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    /// Nothing.
    Plain,
    /// Text: it begins inside a block with a paragraph on each line.
    Inside,
    /// Markdown: it may refer to what other windows define.
    Referring,
}

/// All windows of a document, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows {
    list: Vec<Window>,
    /// How many segments they have.
    pub(super) segments: usize,
}

impl Windows {
    fn with_capacity(windows: usize) -> Self {
        Self { list: Vec::with_capacity(windows), segments: 0 }
    }

    fn count(&self, window: usize) -> usize {
        let end = self.list.get(window + 1).map_or(self.segments, |next| next.first as usize);
        end - self.list[window].first as usize
    }

    fn push(&mut self, start: usize, is: Is, segments: usize) {
        self.list.push(Window { start: at(start), first: at(self.segments), is });
        self.segments += segments;
    }

    /// The window that has the segment `number`.
    fn of(&self, number: usize) -> usize {
        self.list.partition_point(|window| window.first as usize <= number).saturating_sub(1)
    }
}

/// A window with its table.
type Held = (usize, Arc<Table>);

/// Tables that were made lately, the latest last.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<VecDeque<Held>>);

impl Clone for Recent {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Recent {
    /// The table of `window`. Whoever makes one keeps nobody else waiting; two may make the same.
    fn get(&self, window: usize, make: impl FnOnce() -> Table) -> Arc<Table> {
        let locked = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = |tables: &mut VecDeque<Held>| {
            let place = tables.iter().position(|(other, _)| *other == window)?;
            let kept = tables.remove(place)?;
            let table = Arc::clone(&kept.1);
            tables.push_back(kept);
            Some(table)
        };
        if let Some(table) = found(&mut locked()) {
            return table;
        }
        let table = Arc::new(make());
        let mut tables = locked();
        if let Some(other) = found(&mut tables) {
            return other;
        }
        if tables.len() == TABLES {
            tables.pop_front();
        }
        tables.push_back((window, Arc::clone(&table)));
        table
    }
}

impl Document {
    /// Finds the windows, each of about `bytes` bytes.
    pub(super) fn find_windows(&mut self, bytes: usize) -> Result<(), Error> {
        let mut start = if self.source.starts_with(BOM) { BOM.len() } else { 0 };
        let mut table = Table::default();
        let (mut windows, mut is) = (Windows::default(), Is::Plain);
        if self.format == Format::Markdown {
            start += markdown::front_matter(&self.source[start..]);
        } else if self.format == Format::Epub {
            start = 0;
        }
        let mut pages = self.archive.iter().flat_map(super::epub::Archive::page_ends);
        while start < self.source.len() {
            let source = &self.source;
            let (end, next) = match self.format {
                Format::Text => {
                    let (end, inside) = text::find(source, start, bytes, is == Is::Inside);
                    (end, if inside { Is::Inside } else { Is::Plain })
                }
                Format::Srt => (srt::find(source, start, bytes), Is::Plain),
                Format::Epub => (pages.next().unwrap_or(source.len()), Is::Plain),
                Format::Markdown => {
                    let found =
                        markdown::find(source, start, bytes, &mut table, &mut self.definitions);
                    let is = if found.refers { Is::Referring } else { Is::Plain };
                    windows.push(start, is, found.segments);
                    start = found.end;
                    continue;
                }
            };
            table.clear();
            self.fill(windows.list.len(), start..end, (is, next), &mut table)?;
            windows.push(start, is, table.cuts.len());
            (start, is) = (end, next);
        }
        drop(pages);
        windows.list.shrink_to_fit();
        self.windows = windows;
        self.definitions.close();
        if !self.definitions.is_empty() {
            self.count_referring();
        }
        Ok(())
    }

    /// Counts the segments of windows that refer to others again, now that all definitions are known.
    fn count_referring(&mut self) {
        let mut windows = Windows::with_capacity(self.windows.list.len());
        for (number, window) in self.windows.list.iter().enumerate() {
            let segments = match window.is {
                Is::Referring => self.table(number).cuts.len(),
                Is::Plain | Is::Inside => self.windows.count(number),
            };
            windows.push(window.start as usize, window.is, segments);
        }
        self.windows = windows;
    }

    /// Cuts segments of more than `most` tokens where they can be cut, and tells the tokens of every segment, in order.
    pub(crate) fn refine(&mut self, most: u64, mut each: impl FnMut(u64)) {
        self.most = Some(most);
        self.recent = Recent::default();
        let mut windows = Windows::with_capacity(self.windows.list.len());
        for (number, window) in self.windows.list.iter().enumerate() {
            let table = self.table(number);
            (0..table.cuts.len()).for_each(|place| each(table.tokens(&self.source, place)));
            windows.push(window.start as usize, window.is, table.cuts.len());
        }
        self.windows = windows;
    }

    /// The segments of these numbers, in order. It asks for each window once, where [`segment`](Self::segment) does for each
    /// segment.
    ///
    /// # Panics
    /// When it comes to a number of which there is no segment.
    pub fn segments_in(
        &self,
        numbers: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = Segment<'_>> + ExactSizeIterator {
        let mut held = None;
        numbers.map(move |number| self.in_window(number, &mut held))
    }

    /// The segment `number`; `held` has the window that was asked for before.
    pub(super) fn in_window(&self, number: usize, held: &mut Option<Held>) -> Segment<'_> {
        let window = self.windows.of(number);
        let table = match held {
            Some((other, table)) if *other == window => Arc::clone(table),
            _ => {
                let table = self.table(window);
                *held = Some((window, Arc::clone(&table)));
                table
            }
        };
        let place = number - self.windows.list[window].first as usize;
        assert!(place < table.cuts.len(), "there is no segment {number}");
        Segment::new(self, number, table, place)
    }

    /// The table of the window `number`.
    fn table(&self, number: usize) -> Arc<Table> {
        self.recent.get(number, || {
            let list = &self.windows.list;
            let (window, next) = (list[number], list.get(number + 1));
            let end = next.map_or(self.source.len(), |next| next.start as usize);
            let is = (window.is, next.map_or(Is::Plain, |next| next.is));
            let mut table = Table::default();
            let filled = self.fill(number, window.start as usize..end, is, &mut table);
            debug_assert!(filled.is_ok(), "what was read once can be read again: {filled:?}");
            if let Some(most) = self.most {
                table = refine(&self.source, table, most);
            }
            table.shrink();
            table
        })
    }

    /// Adds the segments of the window `number`; `is` says what it is, and what the next is.
    fn fill(
        &self,
        number: usize,
        window: Range<usize>,
        is: (Is, Is),
        table: &mut Table,
    ) -> Result<(), Error> {
        match (self.format, &self.archive) {
            (Format::Epub, Some(book)) => book.read_page(number, &self.source, window, table)?,
            (Format::Text | Format::Epub, _) => {
                let inside = (is.0 == Is::Inside, is.1 == Is::Inside);
                text::read(&self.source, window, inside, table);
            }
            (Format::Srt, _) => srt::read(&self.source, window, table)?,
            (Format::Markdown, _) => {
                let definitions = (is.0 == Is::Referring).then_some(&self.definitions);
                markdown::read(&self.source, window, definitions, table);
            }
        }
        Ok(())
    }
}
