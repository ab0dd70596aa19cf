//! The two signs between a prompt and its answer: ⟦3⟧ for what is kept out of reach, ⟦#3⟧ for the head of a segment.
//!
//! A document's own brackets of this kind are protected when it is read, so both are always ours.

/// A piece of text with markers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    /// Text.
    Text(&'a str),
    /// A marker, by its number.
    Marker(usize),
}

/// The markers in `text`, and what lies between them.
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
        let (text, after) = rest.split_at(sign.map_or(rest.len(), |(place, ..)| place));
        rest = after;
        Some(Part::Text(text))
    })
}

/// The segments that a prompt or an answer has: the number of each head, and the text behind it up to the next one. What
/// stands before the first head belongs to none.
pub fn numbered(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut rest = text;
    let mut open: Option<usize> = None;
    loop {
        let head = next(rest, "⟦#");
        let end = head.map_or(rest.len(), |(place, ..)| place);
        if let Some(number) = open {
            found.push((number, rest[..end].trim()));
        }
        let Some((place, number, length)) = head else { return found };
        open = Some(number);
        rest = &rest[place + length..];
    }
}

/// Where the next sign that begins with `opening` is, its number and its length.
fn next(text: &str, opening: &str) -> Option<(usize, usize, usize)> {
    text.match_indices(opening).find_map(|(place, _)| {
        let inner = &text[place + opening.len()..];
        let digits = inner.bytes().take_while(u8::is_ascii_digit).count();
        let number = inner[..digits].parse().ok()?;
        let length = opening.len() + digits + '⟧'.len_utf8();
        inner[digits..].starts_with('⟧').then_some((place, number, length))
    })
}
