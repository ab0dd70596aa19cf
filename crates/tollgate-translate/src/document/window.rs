//! Windows: stretches of the source that are read alone, so that a long document takes no more memory than a short one.
//!
//! Of a window only its start and the number of its first segment are kept, and the number is found when somebody asks for
//! numbers. Its table is made when one of its segments is asked for, and made alike each time; the tables of a few windows are
//! kept, for those who ask for neighbours, and for workers that translate several chunks at once.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::refine::refine;
use super::table::{Table, at};
use super::warning::{Lines, Mistake, Warning};
use super::{BOM, Document, Format, Segment, cues, markdown, soup, srt, text, vtt};
use crate::error::Error;

/// How much source a window has, in bytes, unless a paragraph, a block of Markdown or a page of a book is longer.
pub(super) const WINDOW_BYTES: usize = 64 << 10;

/// How many tables are kept. Ten chunks of the usual size that follow each other are in four windows.
const TABLES: usize = 8;

/// How many bytes they may have together. Only the last one may have more, if its window is that long.
const TABLES_BYTES_MAX: usize = 1 << 20;

/// Where a window begins.
#[derive(Clone, Copy, Debug)]
struct Window {
    start: u32,
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

fn not_parsed(source: &str, start: usize, bytes: usize) -> Error {
    let line =
        |place: usize| 1 + source.as_bytes()[..place].iter().filter(|b| **b == b'\n').count();
    let (first, last) = (line(start), line(source.len().min(start.saturating_add(bytes))));
    Error::document(format!(
        "the parser of Markdown cannot read something between the lines {first} and {last}; write what is unusual \
         there in another way, or give the document the ending .txt"
    ))
}

/// All windows of a document, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows {
    list: Vec<Window>,
    /// The number of the first segment of each, and how many segments there are.
    firsts: OnceLock<Vec<u32>>,
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
        tables.push_back((window, Arc::clone(&table)));
        let mut bytes: usize = tables.iter().map(|(_, table)| table.bytes()).sum();
        while TABLES < tables.len() || TABLES_BYTES_MAX < bytes && 1 < tables.len() {
            bytes -= tables.pop_front().map_or(0, |(_, table)| table.bytes());
        }
        table
    }
}

impl Document {
    /// Finds the windows, each of about `bytes` bytes.
    pub(super) fn find_windows(&mut self, bytes: usize) -> Result<(), Error> {
        let source = self.source.as_str();
        let pages: Vec<usize> =
            self.archive.iter().flat_map(super::epub::Archive::page_ends).collect();
        let mut pages = pages.into_iter();
        let (mut warnings, mut lines) = (Vec::new(), Lines::new(source));
        let mut wrong = |Mistake { place, problem, done }: Mistake| {
            let problem = format!("line {}: {problem}", lines.at(place));
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
            let mut is = if inside { Is::Inside } else { Is::Plain };
            table.clear();
            let end = match (self.format, &mut self.archive) {
                (Format::Epub, Some(book)) => {
                    let end = pages.next().unwrap_or(source.len());
                    book.check_page(list.len(), source, start..end, &mut self.warnings)?;
                    end
                }
                (Format::Text | Format::Epub, _) => {
                    let end;
                    (end, inside) = text::find(source, start, bytes, inside);
                    end
                }
                (Format::Html, _) => {
                    soup::read(source, start..source.len(), &mut table, &mut wrong);
                    source.len()
                }
                (Format::Srt, _) => {
                    let end = cues::find(source, start, bytes);
                    srt::read(source, start..end, &mut table, &mut wrong);
                    end
                }
                (Format::Vtt, _) => {
                    let end = cues::find(source, start, bytes);
                    vtt::read(source, start..end, &mut table, &mut wrong);
                    end
                }
                (Format::Markdown, _) => {
                    let definitions = &mut self.definitions;
                    // Its parser panics on a few strange texts, and who works on many documents must survive one.
                    let find = || markdown::find(source, start, bytes, definitions);
                    let (end, refers) = catch_unwind(AssertUnwindSafe(find))
                        .map_err(|_| not_parsed(source, start, bytes))?;
                    is = if refers { Is::Referring } else { Is::Plain };
                    end
                }
            };
            list.push(Window { start: at(start), is });
            start = end;
        }
        self.warnings.append(&mut warnings);
        list.shrink_to_fit();
        self.windows = Windows { list, firsts: OnceLock::new() };
        self.definitions.close();
        Ok(())
    }

    /// The document as it was before chunks were made of it.
    pub(crate) fn uncut(&self) -> Self {
        let list = self.windows.list.clone();
        let windows = Windows { list, firsts: OnceLock::new() };
        Self { most: None, windows, recent: Recent::default(), ..self.clone() }
    }

    /// Cuts segments of more than `most` tokens where they can be cut, and tells the tokens of every segment, in order.
    pub(crate) fn refine(&mut self, most: u64, mut each: impl FnMut(u64)) {
        self.most = Some(most);
        self.recent = Recent::default();
        let firsts = self.numbered(|table| {
            (0..table.cuts.len()).for_each(|place| each(table.tokens(&self.source, place)));
        });
        self.windows.firsts = OnceLock::from(firsts);
    }

    /// The number of the first segment of each window, and how many segments there are; `each` sees every table.
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

    /// The same, found once.
    pub(super) fn firsts(&self) -> &[u32] {
        self.windows.firsts.get_or_init(|| self.numbered(|_| {}))
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

    /// The table of the window `number`.
    fn table(&self, number: usize) -> Arc<Table> {
        self.recent.get(number, || {
            let list = &self.windows.list;
            let (window, next) = (list[number], list.get(number + 1));
            let end = next.map_or(self.source.len(), |next| next.start as usize);
            let is = (window.is, next.map_or(Is::Plain, |next| next.is));
            let mut table = Table::default();
            self.fill(number, window.start as usize..end, is, &mut table);
            table.shrink();
            match self.most {
                Some(most) => refine(&self.source, table, most),
                None => table,
            }
        })
    }

    /// Adds the segments of the window `number`; `is` says what it is, and what the next is.
    fn fill(&self, number: usize, window: Range<usize>, is: (Is, Is), table: &mut Table) {
        match (self.format, &self.archive) {
            (Format::Epub, Some(book)) => book.read_page(number, &self.source, window, table),
            (Format::Text | Format::Epub, _) => {
                let inside = (is.0 == Is::Inside, is.1 == Is::Inside);
                text::read(&self.source, window, inside, table);
            }
            (Format::Html, _) => soup::read(&self.source, window, table, |_| {}),
            (Format::Srt, _) => srt::read(&self.source, window, table, |_| {}),
            (Format::Vtt, _) => vtt::read(&self.source, window, table, |_| {}),
            (Format::Markdown, _) => {
                let refers = is.0 == Is::Referring;
                markdown::read(&self.source, window, refers, &self.definitions, table);
            }
        }
    }
}
