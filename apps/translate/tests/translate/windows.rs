//! Documents are read in windows. What is found in them must not depend on where windows begin, nor on which are at hand.

use proptest::prelude::{Strategy, any, prop_assert_eq, proptest};
use tollgate_translate::chunk::cut;
use tollgate_translate::{Chunk, Document, Filling, Format, Layout, Marker};

use crate::round_trip::{markdown, subtitles, text};
use crate::{prose, rot13, texts};

/// The content of a document: its segments, and its bytes.
type Content = (Vec<(String, String, Vec<Marker>)>, Vec<u8>);

fn seen(document: &Document) -> Content {
    let segments = document.segments();
    let segments: Vec<_> = segments
        .map(|segment| (segment.text(), segment.source().to_owned(), segment.markers()))
        .collect();
    let marked = |number: usize| {
        if number.is_multiple_of(2) { Filling::Failed } else { Filling::Source }
    };
    (segments, document.write(Layout::Translation, marked).unwrap())
}

/// What is seen of `source` before and after it is cut.
fn seen_in(
    source: &str,
    format: Format,
    window: usize,
    size: u64,
) -> (Content, Vec<Chunk>, Content) {
    let mut document = Document::read_in_windows(source.into(), format, window).unwrap();
    let before = seen(&document);
    let chunks = cut(&mut document, size).unwrap();
    (before, chunks, seen(&document))
}

fn holds(source: &str, format: Format, window: usize, size: u64) {
    let whole = seen_in(source, format, usize::MAX, size);
    assert_eq!(seen_in(source, format, window, size), whole, "windows of {window}");
}

/// A document of several documents, so that there is much before and behind a window.
fn several(one: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    let between = proptest::sample::select(vec!["", "\n", "\n\n", "\r\n"]);
    proptest::collection::vec((one, between), 1..5)
        .prop_map(|parts| parts.into_iter().map(|(part, end)| part + end).collect())
}

/// Lines, some longer than any that is wrapped by hand, with few empty ones between them.
fn long_lines() -> impl Strategy<Value = String> {
    let line = (1..90_usize, any::<bool>()).prop_map(|(words, ends)| {
        let end = if ends && words % 4 == 0 { "\n\n" } else { "\n" };
        "word ".repeat(words).trim_end().to_owned() + end
    });
    proptest::collection::vec(line, 0..30).prop_map(|lines| lines.concat())
}

proptest! {
    #[test]
    fn windows_of_text_are_not_seen(source in several(text()), window in 1..300_usize, size in 50..200_u64) {
        holds(&source, Format::Text, window, size);
    }

    #[test]
    fn windows_of_long_lines_are_not_seen(source in long_lines(), window in 1..2_000_usize, size in 50..200_u64) {
        holds(&source, Format::Text, window, size);
    }

    #[test]
    fn windows_of_subtitles_are_not_seen(
        source in several(subtitles()),
        window in 1..300_usize,
        size in 50..200_u64,
    ) {
        holds(&source, Format::Srt, window, size);
    }

    #[test]
    fn windows_of_markdown_are_not_seen(
        source in several(markdown()),
        window in 1..300_usize,
        size in 50..200_u64,
    ) {
        holds(&source, Format::Markdown, window, size);
    }

    /// The tables of a few windows are kept. Whatever is asked for in whatever order, it is the same.
    #[test]
    fn segments_are_the_same_in_any_order(asked in proptest::collection::vec(any::<proptest::sample::Index>(), 1..60)) {
        let document = Document::read_in_windows(prose(8_000).into(), Format::Text, 2_000).unwrap();
        let all = texts(&document);
        for index in asked {
            let number = index.index(all.len());
            prop_assert_eq!(document.segment(number).text(), all[number].as_str());
            let around = number.saturating_sub(9)..(number + 9).min(all.len());
            let forth: Vec<String> = document.segments_in(around.clone()).map(|segment| segment.text()).collect();
            prop_assert_eq!(&forth, &all[around.clone()]);
            let mut back: Vec<String> = document.segments_in(around).rev().map(|segment| segment.text()).collect();
            back.reverse();
            prop_assert_eq!(forth, back);
        }
    }
}

/// Adjacent text that would be parsed differently if a window began between it.
#[test]
fn a_window_of_markdown_begins_where_nothing_changes() {
    let sources = [
        "See [a].\n\nText.\n\n[a]: u\n\nLast.\n",
        "First.\n\n[a]: u\n\"a title\nof two lines\"\n\nLast [a].\n",
        "First.\n\n[a]: u\n    no code\n\nLast.\n",
        "*\n[a]: u\n\tno code\n\nLast.\n",
        "> [a\nwords\n  | [\n> |---|\nmore\n\n# Last\n",
        "- item\n\n  more\n\n      code of an item\n\n- next\n\nLast.\n",
        "> quote\nand on\n\n> again\n\nLast.\n",
        "[^1]: note\n\n    more of it\n\nLast[^1].\n",
        "Title\nof two lines\n=====\nText\n-----\nLast.\n",
        "before\n| a | b |\n|---|---|\n| c | d |\nbehind\n\nLast.\n",
        "```\ncode\n\n# code\n```\nLast.\n",
        "<div>\n\n*text*\n\n</div>\n<!-- a\n\nb -->\nLast.\n",
        "one\r\rtwo\r\r# three\r\rfour\r",
        "1. a\n\n2. b\n10. c\n\n***\n- d\n* e\n+ f\n",
    ];
    for source in sources {
        for window in 1..source.len() {
            holds(source, Format::Markdown, window, 50);
        }
    }
}

