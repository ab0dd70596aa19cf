//! The markers of a segment: each exactly once, with properly nested pairs.

use super::{Fault, MarkerFault};
use crate::document::Segment;
use crate::marker::{self, Part};

/// Checks the markers of `text`, the translation of `segment`, number `index` of its chunk.
pub(super) fn check(index: usize, segment: &Segment<'_>, text: &str) -> Result<(), Fault> {
    let markers = segment.markers();
    let fault =
        |marker: usize, what: MarkerFault| Err(Fault::Marker { segment: index, marker, what });
    let mut seen = vec![false; markers.len()];
    let mut open: Vec<usize> = Vec::new();
    for part in marker::parts(text) {
        let number = match part {
            Part::Text(text) if text.contains(['⟦', '⟧']) => {
                return fault(0, MarkerFault::Damaged);
            }
            Part::Text(_) => continue,
            Part::Marker(number) => number,
        };
        match seen.get_mut(number.wrapping_sub(1)) {
            None => return fault(number, MarkerFault::Invented),
            Some(true) => return fault(number, MarkerFault::Doubled),
            Some(seen) => *seen = true,
        }
        if let Some(close) = markers[number - 1].closed_by {
            open.push(close);
        } else if markers.iter().any(|marker| marker.closed_by == Some(number))
            && open.pop() != Some(number)
        {
            return fault(number, MarkerFault::Crossed);
        }
    }
    match seen.iter().position(|seen| !seen) {
        Some(lost) => fault(lost + 1, MarkerFault::Lost),
        None => Ok(()),
    }
}

/// Returns `text` without its markers.
pub(super) fn without(text: &str) -> String {
    let texts = marker::parts(text).map(|part| match part {
        Part::Text(text) => text,
        Part::Marker(_) => "",
    });
    texts.collect()
}
