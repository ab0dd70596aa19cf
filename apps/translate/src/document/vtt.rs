//! WebVTT subtitles. The text of a cue is a segment; names, timestamps, notes, styles, regions and invalid blocks are kept unchanged.

use std::ops::Range;

use super::BOM;
use super::cues;
use super::table::Table;
use super::warning::Mistake;

/// The signature of a file.
const SIGNATURE: &str = "WEBVTT";

/// Adds the segments of a window, and reports invalid blocks to `wrong`.
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
            wrong(Mistake { done, ..cues::unexpected(block[0].0, text(block[0]), SIGNATURE) });
        }
        if ["NOTE", "STYLE", "REGION"].into_iter().any(is_named) {
            continue;
        }
        match block.as_slice() {
            [times, lines @ ..] | [_, times, lines @ ..] if cues::are_times(text(*times)) => {
                cues::add(source, lines, table);
            }
            all => {
                let place = all[0];
                let right = "times, such as 01:02.500 --> 01:04.000";
                wrong(cues::unexpected(place.0, text(place), right));
            }
        }
    }
}
