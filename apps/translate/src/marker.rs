//! The two markers of prompts and answers: ⟦3⟧ for protected content, ⟦#3⟧ for the start of a segment.
//!
//! Such brackets of the document itself are protected as well, so a marker is always ours.

/// A piece of text with markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    /// Text.
    Text(&'a str),
    /// The number of a marker.
    Marker(usize),
}

/// Splits `text` at its markers.
pub(crate) fn parts(text: &str) -> impl Iterator<Item = Part<'_>> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let sign = next(rest, "⟦");
        if let Some((0, number, length)) = sign {
            rest = &rest[length..];
            return Some(Part::Marker(number));
        }
        let (text, after) = rest.split_at(sign.map_or(rest.len(), |(offset, ..)| offset));
        rest = after;
        Some(Part::Text(text))
    })
}

/// Returns the segments of a prompt or an answer: the number of each start marker, and the text up to the next one. Ignores text
/// before the first.
pub fn numbered(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut rest = text;
    let mut open: Option<usize> = None;
    loop {
        let head = next(rest, "⟦#");
        let end = head.map_or(rest.len(), |(offset, ..)| offset);
        if let Some(number) = open {
            found.push((number, rest[..end].trim()));
        }
        let Some((offset, number, length)) = head else { return found };
        open = Some(number);
        rest = &rest[offset + length..];
    }
}

/// Finds the next marker that begins with `opening`: position, number and length.
fn next(text: &str, opening: &str) -> Option<(usize, usize, usize)> {
    text.match_indices(opening).find_map(|(offset, _)| {
        let inner = &text[offset + opening.len()..];
        let digits = inner.bytes().take_while(u8::is_ascii_digit).count();
        let number = inner[..digits].parse().ok()?;
        let length = opening.len() + digits + '⟧'.len_utf8();
        inner[digits..].starts_with('⟧').then_some((offset, number, length))
    })
}
