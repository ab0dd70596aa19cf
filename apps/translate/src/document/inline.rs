//! Protected syntax inside running text, in every format: URLs, email addresses, placeholders, template tags, formulas, emoji names,
//! wiki links, character references, and line breaks with the space around them.
//!
//! One pass over the bytes searches for the few that can begin such a construct, and parses only there. Marker brackets of the document
//! itself are protected as well, so that a marker in an answer is always ours.

use super::entity;
use super::table::{Mark, Role};

/// The maximum length of a placeholder, in bytes.
const PLACEHOLDER_BYTES_MAX: usize = 64;

/// The maximum length of a template tag or displayed formula, in bytes.
pub(super) const TEMPLATE_BYTES_MAX: usize = 1_024;

/// The maximum length of an inline formula or wiki link, in bytes.
const SPAN_BYTES_MAX: usize = 512;

/// Bytes that may begin a construct, or, in a URL or an email address, identify it.
const TRIGGERS: [bool; 256] = {
    let mut triggers = [false; 256];
    let bytes = b"\n:@{%$w[&\xe2";
    let mut offset = 0;
    while offset < bytes.len() {
        triggers[bytes[offset] as usize] = true;
        offset += 1;
    }
    triggers
};

/// Adds the marks of `start..end` of `source`.
pub(crate) fn scan(source: &str, start: usize, end: usize, marks: &mut Vec<Mark>) {
    let bytes = source.as_bytes();
    let mut from = start;
    let mut offset = start;
    while offset < end {
        if !TRIGGERS[bytes[offset] as usize] {
            offset += 1;
            continue;
        }
        let found = if bytes[offset] == b'\n' {
            Some((line_break(&source[..end], from, offset), Role::Break))
        } else {
            found(&source[..end], from, offset).map(|range| (range, Role::Alone))
        };
        match found {
            Some(((first, last), role)) => {
                marks.push(Mark::new(first, last, role));
                from = last;
                offset = last;
            }
            None => offset += 1,
        }
    }
}

/// Returns the line break at `offset` with the space around it.
fn line_break(text: &str, from: usize, offset: usize) -> (usize, usize) {
    let first = from + text[from..offset].trim_end().len();
    (first, text.len() - text[offset..].trim_start().len())
}

/// Parses the construct at `offset` of `text`, which may begin earlier, but not before `from`.
fn found(text: &str, from: usize, offset: usize) -> Option<(usize, usize)> {
    let rest = &text[offset..];
    match rest.as_bytes()[0] {
        b':' if rest.starts_with("://") => {
            let scheme =
                back(text, from, offset, |c| c.is_ascii_alphanumeric() || "+.-".contains(c));
            let end = url_end(text, offset + 3);
            (scheme < offset && offset + 3 < end).then_some((scheme, end))
        }
        b':' => colons(text, from, offset),
        b'w' if rest.starts_with("www.")
            && !text[from..offset].ends_with(char::is_alphanumeric) =>
        {
            let end = url_end(text, offset + 4);
            (offset + 4 < end).then_some((offset, end))
        }
        b'@' => {
            let name =
                back(text, from, offset, |c| c.is_ascii_alphanumeric() || "._%+-".contains(c));
            let end = url_end(text, offset + 1);
            let host = &text[offset + 1..end];
            let is_host = host.contains('.')
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
            (name < offset && is_host).then_some((name, end))
        }
        b'{' => template(rest).or_else(|| braces(rest)).map(|length| (offset, offset + length)),
        b'[' => wiki_link(rest).map(|length| (offset, offset + length)),
        b'&' => match entity::at_start(rest)? {
            (length, None) => Some((offset, offset + length)),
            // Part of a word.
            (_, Some(_)) => None,
        },
        b'$' if rest.starts_with("${") => {
            braces(&rest[1..]).map(|length| (offset, offset + 1 + length))
        }
        b'$' => formula(text, from, offset).map(|length| (offset, offset + length)),
        b'%' if !text[from..offset].ends_with(|c: char| c.is_ascii_digit()) => {
            format_directive(rest).map(|length| (offset, offset + length))
        }
        0xe2 if rest.starts_with(['⟦', '⟧']) => Some((offset, offset + '⟦'.len_utf8())),
        _ => None,
    }
}

/// Returns the start of the characters before `offset` that match `is_part`.
fn back(text: &str, from: usize, offset: usize, is_part: impl Fn(char) -> bool) -> usize {
    from + text[from..offset].trim_end_matches(is_part).len()
}

fn url_end(text: &str, from: usize) -> usize {
    // In scripts without spaces, the rest of the sentence would belong to the URL.
    let is_part =
        |c: char| (c.is_alphanumeric() && c < '\u{2e80}') || "-._~:/?#[]@!$&'()*+,;=%".contains(c);
    let rest = &text[from..];
    let all = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
    let mut url = all.trim_end_matches(|c| ".,;:!?'*_".contains(c));
    // A closing bracket belongs to the URL only if it was opened there.
    while let Some(open) = [(")", '('), ("]", '[')]
        .iter()
        .find_map(|(close, open)| url.ends_with(close).then_some(*open))
        && !url.contains(open)
    {
        url = url[..url.len() - 1].trim_end_matches(|c| ".,;:!?'*_".contains(c));
    }
    from + url.len()
}

