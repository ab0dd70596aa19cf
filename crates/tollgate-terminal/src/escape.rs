//! Text that a terminal must not obey.

/// The characters that set the direction of the text that follows.
const DIRECTION_MARKS: [char; 12] = [
    '\u{61c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}',
    '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}',
];

/// Escapes control characters and direction marks. Subjects, names of files and messages of servers may contain any.
#[must_use]
pub fn escape_controls(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || DIRECTION_MARKS.contains(&c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_cannot_steer_the_terminal() {
        let text = "a\u{1b}[2Jb\u{202e}c\u{2066}\n\u{e4}";
        assert_eq!(escape_controls(text), "a\\u{1b}[2Jb\\u{202e}c\\u{2066}\\n\u{e4}");
    }
}
