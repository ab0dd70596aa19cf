//! The text of each format, and the markup that stays untouched.

use tollgate_translate::{Document, ErrorKind, Filling, Format, Layout};

use crate::{read, texts, written};

fn upper(text: &str) -> String {
    // Markers have digits only, so they stay.
    text.to_uppercase()
}

fn changed(source: &str, format: Format) -> String {
    String::from_utf8(written(&read(source, format), Layout::Translation, upper)).unwrap()
}

#[test]
fn r003_5_markdown_keeps_everything_but_the_text() {
    let source = "---\ntitle: Front matter\n---\n\n\
        # A *bold* title {#id}\n\n\
        Some `code` and [a link](https://example.com \"t\"), **really**\\\nnext line.\n\n\
        ```rust\nfn main() {}\n```\n\n    indented code\n\n\
        <div>\nhtml block\n</div>\n\n\
        > quoted text\n> goes on\n>\n> - [ ] item one\n> - item two\n\n\
        1. first\n2. second\n\n   more of it\n\n\
        | head | other |\n|---|:-:|\n| cell | `x` |\n\n\
        A note[^1], <b>html</b> and {placeholder} %s https://example.org/path. \u{27e6}1\u{27e7}\n\n\
        [^1]: the note\n\n[ref]: https://example.net \"a title\"\n\n***\n";
    let expected = "---\ntitle: Front matter\n---\n\n\
        # A *BOLD* TITLE {#id}\n\n\
        SOME `code` AND [A LINK](https://example.com \"T\"), **REALLY**\\\nNEXT LINE.\n\n\
        ```rust\nfn main() {}\n```\n\n    indented code\n\n\
        <div>\nhtml block\n</div>\n\n\
        > QUOTED TEXT\n> GOES ON\n>\n> - [ ] ITEM ONE\n> - ITEM TWO\n\n\
        1. FIRST\n2. SECOND\n\n   MORE OF IT\n\n\
        | HEAD | OTHER |\n|---|:-:|\n| CELL | `x` |\n\n\
        A NOTE[^1], <b>HTML</b> AND {placeholder} %s https://example.org/path. \u{27e6}1\u{27e7}\n\n\
        [^1]: THE NOTE\n\n[ref]: https://example.net \"A TITLE\"\n\n***\n";
    assert_eq!(changed(source, Format::Markdown), expected);
}

#[test]
fn markdown_segments_show_markers_and_pairs() {
    let document = read("Go *to [the **shop**](u)* now", Format::Markdown);
    let segment = document.segment(0);
    assert_eq!(segment.text(), "Go ⟦1⟧to ⟦2⟧the ⟦3⟧shop⟦4⟧⟦5⟧⟦6⟧ now");
    assert_eq!(segment.plain(), "Go to the shop now");
    let closes: Vec<_> = segment.markers().iter().map(|marker| marker.closed_by).collect();
    assert_eq!(closes, [Some(6), Some(5), Some(4), None, None, None]);
    let rows = [
        ("**all of it**", "all of it"),
        ("`code` at the start", "⟦1⟧ at the start"),
        ("Run `ls`", "Run ⟦1⟧"),
        ("some text <!-- c -->", "some text"),
        ("![alt words](i.png)", "alt words"),
        ("[shortcut] and <https://x.org>\n\n[shortcut]: u", "⟦1⟧shortcut⟦2⟧ and ⟦3⟧"),
        ("a\\*b", "a\\*b"),
    ];
    for (source, text) in rows {
        assert_eq!(texts(&read(source, Format::Markdown))[0], text, "{source}");
    }
}

#[test]
fn a_translation_cannot_become_structure() {
    let rows = [
        ("Title here", "# not a heading", "\\# not a heading"),
        ("One line", "two\nlines", "two lines"),
        ("One\nline", "- no\n\n1. list", "\\- no\n1\\. list"),
        ("> quoted\n> text", "cité\net\nplus", "> cité\n> et\n> plus"),
        ("plain", "a * b_c [d] `e` <f>", "a \\* b\\_c \\[d\\] \\`e\\` \\<f>"),
        ("2 * 3 is fine", "2 * 3 va", "2 * 3 va"),
    ];
    for (source, text, expected) in rows {
        let document = read(source, Format::Markdown);
        let bytes = document.write(Layout::Translation, |_| Filling::Text(text)).unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), expected, "{source}");
    }
    let cue = read("1\n00:00:01,000 --> 00:00:02,000\nHello\n", Format::Srt);
    let bytes = cue.write(Layout::Translation, |_| Filling::Text("Bon\n\njour --> x")).unwrap();
    assert_eq!(bytes, "1\n00:00:01,000 --> 00:00:02,000\nBon jour → x\n".as_bytes());
}

#[test]
fn text_has_paragraphs_of_wrapped_lines_or_one_on_each() {
    assert_eq!(
        texts(&read("One\r\n two.\r\n\r\n 12 \r\n\r\nThree", Format::Text)),
        ["One\ntwo.", "Three"]
    );
    assert_eq!(
        changed("\u{feff}a\r\n  b\r\n\r\n\tc\r\n", Format::Text),
        "\u{feff}A\r\n  B\r\n\r\n\tC\r\n"
    );
    let long = "long ".repeat(50);
    assert_eq!(texts(&read(&format!("{long}\nshort\n{long}"), Format::Text)).len(), 3);
}