/// A definition holds in the whole document, before and behind it, in any case of letters.
#[test]
fn links_and_footnotes_are_defined_for_all_windows() {
    let filler = "A paragraph that fills a window, and more than one of them.\n\n".repeat(4);
    let source = format!(
        "See [Map], [words][map], [Map][], ![MAP], [gone] and a note[^1], ![^ä B] or none[^2].\n\n| a[^x\\|y] |\n|---|\n\n\
         {filler}[map]: https://example.com\n\n[^1]: A note.\n\n[^Ä  b]: Another.\n\n[^x|y]: A third.\n\n{filler}\
         The [map] and [^1].\n"
    );
    for window in [1, 60, 200, 1 << 16] {
        let document =
            Document::read_in_windows(source.clone().into(), Format::Markdown, window).unwrap();
        let texts = texts(&document);
        assert_eq!(
            texts[0],
            "See ⟦1⟧Map⟦2⟧, ⟦3⟧words⟦4⟧, ⟦5⟧Map⟦6⟧, ⟦7⟧MAP⟦8⟧, [gone] and a note⟦9⟧, !⟦10⟧ or none[^2]."
        );
        assert_eq!(texts[1], "a⟦1⟧");
        assert_eq!(texts.last().unwrap(), "The ⟦1⟧map⟦2⟧ and ⟦3⟧.");
        holds(&source, Format::Markdown, window, 50);
    }
}

/// The line number of a warning does not depend on the window.
#[test]
fn mistakes_in_subtitles_are_reported_with_their_line() {
    let cue = "1\n00:00:01,000 --> 00:00:02,000\nWords.\n\n";
    for (wrong, line) in [("What?\n\n", 41), ("7\n\n", 41), ("7\nWhat?\n\n", 42)] {
        let source = cue.repeat(10) + wrong + cue;
        for window in [1, 50, 100, 1 << 16] {
            let document =
                Document::read_in_windows(source.clone().into(), Format::Srt, window).unwrap();
            let [warning] = document.warnings() else { panic!("{:?}", document.warnings()) };
            let warnings = warning.to_string();
            assert!(warnings.starts_with(&format!("line {line}: ")), "{warnings}");
            assert!(warnings.ends_with("; the cue is kept as it is"), "{warnings}");
            assert_eq!(texts(&document), ["Words."; 11]);
        }
    }
}

/// Front matter is at the start. Text between rules is text.
#[test]
fn text_between_rules_is_translated() {
    let source = "---\ntitle: kept\n---\n\nFirst.\n\n---\nSecond.\n\nThird.\n\n---\nFourth.\n\n+++\nFifth.\n+++\n";
    for window in [1, 30, 1 << 16] {
        let document = Document::read_in_windows(source.into(), Format::Markdown, window).unwrap();
        let found = texts(&document);
        assert_eq!(found, ["First.", "Second.", "Third.", "Fourth.", "+++\nFifth.\n+++"]);
    }
    for (source, found) in [
        ("---\ntitle: kept\n...\nText.\n", vec!["Text."]),
        ("+++\ntitle = 1\n+++\nText.\n", vec!["Text."]),
        ("\u{feff}---\na: b\n---", vec![]),
        ("---\n\nText.\n\n---\n", vec!["Text."]),
        ("---\nText.\n", vec!["Text."]),
        (" ---\na: b\n---\n", vec!["a: b"]),
    ] {
        let document = Document::read(source.into(), Format::Markdown).unwrap();
        assert_eq!(texts(&document), found, "{source:?}");
    }
}

/// The windows of a real size: a long document is written back as it was, and with rot13 applied twice.
#[test]
fn long_documents_of_many_windows_turn_there_and_back() {
    let page = format!("# Title\n\n{}\n\n- [item][i]\n- other\n\n", prose(90).trim());
    let markdown = page.repeat(700) + "[i]: u\n";
    let cue = "1\n00:00:01,000 --> 00:00:02,000\n<i>Some</i> words\nof a film.\n\n";
    for (source, format) in [
        (prose(70_000), Format::Text),
        (markdown, Format::Markdown),
        (cue.repeat(6_000), Format::Srt),
    ] {
        let document = Document::read(source.clone().into(), format).unwrap();
        let there = crate::written(&document, Layout::Translation, rot13);
        let again = Document::read(there, format).unwrap();
        assert_eq!(again.len(), document.len());
        let back = crate::written(&again, Layout::Translation, rot13);
        assert!(back == source.as_bytes(), "{format} comes back");
    }
}

/// The parser of Markdown panics on this; a worker on many documents must survive one.
#[test]
fn what_the_parser_of_markdown_cannot_read_is_an_error() {
    let source = "# Title\n\n1. [x] \\\n   -";
    let error = Document::read(source.into(), Format::Markdown).unwrap_err();
    assert_eq!(error.kind(), tollgate_translate::ErrorKind::Document);
    assert!(error.to_string().contains("between the lines 1 and 4"), "{error}");
}
