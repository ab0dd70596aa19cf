//! HTML, WebVTT and what other programs add to Markdown: the words change, and every other byte stays.

use proptest::prelude::{Strategy, prop_assert_eq, proptest};
use proptest::sample::select;
use tollgate_translate::{Document, Filling, Format, Layout};

use crate::{language, read, rot13, texts, written};

fn upper(source: &str, format: Format) -> String {
    let bytes = written(&read(source, format), Layout::Translation, str::to_uppercase);
    String::from_utf8(bytes).unwrap()
}

const PAGE: &str = "\u{feff}<!DOCTYPE html>\r\n<html lang=en>\r\n<head><title>The title</title>\r\n\
    <style>p { color: red }</style><script>if (a < b) { say('words') }</script></head>\r\n<body>\r\n\
    <!-- a comment -->\r\n<p class='x'>Some <b>bold</b> words &mdash; caf&eacute; &copy; 2026&nbsp;AD<br>next <code>ls -l</code>.\r\n\
    <p>Not closed, <i>nor this\r\n<pre>kept\r\n  as it is</pre><img src=a.png alt=\"A view\">\r\n\
    <p title='It&#39;s here'>See <a href=\"u?a=1&amp;b=2\" TITLE=\"A guide\">the guide</a>.</p>\r\n\
    <p translate=no>Keep</p><ul><li>One<li>Two</ul><textarea>kept</textarea>\r\n</body></html>\r\n";

#[test]
fn r003_5_a_page_of_html_keeps_everything_but_its_words() {
    let changed = PAGE
        .replace("The title", "THE TITLE")
        .replace("Some <b>bold</b> words", "SOME <b>BOLD</b> WORDS")
        .replace("caf&eacute;", "CAFÉ")
        .replace("AD<br>next", "AD<br>NEXT")
        .replace("Not closed, <i>nor this", "NOT CLOSED, <i>NOR THIS")
        .replace("A view", "A VIEW")
        .replace("It&#39;s here", "IT&#39;S HERE")
        .replace("See <a", "SEE <a")
        .replace("A guide", "A GUIDE")
        .replace("the guide", "THE GUIDE")
        .replace("<li>One<li>Two", "<li>ONE<li>TWO");
    assert_eq!(upper(PAGE, Format::Html), changed);
    let document = read(PAGE, Format::Html);
    assert!(document.warnings().is_empty(), "{:?}", document.warnings());
    assert_eq!(written(&document, Layout::Translation, str::to_owned), PAGE.as_bytes());
    // Letters are spelled as the source spells them.
    let fill = |number: usize| match document.segment(number).plain() {
        text if text.contains("café") => Filling::Text("Un café ⟦1⟧⟦2⟧⟦3⟧⟦4⟧⟦5⟧⟦6⟧ — <b>"),
        _ => Filling::Source,
    };
    let bytes = document.write(Layout::Translation, fill).unwrap();
    let spelled = String::from_utf8(bytes).unwrap();
    assert!(
        spelled
            .contains("Un caf&eacute; <b></b>&copy;&nbsp;<br><code>ls -l</code> &mdash; &lt;b&gt;"),
        "{spelled}"
    );
}

