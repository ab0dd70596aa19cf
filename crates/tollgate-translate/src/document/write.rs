//! Writing a document: the source with other text in its segments.
//!
//! A text that is the segment's own is copied from the source. Any other is written so that it cannot be taken for structure:
//! its line breaks become those of the source with their indentation, and characters that mean something in the format are
//! escaped. Markers must all be there, once; a missing one would be lost markup, so it is an error and not a guess.

use std::borrow::Cow;

use quick_xml::escape::partial_escape;
use serde::{Deserialize, Serialize};

use super::patches::Patches;
use super::table::{Kind, Mark, Role};
use super::xhtml::Page;
use super::{Document, Format, Segment, attributes, entity, labels};
use crate::error::Error;
use crate::language::Language;
use crate::marker;

/// What stands in the written document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// The translation in place of the source.
    #[default]
    Translation,
    /// The source, and the translation behind it, paragraph by paragraph.
    Bilingual,
}

/// What is written for one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling<'a> {
    /// This text, with the markers of the segment.
    Text(&'a str),
    /// The source as it is.
    Source,
    /// The source with a visible mark that it was not translated.
    Failed,
}

/// Stands before the source of a segment that could not be translated.
pub const FAILED_MARK: &str = "[NOT TRANSLATED] ";

impl Document {
    /// The document with `fill` in its segments.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a text does not have each marker of its segment once.
    pub fn write<'a>(
        &self,
        layout: Layout,
        fill: impl Fn(usize) -> Filling<'a>,
    ) -> Result<Vec<u8>, Error> {
        self.write_as(None, layout, fill)
    }

    /// The same, as a document in `language`: a page of HTML, a book and its pages say so of themselves, unless they have both
    /// languages.
    ///
    /// # Errors
    /// As of [`write`](Self::write).
    pub fn write_in<'a>(
        &self,
        language: &Language,
        layout: Layout,
        fill: impl Fn(usize) -> Filling<'a>,
    ) -> Result<Vec<u8>, Error> {
        self.write_as(Some(language).filter(|_| layout == Layout::Translation), layout, fill)
    }

    fn write_as<'a>(
        &self,
        language: Option<&Language>,
        layout: Layout,
        fill: impl Fn(usize) -> Filling<'a>,
    ) -> Result<Vec<u8>, Error> {
        let mut pages = self.archive.iter().flat_map(super::epub::Archive::page_ends).peekable();
        let mut ends = Vec::new();
        let mut written = String::with_capacity(self.source.len() + self.source.len() / 8);
        let mut from = 0;
        let mut beside = String::new();
        let mut paragraph = None;
        let mut patches = Patches::default();
        for segment in self.segments() {
            let cut = segment.cut();
            let (start, end) = (cut.start as usize, cut.end as usize);
            if cut.kind == Kind::Attribute {
                patches.put(start..end, segment.attribute(layout, fill(segment.number()))?);
                continue;
            }
            while let Some(page) = pages.next_if(|page| *page <= start) {
                written.push_str(&patches.applied(&self.source, from..page));
                from = page;
                ends.push(written.len());
            }
            written.push_str(&patches.applied(&self.source, from..start));
            from = end;
            let own = || patches.applied(&self.source, start..end);
            match (layout, fill(segment.number())) {
                (_, Filling::Source) => written.push_str(&own()),
                (_, Filling::Failed) => {
                    written.push_str(FAILED_MARK);
                    written.push_str(&own());
                }
                (Layout::Translation, Filling::Text(text)) => {
                    written.push_str(&segment.rendered(text, &patches)?);
                }
                (Layout::Bilingual, Filling::Text(text)) => {
                    written.push_str(&own());
                    beside.push_str(if beside.is_empty() { "" } else { " " });
                    beside.push_str(&segment.rendered(text, &patches)?);
                }
            }
            let first = *paragraph.get_or_insert(start);
            if !cut.continues {
                if !beside.is_empty() {
                    written.push_str(&self.joint(first, cut.kind));
                    written.push_str(&std::mem::take(&mut beside));
                }
                paragraph = None;
            }
        }
        for page in pages {
            written.push_str(&patches.applied(&self.source, from..page));
            from = page;
            ends.push(written.len());
        }
        written.push_str(&patches.applied(&self.source, from..self.source.len()));
        match (&self.archive, language) {
            (Some(archive), _) => archive.write(&self.source, &written, &ends, language),
            (None, Some(language)) if self.format == Format::Html => {
                Ok(labels::in_language(written.into(), Page::Soup, language).into_owned().into())
            }
            (None, _) => Ok(written.into_bytes()),
        }
    }

    /// What stands between the source of a segment and its translation.
    fn joint(&self, start: usize, kind: Kind) -> Cow<'static, str> {
        let line = self.source[..start].rfind('\n').map_or(0, |place| place + 1);
        let newline = if self.source[..line].ends_with("\r\n") { "\r\n" } else { "\n" };
        match (self.format, kind) {
            (_, Kind::Line | Kind::Attribute) => " / ".into(),
            (Format::Epub, Kind::Paragraph) => "<br/>".into(),
            (Format::Html, Kind::Paragraph) => "<br>".into(),
            (Format::Srt | Format::Vtt, Kind::Paragraph) => newline.into(),
            (Format::Text | Format::Markdown, Kind::Paragraph) => {
                // A quote goes on with its sign, a list item with as much space as its bullet takes.
                let prefix = self.source[line..start].trim_start_matches('\u{feff}').chars();
                let prefix: String =
                    prefix.map(|c| if c == '>' || c == '\t' { c } else { ' ' }).collect();
                let empty = prefix.trim_end();
                format!("{newline}{empty}{newline}{prefix}").into()
            }
        }
    }
}

