//! EPUB: the book is packed in the test, so that every entry is known.

use std::io::{Cursor, Read, Write};

use proptest::prelude::{Strategy, any, prop_assert_eq, proptest};
use tollgate_translate::{Document, Filling, Format, Layout};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::{rot13, texts, written};

const CONTAINER: &str =
    "<container><rootfiles><rootfile full-path=\"OEBPS/book.opf\"/></rootfiles></container>";
const PACKAGE: &str = "<package><manifest>\
    <item id=\"ncx\" href=\"toc.ncx\" media-type=\"application/x-dtbncx+xml\"/>\
    <item id=\"two\" href=\"text/b%20b.xhtml\" media-type=\"application/xhtml+xml\"/>\
    <item id=\"one\" href=\"text/a.xhtml\" media-type=\"application/xhtml+xml\"/>\
    <item id=\"css\" href=\"s.css\" media-type=\"text/css\"/>\
    </manifest><spine toc=\"ncx\"><itemref idref=\"one\"/><itemref idref=\"two\"/></spine></package>";
const INDEX: &str =
    "<ncx><docTitle><text>The Book</text></docTitle><meta content=\"never\"/></ncx>";

fn page(body: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<html xmlns=\"http://www.w3.org/1999/xhtml\">\n\
         <head><title>Page</title><style>p {{ x: y }}</style></head>\n<body>{body}</body></html>\n"
    )
}

fn book(one: &str, two: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let entries = [
        ("META-INF/container.xml", CONTAINER),
        ("OEBPS/book.opf", PACKAGE),
        ("OEBPS/toc.ncx", INDEX),
        ("OEBPS/s.css", "p { color: red }"),
        ("OEBPS/text/a.xhtml", one),
        ("OEBPS/text/b b.xhtml", two),
    ];
    packed(entries.iter().chain(more))
}

