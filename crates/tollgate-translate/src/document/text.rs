//! Plain text: paragraphs with empty lines between them.
//!
//! Some texts have a paragraph on each line and no empty lines. A block with a line that nobody would have wrapped by hand
//! is taken that way.

use super::table::{Kind, Table};

/// A line longer than this, in bytes, was not broken by hand.
const WRAPPED_BYTES_MAX: usize = 200;

pub(super) fn read(source: &str, start: usize) -> Table {
    let mut table = Table::default();
    let mut block: Vec<(usize, usize)> = Vec::new();
    for line in lines(source, start) {
        if source[line.0..line.1].trim().is_empty() {
            add(&mut table, source, &block);
            block.clear();
        } else {
            block.push(line);
        }
    }
    add(&mut table, source, &block);
    table.shrink();
    table
}

/// Where each line begins and ends, without its line break.
pub(super) fn lines(source: &str, start: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut from = start;
    source[start..].split_inclusive('\n').map(move |line| {
        let first = from;
        from += line.len();
        (first, first + line.trim_end_matches(['\n', '\r']).len())
    })
}

fn add(table: &mut Table, source: &str, block: &[(usize, usize)]) {
    if block.iter().any(|(start, end)| WRAPPED_BYTES_MAX < end - start) {
        for line in block {
            table.add(source, *line, &[], Kind::Paragraph);
        }
    } else if let (Some((start, _)), Some((_, end))) = (block.first(), block.last()) {
        table.add(source, (*start, *end), &[], Kind::Paragraph);
    }
}
