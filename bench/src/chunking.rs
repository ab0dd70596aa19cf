//! Documents of a translation, read and cut into chunks: how fast, and what memory it takes beyond the document.

use std::time::Instant;

use tollgate_translate::chunk::{CHUNK_TOKENS, cut};
use tollgate_translate::{Document, Format};

use crate::measure::median;

/// What reading and cutting together must reach.
const MEGABYTES_PER_SECOND_MIN: f64 = 50.0;

/// What memory beyond a text may be, in percent of it. Subtitles are short lines with much around them, and the parser of Markdown
/// keeps a tree of its own: they are shown and not held to it.
const BEYOND_PERCENT_MAX: f64 = 10.0;

const TURNS: usize = 9;

const SENTENCE: &str = "The river ran between old houses, and nobody knew where it came from, although people talked. ";

pub(crate) fn run() {
    println!(
        "\n# Translation: reading a document and cutting it into chunks of {CHUNK_TOKENS} tokens\n"
    );
    let paragraph = format!("{}\n\n", SENTENCE.repeat(6).trim());
    let page = format!(
        "## A heading with `code`\n\n{}and [a *link*](https://example.com/path), **too**.\n\n- an item of a list\n- another one\n\n\
         ```\ncode that stays\n```\n\n{paragraph}",
        SENTENCE.repeat(5)
    );
    let chinese = format!("{}\n\n", "这条河在老房子之间流过，没有人知道它从哪里来。".repeat(8));
    let cue = "12\n00:01:02,000 --> 00:01:04,500\n<i>The river ran</i> between\nold houses, and nobody knew.\n\n";
    let cases = [
        ("text, paragraphs of 570 bytes", Format::Text, paragraph.as_str(), 16),
        ("text, paragraphs of 570 bytes", Format::Text, paragraph.as_str(), 64),
        ("text, one paragraph", Format::Text, SENTENCE, 16),
        ("text, Chinese", Format::Text, chinese.as_str(), 16),
        ("Markdown", Format::Markdown, page.as_str(), 16),
        ("subtitles", Format::Srt, cue, 16),
    ];
    for (name, format, piece, megabytes) in cases {
        let source = piece.repeat(megabytes * 1_000_000 / piece.len()).into_bytes();
        let mut chunks = 0;
        let rates = (0..TURNS).map(|_| {
            let bytes = source.clone();
            let started = Instant::now();
            let mut document = Document::read(bytes, format).expect("a document");
            chunks = cut(&mut document, CHUNK_TOKENS).expect("a size").len();
            source.len() as f64 / 1e6 / started.elapsed().as_secs_f64()
        });
        let rate = median(rates.collect());
        let bytes = source.clone();
        let memory = allocation_counter::measure(|| {
            let mut document = Document::read(bytes, format).expect("a document");
            cut(&mut document, CHUNK_TOKENS).expect("a size");
        });
        let beyond = 100.0 * memory.bytes_max as f64 / source.len() as f64;
        let verdict = |good: bool| if good { "ok" } else { "MISSED" };
        let held_to = if format == Format::Text {
            format!("<= {BEYOND_PERCENT_MAX} {}", verdict(beyond <= BEYOND_PERCENT_MAX))
        } else {
            String::new()
        };
        println!(
            "{name:<30} {megabytes:>3} MB {chunks:>6} chunks {rate:>7.0} MB/s >= {MEGABYTES_PER_SECOND_MIN} {:<7} \
             peak beyond it {beyond:>5.1} % {held_to}",
            verdict(MEGABYTES_PER_SECOND_MIN <= rate),
        );
    }
}
