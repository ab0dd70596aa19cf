//! Subtitles in WebVTT form. The lines of a cue are a segment; its name, its times, notes, styles and regions are kept.
//!
//! A block that is nothing of that is kept as it is.

use std::ops::Range;

use super::BOM;
use super::cues;
use super::table::Table;
use super::warning::Mistake;

/// What a file begins with.
const SIGNATURE: &str = "WEBVTT";

/// Adds the segments of a window, and tells of the blocks that are kept as they are.
pub(super) fn read(
    source: &str,
    window: Range<usize>,
    table: &mut Table,
    mut wrong: impl FnMut(Mistake),
) {
    let mut is_head = source[..window.start].trim_start_matches(BOM).trim_start().is_empty();
    for block in cues::blocks(source, window) {
        let text = |(first, end): (usize, usize)| source[first..end].trim();
        let is_named = |name: &str| {
            let rest = text(block[0]).strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
        };
        let begins = std::mem::take(&mut is_head);
        if begins && is_named(SIGNATURE) {
            continue;
        } else if begins {
            let done = "the file is read without";
            wrong(Mistake { done, ..cues::misplaced(block[0].0, text(block[0]), SIGNATURE) });
        }
        if ["NOTE", "STYLE", "REGION"].into_iter().any(is_named) {
            continue;
        }
        match block.as_slice() {
            [times, lines @ ..] if cues::are_times(text(*times)) => {
                cues::add(source, lines, table);
            }
            [_, times, lines @ ..] if cues::are_times(text(*times)) => {
                cues::add(source, lines, table);
            }
            all => {
                let place = all[0];
                let right = "times, such as 01:02.500 --> 01:04.000,";
                wrong(cues::misplaced(place.0, text(place), right));
            }
        }
    }
}
