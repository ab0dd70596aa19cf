//! Each format from the file to its translation: the words between guillemets are translated, and every other byte stays.

use std::io::{Cursor, Read as _, Write as _};

use tollgate_testkit::fakes::gemini::{Settings, translated};
use zip::write::SimpleFileOptions;
use zip::{ZipArchive, ZipWriter};

use super::World;

/// The source that `template` stands for, and its translation.
fn both(template: &str) -> (String, String) {
    let (mut source, mut expected) = (String::new(), String::new());
    for (number, part) in template.split(['«', '»']).enumerate() {
        source.push_str(part);
        expected.push_str(&if number % 2 == 0 { part.to_owned() } else { translated(part) });
    }
    (source, expected)
}

fn translates(name: &str, output: &str, template: &str, rest: impl Fn(String) -> String) -> String {
    let world = World::new(Settings::default());
    let (source, expected) = both(template);
    std::fs::write(world.folder.path().join(name), source).expect("it is written");
    let ran = world.run(&world.make(&format!("{name} --yes")));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert_eq!(world.read(output), rest(expected));
    ran.out
}

const PAGE: &str = "\u{feff}<!doctype html>\r\n<html lang=\"en\"><head>\r\n<title>«The river and the houses»</title>\r\n\
    <style>p { margin: 0 }</style><script>say(\"the river\");</script></head>\r\n<body>\r\n<!-- nobody knew -->\r\n\
    <h1>«Nobody knew»</h1>\r\n<p class=x>«The river was» <b>«quiet»</b>&nbsp;«and nobody had seen boats since» <code>ls -l</code> \
    &mdash; «early»<br>\r\n«in the morning». <img src=a.png alt=\"«The old houses»\">\r\n<p>«When the captain walked along the river»\r\n\
    <pre>the river\r\n  was quiet</pre>\r\n<p lang=la>«The end of it»</body></html>\r\n";

#[test]
fn r003_5_a_page_of_html_is_translated_and_its_markup_is_not() {
    let in_french = |text: String| text.replacen("lang=\"en\"", "lang=\"fr\"", 1);
    let out = translates("page.html", "page.fr.html", PAGE, in_french);
    assert!(!out.contains("warning"), "{out}");
}

#[test]
fn r003_5_a_film_in_webvtt_is_translated_and_a_bad_cue_is_kept_and_named() {
    let film = "WEBVTT\r\n\r\nNOTE the river\r\n\r\n1\r\n00:01.000 --> 00:02.000 align:start\r\n<v Anna>«The river was quiet»\r\n\
        - <i>«and nobody knew»</i>\r\n\r\n00:03.000 -> 00:04.000\r\nthe captain\r\n\r\n00:05.000 --> 00:06.000\r\n«The captain walked along»\r\n";
    let out = translates("film.vtt", "film.fr.vtt", film, |text| text);
    let warning = "warning: film.vtt: line 10: expected times";
    assert!(out.contains(warning) && out.contains("the cue is kept as it is"), "{out}");
}

#[test]
fn r003_5_subtitles_with_a_bad_cue_are_translated_unless_strict() {
    let film = "1\n00:00:01,000 --> 00:00:02,000\n«The river was quiet»\n\n2\nthe captain\n\n3\n00:00:05,000 --> 00:00:06,000\n«Nobody knew»\n";
    let out = translates("film.srt", "film.fr.srt", film, |text| text);
    assert!(out.contains("warning: film.srt: line 6: expected times"), "{out}");
    let world = World::new(Settings::default());
    world.folder.write("film.srt", &both(film).0);
    let strict = world.run(&world.make("film.srt --yes --strict"));
    assert!(strict.code == 2 && strict.err.contains("film.srt: line 6: "), "{}", strict.err);
    assert_eq!(world.fake.tally().calls, 0);
}

#[test]
fn r003_5_what_other_programs_add_to_markdown_is_kept() {
    let page = "::: tip «The river»\n«The river was» $x_1$ «quiet and nobody» {{ site.name }} «had seen» :smile: «boats since \
        early morning» [[River|the river]].\n:::\n\n!!! note \"«The captain»\"\n    «When the captain walked along the river» \
        {% if a %}&nbsp;&copy;\n\n$$\na\n+ b\n$$\n\n[«The houses»][the houses] «and» ![«an image»](i.png \"«The old houses»\") \
        «between the old houses».\n\n[the houses]: u\n";
    let world = World::new(Settings::default());
    let (source, expected) = both(page);
    world.folder.write("page.md", &source.replace("[The houses][the houses]", "[The houses][]"));
    let ran = world.run(&world.make("page.md --yes"));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert_eq!(world.read("page.fr.md"), expected.replace("][the houses]", "][The houses]"));
}

fn packed(files: &[(&str, &str)]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, text) in files {
        zip.start_file(*name, SimpleFileOptions::default()).expect("it is packed");
        zip.write_all(text.as_bytes()).expect("it is packed");
    }
    zip.finish().expect("it is packed").into_inner()
}

fn entries(bytes: Vec<u8>) -> Vec<(String, String)> {
    let mut zip = ZipArchive::new(Cursor::new(bytes)).expect("it is an archive");
    let entry = |number| {
        let mut file = zip.by_index(number).expect("it is there");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("it is text");
        (file.name().expect("it has a name").into_owned(), text)
    };
    (0..4).map(entry).collect()
}

