//! SubRip subtitles: numbered cues with timestamps. The text of a cue is a segment; tags inside it are markers.
//!
//! A cue with an invalid number or timestamps is kept unchanged, up to the next empty line.

use std::ops::Range;

use super::cues;
use super::table::Table;
use super::warning::Mistake;

/// Adds the segments of a window, and reports invalid cues to `wrong`.
pub(super) fn read(
    source: &str,
    window: Range<usize>,
    table: &mut Table,
    mut wrong: impl FnMut(Mistake),
) {
    for block in cues::blocks(source, window) {
        match text_lines(source, &block) {
            Ok(lines) => cues::add(source, lines, table),
            Err(mistake) => wrong(mistake),
        }
    }
}

/// Returns the text lines of a cue.
fn text_lines<'b>(
    source: &str,
    block: &'b [(usize, usize)],
) -> Result<&'b [(usize, usize)], Mistake> {
    let text = |(first, end): (usize, usize)| source[first..end].trim();
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    match *block {
        [times, ..] if cues::are_times(text(times)) => Ok(&block[1..]),
        [number, times, ..] if is_number(text(number)) => match cues::are_times(text(times)) {
            true => Ok(&block[2..]),
            false => {
                let right = "times, such as 00:01:02,500 --> 00:01:04,000";
                Err(cues::unexpected(times.0, text(times), right))
            }
        },
        [number] if is_number(text(number)) => {
            let problem = format!("the cue {} has no times", text(number));
            Err(Mistake { offset: number.0, problem, done: cues::KEPT })
        }
        [first, ..] => {
            Err(cues::unexpected(first.0, text(first), "the number of a cue, such as 12"))
        }
        [] => Ok(&[]),
    }
}