/// What browsers bear is translated, and text that cannot be read is kept and named.
#[test]
fn hostile_pages_are_read_as_browsers_do() {
    let rows = [
        ("<p>One<b>two<p>three", vec!["One⟦1⟧two", "three"], ""),
        ("</b></p>Words</i>", vec!["Words"], ""),
        ("<b><i>crossed</b> over</i> here", vec!["⟦1⟧crossed⟦2⟧ over⟦3⟧ here"], ""),
        ("a < b & c <3 d", vec!["a < b & c <3 d"], ""),
        ("<p alt='x' alt='y' a=\"b>c\">Words", vec!["x", "y", "Words"], ""),
        ("<title>A <b> title</title><p>Text", vec!["A <b> title", "Text"], ""),
        ("<script/>var x</script><p>Words", vec!["var x", "Words"], ""),
        ("<P TRANSLATE=NO>Kept<P>Words", vec!["Words"], ""),
        ("<svg><title>kept</title><text>kept</text></svg><p>Words", vec!["Words"], ""),
        (
            "<p>Words\n<img alt=\"open",
            vec!["Words"],
            "line 2: the page ends inside a tag; what follows is kept as it is",
        ),
        (
            "Words\n<!-- open",
            vec!["Words"],
            "line 2: the page ends inside a comment; what follows is kept as it is",
        ),
        (
            "<p>Words</p>\n\n<pre>rest",
            vec!["Words"],
            "line 3: <pre> is not closed; what follows is kept as it is",
        ),
        ("<?php echo 'x' ?>Words<![CDATA[x]]>", vec!["Words"], ""),
    ];
    for (source, found, warning) in rows {
        let document = read(source, Format::Html);
        assert_eq!(texts(&document), found, "{source}");
        let warnings: Vec<String> = document.warnings().iter().map(ToString::to_string).collect();
        assert_eq!(warnings.join("\n"), warning, "{source}");
        assert_eq!(
            Document::read_strict(source.into(), Format::Html).is_err(),
            !warning.is_empty()
        );
        assert_eq!(written(&document, Layout::Translation, str::to_owned), source.as_bytes());
    }
    for (open, close) in [("<b>", "</b>"), ("<div>", "</div>"), ("<b>", ""), ("<i><b>", "</i></b>")]
    {
        let deep = format!("a{}words{}", open.repeat(50_000), close.repeat(50_000));
        let document = read(&deep, Format::Html);
        assert!(document.segments().any(|segment| segment.plain().ends_with("words")));
        assert_eq!(written(&document, Layout::Translation, str::to_owned), deep.as_bytes());
    }
}

#[test]
fn a_page_says_its_language_and_its_direction() {
    let rows = [
        (
            "<html lang=en><body lang='en'><p lang=la>x",
            "fr",
            "<html lang=fr><body lang='fr'><p lang=la>x",
        ),
        ("<HTML><body dir=\"ltr\">x", "ar", "<HTML dir=\"rtl\"><body dir=\"rtl\">x"),
        ("<html dir='rtl' lang=\"he\">x", "en", "<html dir='ltr' lang=\"en\">x"),
        ("<html dir=auto>x", "he", "<html dir=auto>x"),
        (
            "<html xml:lang=\"en\" lang=\"en\">x",
            "fa",
            "<html dir=\"rtl\" xml:lang=\"fa\" lang=\"fa\">x",
        ),
        ("<p>x", "ar", "<p>x"),
        ("<html lang=az>x", "az-Arab", "<html dir=\"rtl\" lang=az-Arab>x"),
    ];
    for (source, to, expected) in rows {
        let document = read(source, Format::Html);
        let write = |layout| document.write_in(&language(to), layout, |_| Filling::Source).unwrap();
        assert_eq!(String::from_utf8(write(Layout::Translation)).unwrap(), expected);
        assert_eq!(write(Layout::Bilingual), source.as_bytes(), "it has both languages");
    }
}

const FILM: &str = "WEBVTT - A film\r\nKind: captions\r\n\r\nNOTE a remark\r\nof two lines\r\n\r\nSTYLE\r\n::cue { color: red }\r\n\r\n\
    intro\r\n00:01.000 --> 00:02.500 align:start line:0\r\n<v Anna>Hello &amp; <i.loud>welcome</i></v>\r\n- <00:01.500>there\r\n\r\n\
    01:00:03.000 --> 01:00:04.000\r\nBye &lt;all&gt;\r\n";

#[test]
fn r003_5_webvtt_keeps_everything_but_the_lines_of_cues() {
    assert_eq!(
        texts(&read(FILM, Format::Vtt)),
        ["⟦1⟧Hello ⟦2⟧ ⟦3⟧welcome⟦4⟧⟦5⟧\n- ⟦6⟧there", "Bye ⟦1⟧all⟦2⟧"]
    );
    let changed = FILM
        .replace("Hello", "HELLO")
        .replace("welcome", "WELCOME")
        .replace("there", "THERE")
        .replace("Bye", "BYE")
        .replace(";all&", ";ALL&");
    assert_eq!(upper(FILM, Format::Vtt), changed);
    let document = read("WEBVTT\n\n00:01.000 --> 00:02.000\nHi\n", Format::Vtt);
    let bytes = document.write(Layout::Translation, |_| Filling::Text("a --> <b>\n\nc")).unwrap();
    assert_eq!(bytes, b"WEBVTT\n\n00:01.000 --> 00:02.000\na --&gt; &lt;b&gt; c\n");
}

