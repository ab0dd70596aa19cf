//! Windows: parts of the source that parse on their own, so that the memory for tables does not grow with the document.
//!
//! A window stores its start, and lazily the number of its first segment. Its table is built when one of its segments is accessed. The
//! tables of the most recent windows are cached, for access to neighbours and for concurrent workers.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::refine::refine;
use super::table::{Table, at};
use super::warning::{Lines, Mistake, Warning};
use super::{BOM, Document, Format, Segment, cues, markdown, soup, srt, text, vtt};
use crate::error::Error;

/// The size of a window in bytes, unless a paragraph, a block of Markdown or a page of a book is longer.
pub(super) const WINDOW_BYTES: usize = 64 << 10;

/// The number of cached tables. Ten consecutive chunks of the default size are in four windows.
const TABLES: usize = 8;

/// The total size of cached tables in bytes. A single table may be larger.
const TABLES_BYTES_MAX: usize = 1 << 20;

/// A window: its start, and the state of the parser there.
#[derive(Clone, Copy, Debug)]
struct Window {
    start: u32,
    kind: WindowKind,
}

/// The state that is needed to parse a window on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WindowKind {
    /// No state.
    Plain,
    /// Text: inside a block with a paragraph on each line.
    Inside,
    /// Markdown: may refer to definitions of other windows.
    Referring,
}

fn not_parsed(source: &str, start: usize, bytes: usize) -> Error {
    let line =
        |offset: usize| 1 + source.as_bytes()[..offset].iter().filter(|b| **b == b'\n').count();
    let (first, last) = (line(start), line(source.len().min(start.saturating_add(bytes))));
    Error::document(format!(
        "the Markdown parser fails between the lines {first} and {last}; rewrite unusual syntax there, or give the \
         document the extension .txt"
    ))
}

/// The windows of a document, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows {
    list: Vec<Window>,
    /// The number of the first segment of each, and the number of all segments.
    firsts: OnceLock<Vec<u32>>,
}

/// A window with its table.
type Held = (usize, Arc<Table>);

/// The tables of recent windows, the latest last.
#[derive(Debug, Default)]
pub(super) struct TableCache(Mutex<VecDeque<Held>>);

impl Clone for TableCache {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl TableCache {
    /// Returns the table of `window`. Builds it without the lock, so two threads may build the same.
    fn get(&self, window: usize, build: impl FnOnce() -> Table) -> Arc<Table> {
        let locked = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = |tables: &mut VecDeque<Held>| {
            let index = tables.iter().position(|(other, _)| *other == window)?;
            let cached = tables.remove(index)?;
            let table = Arc::clone(&cached.1);
            tables.push_back(cached);
            Some(table)
        };
        if let Some(table) = found(&mut locked()) {
            return table;
        }
        let table = Arc::new(build());
        let mut tables = locked();
        if let Some(other) = found(&mut tables) {
            return other;
        }
        tables.push_back((window, Arc::clone(&table)));
        let mut bytes: usize = tables.iter().map(|(_, table)| table.bytes()).sum();
        while TABLES < tables.len() || TABLES_BYTES_MAX < bytes && 1 < tables.len() {
            bytes -= tables.pop_front().map_or(0, |(_, table)| table.bytes());
        }
        table
    }
}

impl Document {
    /// Divides the source into windows of about `bytes` bytes.
    pub(super) fn find_windows(&mut self, bytes: usize) -> Result<(), Error> {
        let source = self.source.as_str();
        let pages: Vec<usize> =
            self.archive.iter().flat_map(super::epub::Archive::page_ends).collect();
        let mut pages = pages.into_iter();
        let (mut warnings, mut lines) = (Vec::new(), Lines::new(source));
        let mut wrong = |Mistake { offset, problem, done }: Mistake| {
            let problem = format!("line {}: {problem}", lines.at(offset));
            warnings.push(Warning::new(problem, done));
        };
        let mut start = 0;
        if self.format != Format::Epub && source.starts_with(BOM) {
            start = BOM.len();
        }
        if self.format == Format::Markdown {
            start += markdown::front_matter(&source[start..]);
        }
        let (mut list, mut table) = (Vec::new(), Table::default());
        let mut inside = false;
        while start < source.len() {
            let mut kind = if inside { WindowKind::Inside } else { WindowKind::Plain };
            table.clear();
            let end = match (self.format, &mut self.archive) {
                (Format::Epub, Some(book)) => {
                    let end = pages.next().unwrap_or(source.len());
                    book.check_page(list.len(), source, start..end, &mut self.warnings)?;
                    end
                }
                (Format::Text | Format::Epub, _) => {
                    let end;
                    (end, inside) = text::find_window(source, start, bytes, inside);
                    end
                }
                (Format::Html, _) => {
                    soup::read(source, start..source.len(), &mut table, &mut wrong);
                    source.len()
                }
                (Format::Srt, _) => {
                    let end = cues::window_end(source, start, bytes);
                    srt::read(source, start..end, &mut table, &mut wrong);
                    end
                }
                (Format::Vtt, _) => {
                    let end = cues::window_end(source, start, bytes);
                    vtt::read(source, start..end, &mut table, &mut wrong);
                    end
                }
                (Format::Markdown, _) => {
                    let definitions = &mut self.definitions;
                    // The parser panics on a few unusual texts, which must not end a worker on many documents.
                    let find = || markdown::find_window(source, start, bytes, definitions);
                    let (end, refers) = catch_unwind(AssertUnwindSafe(find))
                        .map_err(|_| not_parsed(source, start, bytes))?;
                    kind = if refers { WindowKind::Referring } else { WindowKind::Plain };
                    end
                }
            };
            list.push(Window { start: at(start), kind });
            start = end;
        }
        self.warnings.append(&mut warnings);
        list.shrink_to_fit();
        self.windows = Windows { list, firsts: OnceLock::new() };
        self.definitions.close();
        Ok(())
    }