#[test]
fn r003_5_a_book_with_an_ill_formed_page_is_translated_unless_strict() {
    let container =
        "<container><rootfiles><rootfile full-path=\"book.opf\"/></rootfiles></container>";
    let package = "<package><metadata><dc:language>en</dc:language></metadata><manifest>\
        <item id=\"a\" href=\"a.xhtml\" media-type=\"application/xhtml+xml\"/><item id=\"b\" href=\"b.xhtml\" \
        media-type=\"application/xhtml+xml\"/></manifest><spine><itemref idref=\"a\"/><itemref idref=\"b\"/></spine></package>";
    let good = both(
        "<html lang=\"en\"><body><p>«The river was quiet»<img src=\"i\" alt=\"«The old houses»\"/></p></body></html>",
    );
    let soup = both(
        "<html lang=\"en\"><body><p>«When the captain walked»<br>«along»\n<p>«Nobody knew»</b></body></html>",
    );
    let world = World::new(Settings::default());
    let files = [
        ("META-INF/container.xml", container),
        ("book.opf", package),
        ("a.xhtml", &good.0),
        ("b.xhtml", &soup.0),
    ];
    let bytes = packed(&files);
    std::fs::write(world.folder.path().join("book.epub"), bytes).expect("it is written");
    let make = world
        .make("book.epub --yes")
        .replace("--to fr", "--to ar")
        .replace("--yes", "--strict --yes");
    let strict = world.run(&make);
    assert!(
        strict.code == 2 && strict.err.contains("book.epub: b.xhtml, line 2: "),
        "{}",
        strict.err
    );
    let ran = world.run(&world.make("book.epub --yes"));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let warning = "warning: book.epub: b.xhtml, line 2: ";
    assert!(
        ran.out.contains(warning) && ran.out.contains("it is read as browsers do"),
        "{}",
        ran.out
    );
    let written = std::fs::read(world.folder.path().join("book.fr.epub")).expect("it is written");
    let french = |text: &str| text.replacen("lang=\"en\"", "lang=\"fr\"", 1);
    let expected =
        [container.to_owned(), package.replace(">en<", ">fr<"), french(&good.1), french(&soup.1)];
    let found: Vec<String> = entries(written).into_iter().map(|(_, text)| text).collect();
    assert_eq!(found, expected);
}

#[test]
fn pages_that_are_not_utf_8_are_refused_as_such() {
    let world = World::new(Settings::default());
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(world.folder.path().join(name), bytes).expect("it is written");
    };
    write("page.html", b"<p>one\n<p>caf\xe9");
    write("film.vtt", b"\xff\xfeW\0E\0");
    for (name, wanted) in [
        ("page.html", "page.html: the document is not UTF-8: byte 13, on line 2"),
        ("film.vtt", "film.vtt: the document is UTF-16, not text in UTF-8; convert it"),
    ] {
        let ran = world.run(&world.make(&format!("{name} --yes")));
        assert!(ran.code == 2 && ran.err.contains(wanted), "{}", ran.err);
    }
    assert_eq!(world.fake.tally().calls, 0);
}

#[test]
fn some_chapters_of_a_book_are_translated_and_the_others_are_not_touched() {
    let container =
        "<container><rootfiles><rootfile full-path=\"book.opf\"/></rootfiles></container>";
    let item = |id: &str| {
        format!("<item id=\"{id}\" href=\"{id}.xhtml\" media-type=\"application/xhtml+xml\"/>")
    };
    let package = format!(
        "<package><metadata><dc:title>The river</dc:title><dc:language>en</dc:language></metadata><manifest>{}{}</manifest>\
         <spine><itemref idref=\"b\"/><itemref idref=\"a\"/></spine></package>",
        item("a"),
        item("b")
    );
    let page =
        |words: &str| both(&format!("<html lang=\"en\"><body><p>«{words}»</p></body></html>"));
    let (first, second) = (page("The river was quiet"), page("Nobody had seen boats"));
    let world = World::new(Settings::default());
    let files = [
        ("META-INF/container.xml", container),
        ("book.opf", &package),
        ("a.xhtml", &second.0),
        ("b.xhtml", &first.0),
    ];
    std::fs::write(world.folder.path().join("book.epub"), packed(&files)).expect("it is written");
    world.folder.write("book.txt", "The river");
    for (arguments, wanted) in [
        ("book.epub --chapters 3", "there is no chapter 3; the book has 2: 1 b.xhtml, 2 a.xhtml"),
        ("book.epub --chapters x", "\"x\" is not a selection of chapters; write it as in 3-5"),
        ("book.epub --chapters 2-1", "is not a selection of chapters"),
        ("book.txt --chapters 1", "only a book (.epub) has chapters"),
    ] {
        let ran = world.run(&world.make(&format!("{arguments} --yes")));
        assert!(ran.code == 2 && ran.err.contains(wanted), "{arguments}: {}", ran.err);
    }
    let ran = world.run(&world.make("book.epub --chapters 2- --yes"));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let written = std::fs::read(world.folder.path().join("book.fr.epub")).expect("it is written");
    let found: Vec<String> = entries(written).into_iter().map(|(_, text)| text).collect();
    let french = second.1.replace("\"en\"", "\"fr\"");
    assert_eq!(found, [container.to_owned(), package.clone(), french, first.0]);
}
