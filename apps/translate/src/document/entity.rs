//! Character references, such as `&eacute;` and `&#8217;`.
//!
//! A reference to a letter or a punctuation mark is decoded for translation, and written back in the spelling of the source. Any other,
//! such as `&nbsp;`, `&lt;` or `&copy;`, is a marker and comes back byte for byte.

use std::borrow::Cow;

use quick_xml::escape::resolve_html5_entity;

/// The maximum length of a reference, in bytes.
const BYTES_MAX: usize = 34;

/// Punctuation that a translator may change.
const PUNCTUATION: &str = "'\"‘’‚‛“”„‟«»‹›‐‑–—…·¿¡";

/// Returns the length of the reference at the start of `text`, and its character if it is a letter or punctuation.
pub(super) fn at_start(text: &str) -> Option<(usize, Option<char>)> {
    let bytes = &text.as_bytes()[..text.len().min(BYTES_MAX)];
    let end = bytes.iter().position(|byte| *byte == b';')?;
    let name = text.get(1..end)?;
    let number = name.strip_prefix('#').map(|digits| match digits.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => digits.parse(),
    });
    let character = match number {
        Some(code) => char::from_u32(code.ok()?)?,
        None => {
            let mut characters = resolve_html5_entity(name)?.chars();
            let first = characters.next()?;
            if characters.next().is_some() {
                return Some((end + 1, None));
            }
            first
        }
    };
    let is_worded = character.is_alphabetic() || PUNCTUATION.contains(character);
    Some((end + 1, is_worded.then_some(character)))
}

/// Decodes the letters and punctuation of `text`.
pub(super) fn decoded(text: &str) -> Cow<'_, str> {
    let mut decoded = String::new();
    let mut from = 0;
    for (offset, length, character) in worded(text) {
        decoded.push_str(&text[from..offset]);
        decoded.push(character);
        from = offset + length;
    }
    if from == 0 {
        return Cow::Borrowed(text);
    }
    decoded.push_str(&text[from..]);
    Cow::Owned(decoded)
}

/// Encodes `text`: characters that `source` has as references get that spelling; `escape` encodes the rest.
pub(super) fn encoded(text: &str, source: &str, mut escape: impl FnMut(&str) -> String) -> String {
    let mut spellings: Vec<(char, &str)> = worded(source)
        .map(|(offset, length, character)| (character, &source[offset..offset + length]))
        .collect();
    spellings.sort_by_key(|(character, _)| *character);
    spellings.dedup_by_key(|(character, _)| *character);
    let spelling = |character: char| {
        let found = spellings.binary_search_by_key(&character, |(other, _)| *other);
        found.ok().map(|index| spellings[index].1)
    };
    let mut written = String::with_capacity(text.len() + text.len() / 8);
    let mut from = 0;
    for (offset, character) in text.char_indices() {
        if let Some(spelling) = spelling(character) {
            written.push_str(&escape(&text[from..offset]));
            written.push_str(spelling);
            from = offset + character.len_utf8();
        }
    }
    written.push_str(&escape(&text[from..]));
    written
}

/// Returns the references to letters and punctuation: position, length, character.
fn worded(text: &str) -> impl Iterator<Item = (usize, usize, char)> {
    text.match_indices('&').filter_map(|(offset, _)| {
        let (length, character) = at_start(&text[offset..])?;
        Some((offset, length, character?))
    })
}