/// Parses three or more colons, or an emoji name, as in `:smile:`.
fn colons(text: &str, from: usize, offset: usize) -> Option<(usize, usize)> {
    let rest = &text[offset..];
    let colons = rest.bytes().take_while(|byte| *byte == b':').count();
    if 3 <= colons {
        return Some((offset, offset + colons));
    }
    if text[from..offset].ends_with(|c: char| c.is_alphanumeric() || c == ':') {
        return None;
    }
    let is_part =
        |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_+-".contains(byte);
    let window = &rest.as_bytes()[1..rest.len().min(PLACEHOLDER_BYTES_MAX)];
    let length = window.iter().position(|byte| !is_part(byte))?;
    let name = &rest[1..=length];
    let is_name =
        name.contains(|c: char| c.is_ascii_lowercase()) || matches!(name, "+1" | "-1" | "100");
    let end = length + 2;
    let ends = !rest.get(end..)?.starts_with(|c: char| c.is_alphanumeric() || c == ':');
    (is_name && window[length] == b':' && ends).then_some((offset, offset + end))
}

/// Returns the length of `{{ name }}`, `{% tag %}` or `{# remark #}` at the start of `text`, without empty lines.
pub(super) fn template(text: &str) -> Option<usize> {
    let close = match text.as_bytes() {
        [b'{', b'{', ..] => "}}",
        [b'{', b'%', ..] => "%}",
        [b'{', b'#', b' ', ..] => "#}",
        _ => return None,
    };
    enclosed(text, close, TEMPLATE_BYTES_MAX)
}

/// Returns the length of the displayed formula `$$…$$` at the start of `text`, without empty lines.
pub(super) fn display(text: &str) -> Option<usize> {
    if !text.starts_with("$$") {
        return None;
    }
    let length = enclosed(text, "$$", TEMPLATE_BYTES_MAX)?;
    let inner = &text[2..length - 2];
    (!inner.trim().is_empty()).then_some(length)
}

/// Returns the length of a construct of two opening bytes that ends with `close`.
fn enclosed(text: &str, close: &str, most: usize) -> Option<usize> {
    let window = &text.as_bytes()[2..text.len().min(most)];
    let length = window.windows(2).position(|part| part == close.as_bytes())?;
    let is_empty = |line: &str| line.trim_matches([' ', '\t', '>']).is_empty();
    let inner = text[2..2 + length].replace("\r\n", "\n");
    let mut between: Vec<&str> = inner.split(['\n', '\r']).skip(1).collect();
    between.pop();
    (!between.into_iter().any(is_empty)).then_some(length + 4)
}

/// Returns the length of the formula at `offset` of `text`.
fn formula(text: &str, from: usize, offset: usize) -> Option<usize> {
    let (before, rest) = (&text[from..offset], &text[offset..]);
    if before.ends_with(['\\', '$']) {
        return None;
    }
    if rest.starts_with("$$") {
        return display(rest);
    }
    if before.ends_with(char::is_alphanumeric) {
        return None;
    }
    let window = &rest.as_bytes()[1..rest.len().min(SPAN_BYTES_MAX)];
    let length = window.iter().position(|byte| matches!(byte, b'$' | b'\n'))?;
    let ends = !rest.get(length + 2..)?.starts_with(|c: char| c.is_alphanumeric());
    (window[length] == b'$' && ends && is_formula(&rest[1..=length])).then_some(length + 2)
}

/// Returns whether `$inner$` is a formula, and not text between two amounts of money.
pub(super) fn is_formula(inner: &str) -> bool {
    let is_tight = !inner.starts_with(char::is_whitespace) && !inner.ends_with(char::is_whitespace);
    let is_symbol = |c: char| "\\^_=+<>{}|".contains(c);
    let has_word =
        || inner.split(|c: char| !c.is_alphabetic()).any(|word| 1 < word.chars().count());
    let has_letter = inner.contains(char::is_alphabetic);
    let is_product = has_letter && !inner.contains(char::is_whitespace);
    is_tight
        && !inner.is_empty()
        && (inner.contains(is_symbol) || is_product || has_letter && !has_word())
}

/// Returns the length of `[[Page]]` or `[[Page|words]]` at the start of `text`.
fn wiki_link(text: &str) -> Option<usize> {
    let inner = text.strip_prefix("[[")?;
    let window = &inner.as_bytes()[..inner.len().min(SPAN_BYTES_MAX)];
    let length = window.iter().position(|byte| matches!(byte, b'[' | b']' | b'\n'))?;
    (0 < length && inner[length..].starts_with("]]")).then_some(length + 4)
}

/// Returns the length of `{name}`, `{}`, `{\an8}` or `{{ name }}` at the start of `text`.
fn braces(text: &str) -> Option<usize> {
    let double = text.starts_with("{{");
    let close = if double { "}}" } else { "}" };
    let window = text.as_bytes();
    let window = &window[..window.len().min(PLACEHOLDER_BYTES_MAX)];
    let length = window.windows(close.len()).position(|part| part == close.as_bytes())?;
    let name = &window[close.len().min(length)..length];
    let is_name = |byte: &u8| !byte.is_ascii_control() && (double || *byte != b' ');
    name.iter().all(is_name).then_some(length + close.len())
}

/// Returns the length of `%s`, `%1$d`, `%(name)s`, `%.2f` or `%@` at the start of `text`.
fn format_directive(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut offset = 1;
    if bytes.get(offset) == Some(&b'(') {
        let window = &bytes[..bytes.len().min(PLACEHOLDER_BYTES_MAX)];
        offset = window.iter().position(|byte| *byte == b')')? + 1;
    }
    while bytes.get(offset).is_some_and(|byte| byte.is_ascii_digit() || b"$-+#.".contains(byte)) {
        offset += 1;
    }
    let ends = bytes.get(offset + 1).is_none_or(|byte| !byte.is_ascii_alphanumeric());
    (bytes.get(offset).is_some_and(|byte| b"sdiufxXcgeE@".contains(byte)) && ends)
        .then_some(offset + 1)
}
