//! Documents of a translation, read and cut into chunks: how fast, and what memory it takes beyond the document.

use std::io::{Cursor, Write};
use std::time::Instant;

use tollgate_translate::chunk::{CHUNK_TOKENS, cut};
use tollgate_translate::{Document, Format};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::measure::median;

/// What reading and cutting together must reach.
const MEGABYTES_PER_SECOND_MIN: f64 = 50.0;

/// The sizes of the documents, in megabytes.
const SIZES: [usize; 2] = [16, 64];

/// What memory may grow by when a document grows, in percent of what it grows by: the list of chunks has 24 bytes for some
/// 14 KB of text, a window 12 bytes for 64 KiB, and an entry of a book some hundred bytes in the directory of its archive.
const GROWTH_PERCENT_MAX: f64 = 1.0;

/// What memory may be beyond the larger document, in KiB. Tables of windows, and the tree that the parser of Markdown makes of
/// one, do not grow with the document.
const BEYOND_KIB_MAX: f64 = 1_024.0;

/// Makes a document of so many bytes.
type Make<'a> = &'a dyn Fn(usize) -> Vec<u8>;

const TURNS: usize = 9;

const SENTENCE: &str = "The river ran between old houses, and nobody knew where it came from, although people talked. ";

pub(crate) fn run() {
    println!(
        "\n# Translation: reading a document and cutting it into chunks of {CHUNK_TOKENS} tokens\n"
    );
    let paragraph = format!("{}\n\n", SENTENCE.repeat(6).trim());
    let line = format!("{}\n", SENTENCE.repeat(6).trim());
    let page = format!(
        "## A heading with `code`\n\n{}and [a *link*](https://example.com/path), **too**.\n\n- an item of a list\n- another one\n\n\
         ```\ncode that stays\n```\n\n{paragraph}",
        SENTENCE.repeat(5)
    );
    let referring = format!("{page}See [the map] and a note[^1].\n\n");
    let chinese = format!("{}\n\n", "这条河在老房子之间流过，没有人知道它从哪里来。".repeat(8));
    let cue = "12\n00:01:02,000 --> 00:01:04,500\n<i>The river ran</i> between\nold houses, and nobody knew.\n\n";
    let repeated = |piece: &str, end: &str, bytes: usize| {
        (piece.repeat(bytes / piece.len()) + end).into_bytes()
    };
    let defined = "[the map]: https://example.com/map\n\n[^1]: A note.\n";
    let cases: [(&str, Format, Make<'_>); 8] = [
        ("text, paragraphs of 570 bytes", Format::Text, &|bytes| repeated(&paragraph, "", bytes)),
        ("text, a paragraph a line", Format::Text, &|bytes| repeated(&line, "", bytes)),
        ("text, one paragraph", Format::Text, &|bytes| repeated(SENTENCE, "", bytes)),
        ("text, Chinese", Format::Text, &|bytes| repeated(&chinese, "", bytes)),
        ("Markdown", Format::Markdown, &|bytes| repeated(&page, "", bytes)),
        ("Markdown, defined at its end", Format::Markdown, &|bytes| {
            repeated(&referring, defined, bytes)
        }),
        ("subtitles", Format::Srt, &|bytes| repeated(cue, "", bytes)),
        ("book, pages of 40 KB", Format::Epub, &book),
    ];
    for (name, format, make) in cases {
        let beyond =
            SIZES.map(|megabytes| case(name, format, &make(megabytes * 1_000_000), megabytes));
        let growth = (beyond[1] - beyond[0]) * 1_024.0 / ((SIZES[1] - SIZES[0]) * 10_000) as f64;
        println!(
            "{:<30} memory grows by {growth:.2} % <= {GROWTH_PERCENT_MAX} {}, to {:.0} KiB <= {BEYOND_KIB_MAX} {}",
            "",
            verdict(growth <= GROWTH_PERCENT_MAX),
            beyond[1],
            verdict(beyond[1] <= BEYOND_KIB_MAX),
        );
    }
}

fn verdict(good: bool) -> &'static str {
    if good { "ok" } else { "MISSED" }
}

/// Prints how fast a document is read and cut; returns the peak of memory beyond it, in KiB.
fn case(name: &str, format: Format, source: &[u8], megabytes: usize) -> f64 {
    let (mut chunks, mut text) = (0, 0);
    let rates = (0..TURNS).map(|_| {
        let bytes = source.to_vec();
        let started = Instant::now();
        let mut document = Document::read(bytes, format).expect("a document");
        chunks = cut(&mut document, CHUNK_TOKENS).expect("a size").len();
        text = document.source_bytes();
        text as f64 / 1e6 / started.elapsed().as_secs_f64()
    });
    let rate = median(rates.collect());
    let bytes = source.to_vec();
    let memory = allocation_counter::measure(|| {
        let mut document = Document::read(bytes, format).expect("a document");
        cut(&mut document, CHUNK_TOKENS).expect("a size");
    });
    // The text of a book is unpacked while it is read; that of any other document was there before.
    let unpacked = if format == Format::Epub { text } else { 0 };
    let beyond = (memory.bytes_max as f64 - unpacked as f64) / 1_024.0;
    println!(
        "{name:<30} {megabytes:>3} MB {chunks:>6} chunks {rate:>7.0} MB/s >= {MEGABYTES_PER_SECOND_MIN} {:<7} peak beyond it \
         {beyond:>6.0} KiB",
        verdict(MEGABYTES_PER_SECOND_MIN <= rate),
    );
    beyond
}

/// A book with so many bytes of text.
fn book(bytes: usize) -> Vec<u8> {
    let paragraph = format!("<p>{}and <em>more</em>&nbsp;of it.</p>\n", SENTENCE.repeat(5));
    let body = paragraph.repeat(40_000 / paragraph.len());
    let page = format!("<html><head><title>A page</title></head><body>{body}</body></html>");
    let pages = bytes / page.len();
    let item = |number: usize| {
        format!(
            "<item id=\"p{number}\" href=\"p{number}.xhtml\" media-type=\"application/xhtml+xml\"/>"
        )
    };
    let items: String = (0..pages).map(item).collect();
    let spine: String =
        (0..pages).map(|number| format!("<itemref idref=\"p{number}\"/>")).collect();
    let package = format!("<package><manifest>{items}</manifest><spine>{spine}</spine></package>");
    let container = "<container><rootfiles><rootfile full-path=\"b.opf\"/></rootfiles></container>";
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let packed = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    let mut add = |name: &str, text: &str| {
        zip.start_file(name, packed).expect("a name");
        zip.write_all(text.as_bytes()).expect("room");
    };
    add("META-INF/container.xml", container);
    add("b.opf", &package);
    (0..pages).for_each(|number| add(&format!("p{number}.xhtml"), &page));
    zip.finish().expect("an archive").into_inner()
}