#[test]
fn urls_addresses_and_placeholders_are_out_of_reach() {
    let rows = [
        ("See https://a.org/x_(y)?q=1, now", "See ⟦1⟧, now"),
        ("(see http://a.org/b).", "(see ⟦1⟧)."),
        ("Write to jo@mail.example.com.", "Write to ⟦1⟧."),
        ("at www.example.com today", "at ⟦1⟧ today"),
        ("Hi {name}, {{ user }} and ${HOME}", "Hi ⟦1⟧, ⟦2⟧ and ⟦3⟧"),
        ("Of %d files %1$s took %.2f%% at %(rate)s", "Of ⟦1⟧ files ⟦2⟧ took ⟦3⟧%% at ⟦4⟧"),
        ("100% sure, 5% down, { spaced }", "100% sure, 5% down, { spaced }"),
        ("a ⟦9⟧ b", "a ⟦1⟧9⟦2⟧ b"),
        ("参照https://a.org/b。次", "参照⟦1⟧。次"),
    ];
    for (source, text) in rows {
        assert_eq!(texts(&read(source, Format::Text))[0], text);
    }
}

#[test]
fn subtitles_keep_numbers_times_and_tags() {
    let source = "1\n00:00:01,000 --> 00:00:02,500 X1:40\n<i>Hello</i>\n- there\n\n\n\
        2\n00:00:03,000 --> 00:00:04,000\n{\\an8}<font color=\"#fff\">Bye</font>\n\n3\n00:00:05,000 --> 00:00:06,000\n";
    assert_eq!(texts(&read(source, Format::Srt)), ["⟦1⟧Hello⟦2⟧\n- there", "Bye"]);
    let upper = source.replace("Hello", "HELLO").replace("there", "THERE").replace("Bye", "BYE");
    assert_eq!(changed(source, Format::Srt), upper);
    let rows = [
        (
            "1\n00:00:01,000 -> 00:00:02,000\nHi\n",
            "line 2: expected times, such as 00:01:02,500 --> 00:01:04,000, found \"00:00:01,000 -> 00:00:02,000\"",
        ),
        ("Hello\n", "line 1: expected the number of a cue, such as 12, found \"Hello\""),
    ];
    for (source, message) in rows {
        let error = Document::read_strict(source.into(), Format::Srt).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Document);
        assert!(error.to_string().starts_with(message), "{error}");
    }
}

#[test]
fn what_is_not_utf_8_is_refused_with_its_place() {
    let rows: [(&[u8], &str); 6] = [
        (b"good\nbad \xe9", "the document is not UTF-8: byte 9, on line 2"),
        (b"\xff\xfea\0", "the document is UTF-16"),
        (b"a\0b\0", "the document is UTF-16 or no text (it has NUL bytes)"),
        (b"\0a\0\n", "the document is UTF-16 or no text"),
        (b"%PDF-1.7", "the document is PDF"),
        (b"PK\x03\x04", "the document is a ZIP archive"),
    ];
    for (bytes, message) in rows {
        let error = Document::read(bytes.to_vec(), Format::Text).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
    }
    let error = Format::from_path("book.docx".as_ref()).unwrap_err();
    assert!(error.to_string().contains("use .txt, .md, .html, .srt, .vtt or .epub"), "{error}");
    assert_eq!(Format::from_path("Book.MD".as_ref()).unwrap(), Format::Markdown);
}

#[test]
fn bilingual_documents_have_source_and_translation() {
    let rows = [
        (Format::Text, "one\n  two\n\nthree\n", "one\n  two\n\nONE\n  TWO\n\nthree\n\nTHREE\n"),
        (
            Format::Markdown,
            "# Head\n\n- item\n\n> quote\n\n| a |\n|---|\n",
            "# Head / HEAD\n\n- item\n\n  ITEM\n\n> quote\n>\n> QUOTE\n\n| a / A |\n|---|\n",
        ),
        (
            Format::Srt,
            "1\n00:00:01,000 --> 00:00:02,000\n<i>Hi</i> you\n",
            "1\n00:00:01,000 --> 00:00:02,000\n<i>Hi</i> you\n<i>HI</i> YOU\n",
        ),
    ];
    for (format, source, expected) in rows {
        let bytes = written(&read(source, format), Layout::Bilingual, upper);
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }
}

#[test]
fn r003_5_a_failed_segment_is_visible_and_has_its_source() {
    let document = read("one\n\ntwo\n", Format::Text);
    let fill = |number| if number == 0 { Filling::Failed } else { Filling::Source };
    let bytes = document.write(Layout::Translation, fill).unwrap();
    assert_eq!(bytes, b"[NOT TRANSLATED] one\n\ntwo\n");
}

#[test]
fn a_lost_or_doubled_marker_is_not_written() {
    let document = read("a {x} b", Format::Text);
    for bad in ["a b", "a ⟦1⟧ ⟦1⟧ b", "a ⟦2⟧ b", "a ⟦0⟧⟦1⟧ b"] {
        let error = document.write(Layout::Translation, |_| Filling::Text(bad)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
    }
}