#[test]
fn a_bad_cue_is_kept_and_named_and_the_others_are_translated() {
    let film = "WEBVTT\n\n00:01.000 -> 00:02.000\nBad\n\n00:03.000 --> 00:04.000\nGood\n";
    let rows = [
        (
            Format::Vtt,
            film,
            "line 3: expected times, such as 01:02.500 --> 01:04.000, found \"00:01.000 -> 00:02.000\"",
        ),
        (Format::Vtt, &film[8..], "line 1: expected WEBVTT, found \"00:01.000 -> 00:02.000\""),
        (Format::Srt, "1\n00:01 -> 00:02\nBad\n\n2\n00:03 --> 00:04\nGood\n", "line 2: "),
    ];
    for (format, source, problem) in rows {
        let document = read(source, format);
        assert_eq!(texts(&document), ["Good"]);
        let warnings: Vec<String> = document.warnings().iter().map(ToString::to_string).collect();
        assert!(warnings[0].starts_with(problem), "{warnings:?}");
        assert!(warnings[warnings.len() - 1].ends_with("the cue is kept as it is"), "{warnings:?}");
        assert_eq!(upper(source, format), source.replace("Good", "GOOD"));
        let error = Document::read_strict(source.into(), format).unwrap_err();
        assert!(error.to_string().starts_with(problem), "{error}");
    }
}

#[test]
fn r003_5_what_other_programs_add_to_markdown_comes_back_byte_for_byte() {
    let source = "::: tip Read this\nInside *it* :smile: goes.\n:::\n\n:::warning\nMore\n:::\n\n:::note[A title]{.x}\n\n\
        !!! note \"Take care\"\n    The body with `code`.\n\n    And more.\n\nBehind $x_1 * y_2$ it, $$\\sum_i a*b*$$ and \
        US$5 to $10, {{ site.name }} {% if a *b* %}yes{% endif %}\nand [[A page|shown]] at 10:30:45 &nbsp;&copy; caf&eacute;.\n\n\
        $$\na\n+ b_1\n= c\n$$\n\n??? tip\n    Folded.\n";
    let expected = source
        .replace("Read this", "READ THIS")
        .replace("Inside *it* :smile: goes", "INSIDE *IT* :smile: GOES")
        .replace("\nMore", "\nMORE")
        .replace("A title", "A TITLE")
        .replace("Take care", "TAKE CARE")
        .replace("The body with", "THE BODY WITH")
        .replace("And more", "AND MORE")
        .replace("Behind", "BEHIND")
        .replace(" it, $$", " IT, $$")
        .replace(" and US$5 to", " AND US$5 TO")
        .replace("yes{", "YES{")
        .replace("\nand [[", "\nAND [[")
        .replace(" at 10", " AT 10")
        .replace("caf&eacute;", "CAFÉ")
        .replace("Folded", "FOLDED");
    assert_eq!(upper(source, Format::Markdown), expected);
    let rows = [
        ("It costs $5, or 6$ more", "It costs $5, or 6$ more"),
        ("From `$a` to `$b`", "From ⟦1⟧ to ⟦2⟧"),
        ("Let $n - 1$ be", "Let ⟦1⟧ be"),
        ("Escaped \\$x\\$ words", "Escaped \\$x\\$ words"),
        ("don&rsquo;t &lt;b&gt;", "don’t ⟦1⟧b⟦2⟧"),
        ("AT&T &amp; R&D", "AT&T ⟦1⟧ R&D"),
        ("in [[Page]] and [[A|b]]", "in ⟦1⟧ and ⟦2⟧"),
        ("see note:this:that :+1:", "see note:this:that ⟦1⟧"),
    ];
    for (source, text) in rows {
        assert_eq!(texts(&read(source, Format::Markdown)), [text], "{source}");
    }
}

