//! Rendering of translated segments: markers become markup again, and text is escaped.

use std::borrow::Cow;

use quick_xml::escape::partial_escape;

use super::patches::Patches;
use super::table::{Kind, Mark, Role};
use super::write::{FAILED_MARK, Filling, Layout};
use super::{Format, Segment, attributes, entity};
use crate::error::Error;
use crate::marker;

impl Segment<'_> {
    /// Renders an attribute.
    pub(super) fn attribute(&self, layout: Layout, filling: Filling<'_>) -> Result<String, Error> {
        let (source, none) = (self.source(), Patches::default());
        let written = match filling {
            Filling::Source => source.to_owned(),
            Filling::Failed => format!("{FAILED_MARK}{source}"),
            Filling::Text(text) if layout == Layout::Translation => {
                self.rendered(text, &none)?.into_owned()
            }
            Filling::Text(text) => format!("{source} / {}", self.rendered(text, &none)?),
        };
        let is_bare = written != source
            && matches!(self.document.format, Format::Html | Format::Epub)
            && attributes::delimiter(&self.document.source, self.cut().start as usize).is_none();
        Ok(if is_bare { format!("\"{written}\"") } else { written })
    }

    /// Renders `text` in place of the source; `patches` has the attributes inside its markers.
    pub(super) fn rendered(&self, text: &str, patches: &Patches) -> Result<Cow<'_, str>, Error> {
        let own = self.text();
        let place = |mark: &Mark| mark.start as usize..mark.end as usize;
        if text == own {
            let cut = self.cut();
            let range = cut.start as usize..cut.end as usize;
            return Ok(patches.applied(&self.document.source, range));
        }
        let shown: Vec<&Mark> = self.shown().collect();
        let breaks: Vec<&Mark> =
            self.marks().iter().filter(|mark| mark.role == Role::Break).collect();
        let source = |mark: &Mark| patches.applied(&self.document.source, place(mark));
        let mut used = vec![false; shown.len()];
        // The starts of open links: pair, position in the source, position in the output.
        let mut open: Vec<(u32, usize, usize)> = Vec::new();
        let mut written = String::with_capacity(text.len() + text.len() / 8);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        for (index, line) in lines.enumerate() {
            match (index, breaks.get(index.saturating_sub(1)).or(breaks.last())) {
                (0, _) => {}
                (_, Some(mark)) => written.push_str(&source(mark)),
                (_, None) => written.push(' '),
            }
            let begins_line = index == 0 || !breaks.is_empty();
            let of_source = own.lines().nth(index).unwrap_or_default();
            let mut guard =
                block_start(line).filter(|_| begins_line && !begin_alike(line, of_source));
            for part in marker::parts(line) {
                match part {
                    marker::Part::Text(text) => {
                        written.push_str(&self.escaped(text, &own, guard));
                    }
                    marker::Part::Marker(number) => {
                        let index = number.wrapping_sub(1);
                        let Some(mark) = shown.get(index).filter(|_| !used[index]) else {
                            return Err(self.wrong_marker(number));
                        };
                        used[index] = true;
                        let begun = open.iter().find(|(pair, ..)| *pair == mark.pair);
                        match (mark.role, begun) {
                            (Role::CloseNamed, Some((_, first, from))) => {
                                let name = &self.document.source[*first..mark.start as usize];
                                let is_same = written[*from..] == *name;
                                let named = format!("][{name}]");
                                written.push_str(&if is_same {
                                    source(mark)
                                } else {
                                    named.into()
                                });
                            }
                            _ => written.push_str(&source(mark)),
                        }
                        if mark.role == Role::Open {
                            open.push((mark.pair, mark.end as usize, written.len()));
                        }
                    }
                }
                guard = None;
            }
        }
        match used.iter().position(|used| !used) {
            Some(index) => Err(self.wrong_marker(index + 1)),
            None => Ok(Cow::Owned(written)),
        }
    }

    fn wrong_marker(&self, number: usize) -> Error {
        Error::invalid(format!(
            "segment {}: ⟦{number}⟧ is not there exactly once; verify a translation before it is written",
            self.number()
        ))
    }

    /// Escapes `text`, with a backslash at `guard` in Markdown.
    fn escaped<'t>(&self, text: &'t str, own: &str, guard: Option<usize>) -> Cow<'t, str> {
        let kind = self.cut().kind;
        let delimiter = || attributes::delimiter(&self.document.source, self.cut().start as usize);
        match self.document.format {
            Format::Text => text.into(),
            Format::Srt if text.contains("-->") => text.replace("-->", "→").into(),
            Format::Srt => text.into(),
            Format::Epub | Format::Html | Format::Vtt => {
                let escape = |text: &str| match (kind, delimiter()) {
                    (Kind::Attribute, Some('\'')) => partial_escape(text).replace('\'', "&#39;"),
                    (Kind::Attribute, _) => partial_escape(text).replace('"', "&quot;"),
                    _ => partial_escape(text).into_owned(),
                };
                entity::encoded(text, self.source(), escape).into()
            }
            Format::Markdown => {
                let mut guard = guard;
                let escape = |text: &str| match (kind, delimiter()) {
                    (Kind::Attribute, Some('(')) => escape(text, |c| "()".contains(c)),
                    (Kind::Attribute, Some('\'')) => escape(text, |c| c == '\''),
                    (Kind::Attribute, _) => escape(text, |c| c == '"'),
                    _ => escape_markdown(text, own, guard.take().filter(|at| *at <= text.len())),
                };
                entity::encoded(text, self.source(), escape).into()
            }
        }
    }
}

/// Escapes each of `special` in `text` that has no backslash.
fn escape(text: &str, is_special: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len() + 8);
    let mut before = ' ';
    for c in text.chars() {
        if is_special(c) && before != '\\' {
            escaped.push('\\');
        }
        escaped.push(c);
        before = c;
    }
    escaped
}

/// Escapes characters that can begin markup, unless the text of the source has them as well, harmless or escaped.
fn escape_markdown(text: &str, own: &str, guard: Option<usize>) -> String {
    let mut written = text.to_owned();
    if let Some(offset) = guard {
        written.insert(offset, '\\');
    }
    escape(&written, |c| "*_`[]<|~".contains(c) && !own.contains(c))
}

/// Returns whether `line` begins like a line of the source, where it was harmless.
fn begin_alike(line: &str, of_source: &str) -> bool {
    block_start(of_source).is_some() && line.chars().next() == of_source.chars().next()
}

/// Returns the position of the backslash that keeps `text` from becoming a heading, a quote, a list item or a rule.
fn block_start(text: &str) -> Option<usize> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let rest = &text[digits..];
    if 0 < digits {
        return rest.starts_with(['.', ')']).then_some(digits);
    }
    let mut chars = text.chars();
    match (chars.next()?, chars.next()) {
        ('#' | '>' | '=' | '~' | '`' | '|', _) => Some(0),
        ('-' | '+' | '*' | '_', None | Some(' ' | '\t' | '-' | '*' | '_')) => Some(0),
        (':', Some(' ' | '-')) => Some(0),
        (':', _) if text.starts_with(":::") => Some(0),
        ('!' | '?', _) if text.starts_with("!!! ") || text.starts_with("???") => Some(0),
        _ => None,
    }
}