    /// Returns the document as it was before it was cut into chunks.
    pub(crate) fn uncut(&self) -> Self {
        let list = self.windows.list.clone();
        let windows = Windows { list, firsts: OnceLock::new() };
        Self { most: None, windows, tables: TableCache::default(), ..self.clone() }
    }

    /// Splits segments of more than `most` tokens where possible, and calls `each` with the tokens of every segment, in order.
    pub(crate) fn refine(&mut self, most: u64, mut each: impl FnMut(u64)) {
        self.most = Some(most);
        self.tables = TableCache::default();
        let firsts = self.numbered(|table| {
            (0..table.cuts.len()).for_each(|index| each(table.tokens(&self.source, index)));
        });
        self.windows.firsts = OnceLock::from(firsts);
    }

    /// Computes the number of the first segment of each window, and of all segments; calls `each` with every table.
    fn numbered(&self, mut each: impl FnMut(&Table)) -> Vec<u32> {
        let mut firsts = Vec::with_capacity(self.windows.list.len() + 1);
        let mut segments = 0;
        firsts.push(0);
        for window in 0..self.windows.list.len() {
            let table = self.table(window);
            each(&table);
            segments += table.cuts.len();
            firsts.push(at(segments));
        }
        firsts
    }

    /// Returns the cached result of [`numbered`](Self::numbered).
    pub(super) fn firsts(&self) -> &[u32] {
        self.windows.firsts.get_or_init(|| self.numbered(|_| {}))
    }

    /// Returns the segments of these numbers, in order. Looks up each window once, unlike [`segment`](Self::segment).
    ///
    /// # Panics
    /// At a number without a segment.
    pub fn segments_in(
        &self,
        numbers: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = Segment<'_>> + ExactSizeIterator {
        let mut held = None;
        numbers.map(move |number| self.in_window(number, &mut held))
    }

    /// Returns the segment `number`; `held` caches the last window.
    pub(super) fn in_window(&self, number: usize, held: &mut Option<Held>) -> Segment<'_> {
        let firsts = self.firsts();
        let window = firsts.partition_point(|first| *first as usize <= number) - 1;
        assert!(window < self.windows.list.len(), "there is no segment {number}");
        let table = match held {
            Some((other, table)) if *other == window => Arc::clone(table),
            _ => {
                let table = self.table(window);
                *held = Some((window, Arc::clone(&table)));
                table
            }
        };
        Segment::new(self, number, table, number - firsts[window] as usize)
    }

    /// Returns the table of the window `number`.
    fn table(&self, number: usize) -> Arc<Table> {
        self.tables.get(number, || {
            let list = &self.windows.list;
            let (window, next) = (list[number], list.get(number + 1));
            let end = next.map_or(self.source.len(), |next| next.start as usize);
            let kinds = (window.kind, next.map_or(WindowKind::Plain, |next| next.kind));
            let mut table = Table::default();
            self.fill(number, window.start as usize..end, kinds, &mut table);
            table.shrink();
            match self.most {
                Some(most) => refine(&self.source, table, most),
                None => table,
            }
        })
    }

    /// Adds the segments of the window `number`, of the first of `kinds`; the second is that of the next window.
    fn fill(
        &self,
        number: usize,
        window: Range<usize>,
        kinds: (WindowKind, WindowKind),
        table: &mut Table,
    ) {
        match (self.format, &self.archive) {
            (Format::Epub, Some(book)) => book.read_page(number, &self.source, window, table),
            (Format::Text | Format::Epub, _) => {
                let inside = (kinds.0 == WindowKind::Inside, kinds.1 == WindowKind::Inside);
                text::read(&self.source, window, inside, table);
            }
            (Format::Html, _) => soup::read(&self.source, window, table, |_| {}),
            (Format::Srt, _) => srt::read(&self.source, window, table, |_| {}),
            (Format::Vtt, _) => vtt::read(&self.source, window, table, |_| {}),
            (Format::Markdown, _) => {
                let refers = kinds.0 == WindowKind::Referring;
                markdown::read(&self.source, window, refers, &self.definitions, table);
            }
        }
    }
}
