//! An error in a configuration file, shown with the line that it is about.

use std::fmt;
use std::ops::Range;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// The most characters of a line that are shown.
const LINE_CHARS_MAX: usize = 160;

/// An error in a file, and its position.
///
/// ```text
/// tollgate.toml:14: limit "rpm": rolling-window needs window, as in window = "1m"
///    |
/// 14 |   { name = "rpm", unit = "requests", rule = "rolling-window", limit = 5 },
///    |   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    file: String,
    message: String,
    excerpt: Option<Excerpt>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Excerpt {
    number: usize,
    text: String,
    /// The bytes of `text` that are underlined.
    marked: Range<usize>,
}

impl Diagnostic {
    /// Returns an error about the bytes `span` of `source`, the contents of `file`.
    pub(crate) fn at(
        file: &str,
        source: &str,
        span: Range<usize>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            file: file.to_owned(),
            message: message.into(),
            excerpt: Some(Excerpt::at(source, span)),
        }
    }

    /// Returns an error about the file as a whole.
    pub(crate) fn whole(file: &str, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), message: message.into(), excerpt: None }
    }

    /// Returns what is wrong and what would be right, without the position.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl Excerpt {
    fn at(source: &str, span: Range<usize>) -> Self {
        // An error at the end of the file, behind the last line break, belongs to the last line.
        let end = source.trim_end().len();
        let start = source.floor_char_boundary(span.start.min(end));
        let before = &source[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line_end = source[start..].find('\n').map_or(source.len(), |at| start + at);
        let text = source[line_start..line_end].trim_end();
        let text: String = text.chars().take(LINE_CHARS_MAX).collect();
        // An error may also be in trailing spaces or beyond the cut, which are not shown.
        let shown = |at: usize| text.floor_char_boundary(at.saturating_sub(line_start));
        let marked = shown(start)..shown(span.end.max(start));
        Self { number: before.matches('\n').count() + 1, text, marked }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(excerpt) = &self.excerpt else {
            return write!(f, "{}: {}", self.file, self.message);
        };
        let number = excerpt.number.to_string();
        let gutter = " ".repeat(number.len());
        // The width of a tab depends on the terminal, so the marks follow the same tabs.
        let mut indent = String::new();
        for c in excerpt.text[..excerpt.marked.start].chars() {
            indent += &if c == '\t' { "\t".to_owned() } else { " ".repeat(c.width().unwrap_or(1)) };
        }
        let marks = "^".repeat(excerpt.text[excerpt.marked.clone()].width().max(1));
        writeln!(f, "{}:{number}: {}", self.file, self.message)?;
        writeln!(f, "{gutter} |")?;
        writeln!(f, "{number} | {}", excerpt.text)?;
        write!(f, "{gutter} | {indent}{marks}")
    }
}

impl std::error::Error for Diagnostic {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_shown_and_marked() {
        let source = "a = 1\n\tb = \"ü\" # x\nc = 3\n";
        let span = source.find("\"ü\"").unwrap();
        let diagnostic = Diagnostic::at("f.toml", source, span..span + 4, "wrong");
        assert_eq!(
            diagnostic.to_string(),
            "f.toml:2: wrong\n  |\n2 | \tb = \"ü\" # x\n  | \t    ^^^"
        );
    }

    #[test]
    fn marks_are_as_wide_as_the_terminal_shows_the_text() {
        let source = "\"翻訳\" = \"訳\"\n";
        let span = source.find("\"訳\"").unwrap();
        let diagnostic = Diagnostic::at("f.toml", source, span..span + 5, "wrong").to_string();
        assert!(diagnostic.ends_with("\n  |          ^^^^"), "{diagnostic}");
    }

    /// A span of several lines is marked on its first; one behind the end, or within a letter, is not a crash.
    #[test]
    fn odd_spans_are_marked_somewhere_sensible() {
        let source = "a = [\n  1,\n]\n";
        let diagnostic = Diagnostic::at("f.toml", source, 4..12, "wrong").to_string();
        assert!(diagnostic.ends_with("1 | a = [\n  |     ^"), "{diagnostic}");
        for span in [13..13, 13..14, 500..900] {
            let diagnostic = Diagnostic::at("f.toml", source, span, "wrong").to_string();
            assert!(diagnostic.starts_with("f.toml:3: wrong"), "{diagnostic}");
        }
        let diagnostic = Diagnostic::at("f.toml", "a  \t\nb = 1\n", 3..4, "wrong").to_string();
        assert!(diagnostic.ends_with("1 | a\n  |  ^"), "{diagnostic}");
        Diagnostic::at("f.toml", "ü", 1..1, "wrong");
        Diagnostic::at("f.toml", "", 0..0, "wrong");
    }
}