#[test]
fn r003_5_links_by_their_own_words_keep_their_target_and_titles_are_translated() {
    let source = "- [Words]\n\nSee [The *Map*][], ![Image] and [`code`].\n\n[a](u \"A title\") b ![alt](<v w> 'It is') c\n\n\
        [words]: w (Some \\(title\\))\n[the *map*]: m\n[image]: i\n[`code`]: c\n";
    let expected = "- [WORDS][Words]\n\nSEE [THE *MAP*][The *Map*], ![IMAGE][Image] AND [`code`].\n\n\
        [A](u \"A TITLE\") B ![ALT](<v w> 'IT IS') C\n\n[words]: w (SOME \\(TITLE\\))\n[the *map*]: m\n[image]: i\n[`code`]: c\n";
    assert_eq!(upper(source, Format::Markdown), expected);
    let document = read("[x](u \"one two\")\n\n[y]: v 'three'\n", Format::Markdown);
    let quoted = ["say \"ah\"", "X", "l'eau"];
    let bytes = document.write(Layout::Translation, |number| Filling::Text(quoted[number]));
    let written = String::from_utf8(bytes.unwrap()).unwrap();
    assert_eq!(written, "[X](u \"say \\\"ah\\\"\")\n\n[y]: v 'l\\'eau'\n");
    let both = crate::written(&document, Layout::Bilingual, str::to_uppercase);
    let both = String::from_utf8(both).unwrap();
    assert!(both.contains("\"one two / ONE TWO\"") && both.contains("'three / THREE'"), "{both}");
}

#[test]
fn attributes_are_escaped_for_their_quotes() {
    let document = read("<img alt=word><img alt='two'><img alt=\"three\">", Format::Html);
    let fill = |_| Filling::Text("a \"b\" 'c' & <d>");
    let written = String::from_utf8(document.write(Layout::Translation, fill).unwrap()).unwrap();
    let double = "\"a &quot;b&quot; 'c' &amp; &lt;d&gt;\"";
    let single = "'a \"b\" &#39;c&#39; &amp; &lt;d&gt;'";
    assert_eq!(written, format!("<img alt={double}><img alt={single}><img alt={double}>"));
}

fn soup() -> impl Strategy<Value = String> {
    let pieces = vec![
        "word",
        " ",
        "two words. ",
        "<p>",
        "</p>",
        "<b>",
        "</b>",
        "<i class='c'>",
        "</i>",
        "<br>",
        "<img alt=\"a view\">",
        "<img alt=view title='a b'/>",
        "<!-- c -->",
        "<code>",
        "</code>",
        "<pre>",
        "</pre>",
        "<script>",
        "</script>",
        "<",
        ">",
        "&",
        "&amp;",
        "&ntilde;",
        "&nbsp;",
        "\r\n",
        "\n",
        "<a href=\"u\">",
        "</a>",
        "<title>",
        "</title>",
        "=",
        "\"",
        "'",
        "<li>",
        "{{ x }}",
        "$x$",
        "\u{feff}",
        "日本",
        "<p translate=no>",
        "</",
        "<!",
    ];
    proptest::collection::vec(select(pieces), 0..40).prop_map(|pieces| pieces.concat())
}

fn film() -> impl Strategy<Value = String> {
    let pieces = vec![
        "WEBVTT\n\n",
        "\n",
        "\n\n",
        "\r\n",
        "00:01.000 --> 00:02.000\n",
        "00:01 -> 00:02\n",
        "NOTE ",
        "STYLE\n",
        "name\n",
        "word",
        " ",
        "<v Bob>",
        "<i>",
        "</i>",
        "<00:01.500>",
        "&amp;",
        "<",
        "-->",
        "12",
    ];
    proptest::collection::vec(select(pieces), 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn r003_5_html_round_trips(source in soup()) {
        let document = read(&source, Format::Html);
        prop_assert_eq!(written(&document, Layout::Translation, str::to_owned), source.as_bytes());
        let again = Document::read(written(&document, Layout::Translation, rot13), Format::Html).unwrap();
        let all: Vec<String> = texts(&document).iter().map(|text| rot13(text)).collect();
        // An ampersand or an angle bracket of the text is written as a reference, which is a marker.
        if !source.contains("&") && !source.contains(['<', '>']) {
            prop_assert_eq!(texts(&again), all);
        }
        prop_assert_eq!(again.len(), document.len());
    }

    #[test]
    fn r003_5_webvtt_round_trips_whatever_the_windows(source in film(), window in 1..100_usize) {
        let document = read(&source, Format::Vtt);
        prop_assert_eq!(written(&document, Layout::Translation, str::to_owned), source.as_bytes());
        let other = Document::read_in_windows(source.into(), Format::Vtt, window).unwrap();
        prop_assert_eq!(texts(&other), texts(&document));
        prop_assert_eq!(other.warnings(), document.warnings());
    }
}