impl Segment<'_> {
    /// An attribute as it stands in the document.
    fn attribute(&self, layout: Layout, filling: Filling<'_>) -> Result<String, Error> {
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

    /// `text` as it stands in the document in place of the source; `patches` has the attributes inside its markers.
    fn rendered(&self, text: &str, patches: &Patches) -> Result<Cow<'_, str>, Error> {
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
        // Where the words of each link begin that is open: by its pair, in the source and in what is written.
        let mut open: Vec<(u32, usize, usize)> = Vec::new();
        let mut written = String::with_capacity(text.len() + text.len() / 8);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        for (place, line) in lines.enumerate() {
            match (place, breaks.get(place.saturating_sub(1)).or(breaks.last())) {
                (0, _) => {}
                (_, Some(mark)) => written.push_str(&source(mark)),
                (_, None) => written.push(' '),
            }
            let begins_line = place == 0 || !breaks.is_empty();
            let of_source = own.lines().nth(place).unwrap_or_default();
            let mut guard =
                block_start(line).filter(|_| begins_line && !begin_alike(line, of_source));
            for part in marker::parts(line) {
                match part {
                    marker::Part::Text(text) => {
                        written.push_str(&self.escaped(text, &own, guard));
                    }
                    marker::Part::Marker(number) => {
                        let place = number.wrapping_sub(1);
                        let Some(mark) = shown.get(place).filter(|_| !used[place]) else {
                            return Err(self.wrong_marker(number));
                        };
                        used[place] = true;
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
            Some(place) => Err(self.wrong_marker(place + 1)),
            None => Ok(Cow::Owned(written)),
        }
    }

    fn wrong_marker(&self, number: usize) -> Error {
        Error::invalid(format!(
            "segment {}: ⟦{number}⟧ is not there exactly once; verify a translation before it is written",
            self.number()
        ))
    }

    /// `text` so that it means itself, with a backslash at `guard` where there are backslashes.
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
                entity::respelled(text, self.source(), escape).into()
            }
            Format::Markdown => {
                let mut guard = guard;
                let escape = |text: &str| match (kind, delimiter()) {
                    (Kind::Attribute, Some('(')) => escape(text, "()"),
                    (Kind::Attribute, Some('\'')) => escape(text, "'"),
                    (Kind::Attribute, _) => escape(text, "\""),
                    _ => escape_markdown(text, own, guard.take().filter(|at| *at <= text.len())),
                };
                entity::respelled(text, self.source(), escape).into()
            }
        }
    }
}

/// `text` with a backslash before each of `special` that has none.
fn escape(text: &str, special: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 8);
    let mut before = ' ';
    for c in text.chars() {
        if special.contains(c) && before != '\\' {
            escaped.push('\\');
        }
        escaped.push(c);
        before = c;
    }
    escaped
}

/// Characters that can begin markup get a backslash, unless the source has them in its text as well: then they were harmless
/// there, or escaped, and the translation follows it.
fn escape_markdown(text: &str, own: &str, guard: Option<usize>) -> String {
    let mut written = text.to_owned();
    if let Some(place) = guard {
        written.insert(place, '\\');
    }
    let special = ['*', '_', '`', '[', ']', '<', '|', '~'];
    if !written.contains(special) {
        return written;
    }
    let mut escaped = String::with_capacity(written.len() + 8);
    let mut before = ' ';
    for c in written.chars() {
        if special.contains(&c) && before != '\\' && !own.contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
        before = c;
    }
    escaped
}

/// Whether `line` begins like a line of the source, where it was harmless.
fn begin_alike(line: &str, of_source: &str) -> bool {
    block_start(of_source).is_some() && line.chars().next() == of_source.chars().next()
}

/// Where a backslash keeps the line `text` from being a heading, a quote, a list item or a rule.
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
