//! Round trips on generated documents: the same text gives the same bytes, and another text changes nothing else.
//!
//! Turning letters twice must give the first bytes back. It shows more than writing a text back unchanged does: each letter
//! went through a marker-bearing text and a new parse, and nothing but letters moved.

use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, proptest};
use proptest::sample::select;
use tollgate_translate::{Document, Format, Layout};

use crate::{rot13, texts, written};

fn lines(pieces: Vec<&'static str>, most: usize) -> impl Strategy<Value = String> {
    proptest::collection::vec(select(pieces), 0..most).prop_map(|pieces| pieces.concat())
}

pub(crate) fn text() -> impl Strategy<Value = String> {
    lines(
        vec![
            "word",
            " ",
            "a sentence. ",
            "\n",
            "\r\n",
            "\n\n",
            "\t",
            "  indented",
            "https://ex.org/a",
            "{name}",
            "⟦",
            "⟧",
            "⟦3⟧",
            "%s",
            "12",
            "é",
            "日本。",
            "\u{feff}",
            "w",
            "{",
            "@x.y",
            "me@ex.org",
        ],
        60,
    )
}

pub(crate) fn markdown() -> impl Strategy<Value = String> {
    lines(
        vec![
            "word",
            " ",
            "two words",
            "\n",
            "\n\n",
            "\r\n",
            "# ",
            "> ",
            "- ",
            "1. ",
            "*",
            "**",
            "_",
            "`",
            "```\n",
            "[",
            "](u)",
            "![",
            "~~",
            "\\",
            "&amp;",
            "<b>",
            "</b>",
            "<div>",
            "| ",
            "|---|\n",
            "    ",
            "[^1]",
            "[^1]: ",
            "---\n",
            "  \n",
            "[ref]: u\n",
            "[ref]",
            "https://ex.org",
            "{#i}",
            "⟦1⟧",
            "é",
            "日本",
            "***\n",
            "===\n",
            "[x] ",
            "$",
            "$x_1$",
            "$$",
            "{% tag %}",
            "{{",
            "}}",
            "{%",
            "%}",
            "[[",
            "]]",
            "::: tip ",
            ":::\n",
            "!!! note \"Title\"\n",
            "!!! note\n",
            ":smile:",
            "&ntilde;",
            "&nbsp;",
            "](u \"a title\")",
            "[ref][]",
            "[i]: v 'a title'\n",
        ],
        40,
    )
}

pub(crate) fn subtitles() -> impl Strategy<Value = String> {
    let line = lines(
        vec![
            "word",
            " ",
            "<i>",
            "</i>",
            "{\\an8}",
            "<font a=\"b\">",
            "</font>",
            "- ",
            "12 ",
            "é",
            "<",
            ">",
        ],
        8,
    );
    let cue = proptest::collection::vec(line, 0..4);
    let cues = proptest::collection::vec(cue, 0..6);
    (cues, select(vec!["\n", "\r\n"])).prop_map(|(cues, end)| {
        let mut source = String::new();
        for (number, lines) in cues.iter().enumerate() {
            let head = format!("{}{end}00:00:01,000 --> 00:00:02,000{end}", number + 1);
            source.push_str(&head);
            for line in lines.iter().filter(|line| !line.trim().is_empty()) {
                source.push_str(line);
                source.push_str(end);
            }
            source.push_str(end);
        }
        source
    })
}

fn same_text_same_bytes(source: &str, format: Format) -> Document {
    let document = Document::read(source.into(), format).unwrap();
    assert_eq!(written(&document, Layout::Translation, str::to_owned), source.as_bytes());
    document
}

fn round_trips(source: &str, format: Format) {
    let document = same_text_same_bytes(source, format);
    let there = written(&document, Layout::Translation, rot13);
    let again = Document::read(there, format).unwrap();
    // A link by its own words gets the name of its target, and may stand alone then.
    let has_named = source.contains("]:");
    let shown = |document: &Document| -> Vec<String> {
        match has_named {
            true => document.segments().map(|segment| segment.plain()).collect(),
            false => texts(document),
        }
    };
    let all: Vec<String> = shown(&document).iter().map(|text| rot13(text)).collect();
    assert_eq!(shown(&again), all);
    let back = written(&again, Layout::Translation, rot13);
    if has_named {
        assert_eq!(shown(&Document::read(back, format).unwrap()), shown(&document));
    } else {
        assert_eq!(String::from_utf8(back).unwrap(), source);
    }
}

proptest! {
    #[test]
    fn r003_5_text_round_trips(source in text()) {
        round_trips(&source, Format::Text);
    }

    #[test]
    fn r003_5_subtitles_round_trip(source in subtitles()) {
        round_trips(&source, Format::Srt);
    }

    #[test]
    fn r003_5_markdown_round_trips(source in markdown()) {
        round_trips(&source, Format::Markdown);
    }

    /// Whatever was read, its segments are in order, apart, and have the markers that their text shows.
    #[test]
    fn markers_are_numbered_as_they_are_shown(source in markdown()) {
        let document = Document::read(source.clone().into(), Format::Markdown).unwrap();
        let mut from = 0;
        for segment in document.segments() {
            // A title may stand inside a segment that comes behind it.
            if let Some(found) = source[from..].find(segment.source()) && !source.contains("title") {
                from += found + segment.source().len();
            } else {
                prop_assert!(source.contains(segment.source()) && source.contains("title"));
            }
            let numbers: Vec<usize> = segment.markers().iter().map(|marker| marker.number).collect();
            let shown = segment.text().matches('⟦').count();
            prop_assert_eq!(numbers, (1..=shown).collect::<Vec<_>>());
        }
    }
}

/// A page with everything that Markdown has goes there and back.
#[test]
fn r003_5_a_rich_page_of_markdown_round_trips() {
    let source = "---\na: b\n---\n# Title *with* stress\n\nPlain [link](u \"t\") and `code`,\nnext **line** here.\n\n\
        > quote one\n> quote two\n\n- item\n  goes on\n- [x] done\n\n1. a\n   - b\n\n     deep text\n\n\
        | H1 | H2 |\n|----|----|\n| c1 *x* | c2 |\n\nfoot[^n] <kbd>Ctrl</kbd> ~~gone~~\n\n[^n]: note text\n    more\n\n\
        ```\ncode\n```\n\nSetext\n------\n\nend\\\nhard  \nbreak\n";
    round_trips(source, Format::Markdown);
}