fn packed<'a>(entries: impl Iterator<Item = &'a (&'a str, &'a str)>) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    let packed = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    zip.start_file("mimetype", stored).unwrap();
    zip.write_all(b"application/epub+zip").unwrap();
    for (name, text) in entries {
        zip.start_file(*name, packed).unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn entries(bytes: &[u8]) -> Vec<(String, CompressionMethod, String)> {
    let mut zip = ZipArchive::new(Cursor::new(bytes.to_vec())).unwrap();
    let count = zip.len();
    let entry = |number| {
        let mut file = zip.by_index(number).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        (file.name().unwrap().into_owned(), file.compression(), text)
    };
    (0..count).map(entry).collect()
}

const BODY: &str = "<h1 class=\"t\">Chapter&nbsp;One</h1>\n<p>He said <em>hello &amp; <b>goodbye</b></em>,\n   \
    twice<br/>and <code>ls -l</code> <!-- note -->more<img src=\"i.png\" alt=\"a view\"/>.</p>\n<pre>keep this</pre>\n\
    <p translate=\"no\">Keep</p><ul><li>one</li><li><p>two</p></li></ul><hr/><p>1234</p>";

#[test]
fn r003_5_a_book_is_read_in_its_order_and_only_text_changes() {
    let one = page(BODY);
    let bytes = book(&one, &page("<p>Second &lt;page&gt;</p>"), &[]);
    let document = Document::read(bytes.clone(), Format::Epub).unwrap();
    let expected = [
        "Page",
        "Chapter⟦1⟧One",
        "a view",
        "He said ⟦1⟧hello ⟦2⟧ ⟦3⟧goodbye⟦4⟧⟦5⟧,\ntwice⟦6⟧and ⟦7⟧ ⟦8⟧more⟦9⟧.",
        "one",
        "two",
        "Page",
        "Second ⟦1⟧page⟦2⟧",
        "The Book",
    ];
    assert_eq!(texts(&document), expected);
    let after = entries(&written(&document, Layout::Translation, rot13));
    let changed = one
        .replace("Page", "Cntr")
        .replace("Chapter&nbsp;One", "Puncgre&nbsp;Bar")
        .replace("He said", "Ur fnvq")
        .replace("hello", "uryyb")
        .replace("goodbye", "tbbqolr")
        .replace("twice", "gjvpr")
        .replace("and <", "naq <")
        .replace("more", "zber")
        .replace("a view", "n ivrj")
        .replace(">one<", ">bar<")
        .replace(">two<", ">gjb<");
    for ((name, method, text), before) in after.iter().zip(entries(&bytes)) {
        assert_eq!((name, method), (&before.0, &before.1));
        match name.as_str() {
            "OEBPS/text/a.xhtml" => assert_eq!(*text, changed),
            "OEBPS/text/b b.xhtml" => assert!(text.contains("<p>Frpbaq &lt;cntr&gt;</p>")),
            "OEBPS/toc.ncx" => assert_eq!(*text, INDEX.replace("The Book", "Gur Obbx")),
            _ => assert_eq!(*text, before.2),
        }
    }
    let both = entries(&written(&document, Layout::Bilingual, rot13));
    assert!(
        both[5].2.contains("<li>one<br/>bar</li>")
            && both[5].2.contains("<title>Page / Cntr</title>")
    );
}

/// The title of the book is translated, and the book says which language it is in; a quotation and everything else keep theirs.
#[test]
fn r003_5_a_book_says_that_it_is_in_the_language_it_was_translated_into() {
    let metadata = "<package xml:lang='en' version=\"3.0\"><metadata><dc:title id=\"t\">The Book</dc:title>\
        <dc:creator>Somebody</dc:creator><dc:language> en-GB </dc:language><dc:language>la</dc:language></metadata>";
    let package = PACKAGE.replace("<package>", metadata);
    let index = INDEX.replace("<ncx>", "<ncx xml:lang=\"en\">");
    let one = page("<p>He said <i lang=\"la\">et tu</i>.</p>")
        .replace("<html ", "<html class = 'lang=\"x\"' lang=\"en\" xml:lang = 'en' ");
    let two = page("<p>1234</p>").replace("<title>Page</title>", "");
    let list = [
        ("META-INF/container.xml", CONTAINER),
        ("OEBPS/book.opf", &package),
        ("OEBPS/toc.ncx", &index),
        ("OEBPS/s.css", ""),
        ("OEBPS/text/a.xhtml", &one),
        ("OEBPS/text/b b.xhtml", &two),
    ];
    let bytes = packed(list.iter());
    let document = Document::read(bytes.clone(), Format::Epub).unwrap();
    assert_eq!(texts(&document), ["Page", "He said ⟦1⟧et tu⟦2⟧.", "The Book", "The Book"]);
    let french = "fr-CA".parse().unwrap();
    let fill =
        |number: usize| if number < 3 { Filling::Source } else { Filling::Text("Le <Livre>") };
    let after = entries(&document.write_in(&french, Layout::Translation, fill).unwrap());
    let text = |name: &str| &after.iter().find(|(entry, ..)| entry == name).unwrap().2;
    let package = package
        .replace("'en'", "'fr-CA'")
        .replace("en-GB", "fr-CA")
        .replace("The Book", "Le &lt;Livre&gt;");
    assert_eq!(*text("OEBPS/book.opf"), package);
    assert_eq!(*text("OEBPS/toc.ncx"), index.replace("\"en\"", "\"fr-CA\""));
    let changed = one.replace("lang=\"en\"", "lang=\"fr-CA\"").replace("= 'en'", "= 'fr-CA'");
    assert_eq!((text("OEBPS/text/a.xhtml"), text("OEBPS/text/b b.xhtml")), (&changed, &two));
    // With both languages in it, or without a change, it says what it said.
    let same = document.write_in(&french, Layout::Bilingual, |_| Filling::Source).unwrap();
    assert_eq!(entries(&same), entries(&bytes));
}

#[test]
fn a_book_that_cannot_be_translated_says_why() {
    let good = page("<p>x</p>");
    let encryption = "<encryption><EncryptedData><CipherData><CipherReference URI=\"OEBPS/text/a.xhtml\"/>\
        </CipherData></EncryptedData></encryption>";
    let rows = [
        (b"not a zip".to_vec(), "the document is not an EPUB"),
        (
            book(&good, &good, &[("META-INF/encryption.xml", encryption)]),
            "the book is copy-protected",
        ),
        (book("<p>\n<b>x</p>", &good, &[]), "OEBPS/text/a.xhtml, line 2: "),
    ];
    for (bytes, message) in rows {
        let error = Document::read_strict(bytes, Format::Epub).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
    }
    let fonts = encryption.replace("text/a.xhtml", "font.otf");
    assert!(
        Document::read(book(&good, &good, &[("META-INF/encryption.xml", &fonts)]), Format::Epub)
            .is_ok()
    );
}

/// A book with a page that is not well-formed, one that is not UTF-8 and one that is missing is translated all the same.
#[test]
fn r003_5_a_page_that_is_ill_formed_is_read_as_browsers_do_and_named() {
    let soup = page("<p>One<br>two <b>three</p>\n<p>&nosuch; four");
    let package = PACKAGE.replace(
        "</manifest>",
        "<item id=\"x\" href=\"gone.xhtml\" media-type=\"application/xhtml+xml\"/></manifest>",
    );
    let good = page("<p>Good</p>");
    let list = [
        ("META-INF/container.xml", CONTAINER),
        ("OEBPS/book.opf", &package),
        ("OEBPS/toc.ncx", "<ncx><text>Kept</ncx>"),
        ("OEBPS/s.css", ""),
        ("OEBPS/text/a.xhtml", &soup),
        ("OEBPS/text/b b.xhtml", &good),
    ];
    let bytes = packed(list.iter());
    let document = Document::read(bytes.clone(), Format::Epub).unwrap();
    assert_eq!(texts(&document), ["Page", "One⟦1⟧two ⟦2⟧three", "&nosuch; four", "Page", "Good"]);
    let warnings: Vec<String> = document.warnings().iter().map(ToString::to_string).collect();
    let expected = [
        ("OEBPS/book.opf names the page OEBPS/gone.xhtml", "it is left out"),
        ("OEBPS/text/a.xhtml, line 4: ", "it is read as browsers do"),
        ("OEBPS/toc.ncx, line 1: ", "it is kept as it is"),
    ];
    assert_eq!(warnings.len(), expected.len(), "{warnings:?}");
    for (warnings, (problem, done)) in warnings.iter().zip(expected) {
        assert!(warnings.starts_with(problem) && warnings.ends_with(done), "{warnings}");
    }
    assert!(Document::read_strict(bytes.clone(), Format::Epub).is_err());
    let same = written(&document, Layout::Translation, str::to_owned);
    assert_eq!(entries(&same), entries(&bytes));
    let after = entries(&written(&document, Layout::Translation, rot13));
    let changed = soup
        .replace("Page", "Cntr")
        .replace("One<br>two <b>three", "Bar<br>gjb <b>guerr")
        .replace("&nosuch; four", "&amp;abfhpu; sbhe");
    assert_eq!(after[5].2, changed);
    assert_eq!(after[3].2, "<ncx><text>Kept</ncx>");
}

/// A book into Arabic is turned from the other side, and its pages are read from the right.
#[test]
fn r003_5_a_book_into_arabic_has_its_direction() {
    let page = page("<p>Words</p>").replace("<html ", "<html lang=\"en\" ");
    let package =
        PACKAGE.replace("<package>", "<package><metadata><dc:language>en</dc:language></metadata>");
    let list = [
        ("META-INF/container.xml", CONTAINER),
        ("OEBPS/book.opf", &package),
        ("OEBPS/toc.ncx", INDEX),
        ("OEBPS/s.css", ""),
        ("OEBPS/text/a.xhtml", &page),
        ("OEBPS/text/b b.xhtml", &page),
    ];
    let document = Document::read(packed(list.iter()), Format::Epub).unwrap();
    let arabic = "ar".parse().unwrap();
    let bytes = document.write_in(&arabic, Layout::Translation, |_| Filling::Source).unwrap();
    let after = entries(&bytes);
    assert_eq!(after[5].2, page.replace("<html lang=\"en\"", "<html dir=\"rtl\" lang=\"ar\""));
    let spine = "<spine page-progression-direction=\"rtl\" toc";
    assert_eq!(after[2].2, package.replace(">en<", ">ar<").replace("<spine toc", spine));
    let back = Document::read(bytes, Format::Epub).unwrap();
    let english = "en".parse().unwrap();
    let after =
        entries(&back.write_in(&english, Layout::Translation, |_| Filling::Source).unwrap());
    assert!(after[2].2.contains("<spine page-progression-direction=\"ltr\""), "{}", after[2].2);
    assert!(after[5].2.contains("<html dir=\"ltr\" lang=\"en\""), "{}", after[5].2);
}

/// A page is a window of its own. There are more than are kept, and some have no text.
#[test]
fn r003_5_a_book_of_many_pages_is_read_in_any_order() {
    let pages: Vec<(String, String)> = (0..40)
        .map(|number| {
            let text = match number % 5 {
                0 => String::new(),
                1 => format!("\u{feff}{}", page(&format!("<p>Marked {number}</p>"))),
                _ => page(&format!("<p>Page {number}</p><p>It has <b>two</b> paragraphs.</p>")),
            };
            (format!("OEBPS/p{number}.xhtml"), text)
        })
        .collect();
    // The order of reading is not that of the manifest.
    let numbers = || (0..40).map(|place| place * 7 % 40);
    let media = "media-type=\"application/xhtml+xml\"";
    let item = |number: usize| format!("<item id=\"i{number}\" href=\"p{number}.xhtml\" {media}/>");
    let items: String = (0..40).map(item).collect();
    let spine: String = numbers().map(|number| format!("<itemref idref=\"i{number}\"/>")).collect();
    let package = format!("<package><manifest>{items}</manifest><spine>{spine}</spine></package>");
    let mut all = vec![("META-INF/container.xml", CONTAINER), ("OEBPS/book.opf", package.as_str())];
    all.extend(pages.iter().map(|(name, text)| (name.as_str(), text.as_str())));
    let bytes = packed(all.iter());
    let document = Document::read(bytes.clone(), Format::Epub).unwrap();
    let found = texts(&document);
    let expected: Vec<String> = numbers()
        .flat_map(|number| match number % 5 {
            0 => vec![],
            1 => vec!["Page".to_owned(), format!("Marked {number}")],
            _ => vec![
                "Page".to_owned(),
                format!("Page {number}"),
                "It has ⟦1⟧two⟦2⟧ paragraphs.".to_owned(),
            ],
        })
        .collect();
    assert_eq!(found, expected);
    for place in (0..found.len()).map(|place| place * 31 % found.len()) {
        assert_eq!(document.segment(place).text(), found[place]);
    }
    let same = written(&document, Layout::Translation, str::to_owned);
    assert_eq!(entries(&same), entries(&bytes));
    let there = Document::read(written(&document, Layout::Translation, rot13), Format::Epub);
    let there: Vec<String> = texts(&there.unwrap()).iter().map(|text| rot13(text)).collect();
    assert_eq!(there, found);
}

fn inline() -> impl Strategy<Value = String> {
    let leaf = proptest::sample::select(vec![
        "word",
        " ",
        "two words",
        "<br/>",
        "&amp;",
        "&#8217;",
        "\n  ",
        "<!-- c -->",
        "<code>x y</code>",
        "12",
        "。",
        "http://a.org/b",
        "<span/>",
        "{p}",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(3, 24, 5, |inner| {
        let names = proptest::sample::select(vec!["em", "b", "a href=\"u\"", "span class='c'"]);
        (names, proptest::collection::vec(inner, 0..5)).prop_map(|(name, parts)| {
            let close = name.split(' ').next().unwrap();
            format!("<{name}>{}</{close}>", parts.concat())
        })
    })
}

fn body() -> impl Strategy<Value = String> {
    let blocks = proptest::sample::select(vec!["p", "h2", "li", "td", "div", "blockquote", "pre"]);
    let block = (blocks, proptest::collection::vec(inline(), 0..6), any::<bool>());
    let block = block.prop_map(|(name, parts, bare)| {
        let inner = parts.concat();
        if bare {
            format!("{inner}<{name}>{inner}</{name}>")
        } else {
            format!("<{name}>{inner}</{name}>\n")
        }
    });
    proptest::collection::vec(block, 0..5).prop_map(|blocks| blocks.concat())
}

proptest! {
    /// With the same text every entry has the same bytes; with another text the tags are the same, and turning it back
    /// gives the first text again.
    #[test]
    fn r003_5_a_book_round_trips(one in body(), two in body()) {
        let bytes = book(&page(&one), &page(&two), &[]);
        let document = Document::read(bytes.clone(), Format::Epub).unwrap();
        prop_assert_eq!(entries(&written(&document, Layout::Translation, str::to_owned)), entries(&bytes));
        let there = written(&document, Layout::Translation, rot13);
        let again = Document::read(there, Format::Epub).unwrap();
        let all: Vec<String> = texts(&document).iter().map(|text| rot13(text)).collect();
        prop_assert_eq!(texts(&again), all);
        let back = Document::read(written(&again, Layout::Translation, rot13), Format::Epub).unwrap();
        prop_assert_eq!(texts(&back), texts(&document));
    }
}
