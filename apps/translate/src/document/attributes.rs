//! The attributes of a tag, by position in the source.

use std::ops::Range;

/// Attributes with readable text.
const READABLE: &[&str] = &["alt", "aria-label", "placeholder", "title"];

/// Parses the attributes of the tag at `tag` of `text`: each name, and the range of its value without quotes.
pub(super) fn parse_tag(
    text: &str,
    tag: Range<usize>,
) -> impl Iterator<Item = (&str, Range<usize>)> {
    let whole = &text[..tag.end];
    let is_end = |c: char| c.is_ascii_whitespace() || matches!(c, '/' | '>' | '=');
    let until = move |from: usize, is_end: &dyn Fn(char) -> bool| {
        from + whole[from..].find(is_end).unwrap_or(whole.len() - from)
    };
    let space = move |from: usize| whole.len() - whole[from..].trim_ascii_start().len();
    let mut from = until((tag.start + 1).min(tag.end), &is_end);
    std::iter::from_fn(move || {
        loop {
            let start = until(from, &|c| !c.is_ascii_whitespace() && c != '/');
            if whole.len() <= start || whole[start..].starts_with('>') {
                return None;
            }
            // An equals sign at the start is part of the name.
            let end =
                until(start + whole[start..].chars().next().map_or(1, char::len_utf8), &is_end);
            let equals = space(end);
            if !whole[equals..].starts_with('=') {
                from = end;
                continue;
            }
            let open = space(equals + 1);
            let value = match whole[open..].chars().next() {
                Some(quote @ ('"' | '\'')) => open + 1..until(open + 1, &|c| c == quote),
                _ => open..until(open, &|c| c.is_ascii_whitespace() || c == '>'),
            };
            from = (value.end + usize::from(value.start != open)).min(whole.len());
            return Some((&text[start..end], value));
        }
    })
}

/// Returns the ranges of readable values of the tag, such as the `alt` of an image.
pub(super) fn readable_values(text: &str, tag: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    parse_tag(text, tag)
        .filter(|(name, _)| READABLE.iter().any(|readable| readable.eq_ignore_ascii_case(name)))
        .map(|(_, value)| value)
}

/// Returns the opening delimiter of the value whose text starts at `start`.
pub(super) fn delimiter(text: &str, start: usize) -> Option<char> {
    text[..start].trim_end().chars().next_back().filter(|c| "\"'(".contains(*c))
}
