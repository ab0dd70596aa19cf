//! R003.1: chunks of 3,500 tokens, 250 tokens of source before each, computed in advance, none lost and none twice.

use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, proptest};
use proptest::sample::select;
use tollgate_translate::chunk::{
    CHUNK_TOKENS, CHUNK_TOKENS_MIN, CONTEXT_TOKENS, cut, fitting_size, size_max,
};
use tollgate_translate::{Chunk, Document, Filling, Format, Layout, estimate};

use crate::{language, prose, read};

#[test]
fn r003_1_chunks_have_3500_tokens_and_250_of_context() {
    let mut document = read(&prose(30_000), Format::Text);
    let chunks = cut(&mut document, CHUNK_TOKENS).unwrap();
    assert_eq!((CHUNK_TOKENS, CONTEXT_TOKENS), (3_500, 250));
    let (last, full) = chunks.split_last().unwrap();
    assert!(full.iter().all(|chunk| (3_200..=3_500).contains(&chunk.tokens)), "{chunks:?}");
    assert_eq!(chunks[0].context(&document, CONTEXT_TOKENS), "");
    for chunk in full[1..].iter().chain([last]) {
        let context = chunk.context(&document, CONTEXT_TOKENS);
        let tokens = estimate::tokens(&context);
        assert!((200..=250).contains(&tokens), "{tokens}");
        // It is source text, directly precedes the chunk, and begins with a sentence.
        let before: Vec<String> =
            (0..chunk.segments.start).map(|number| document.segment(number).plain()).collect();
        let before = before.join("\n");
        assert!(before.ends_with(&context));
        let rest = before.strip_suffix(&context).unwrap();
        assert!(rest.trim_end().ends_with('.'), "{}", &rest[rest.len() - 40..]);
    }
}

#[test]
fn the_book_of_65000_words_has_24_to_31_chunks_and_that_of_400000_has_143_to_191() {
    for (words, chunks) in [(65_000, 24..=31), (400_000, 143..=191)] {
        let mut document = read(&prose(words), Format::Text);
        let found = cut(&mut document, CHUNK_TOKENS).unwrap().len();
        assert!(chunks.contains(&found), "{words} words make {found} chunks");
    }
}

#[test]
fn a_paragraph_that_is_too_long_is_cut_between_sentences_or_words() {
    let sentences = "A sentence of some length stands here, and it goes on. ".repeat(400);
    let words = "word ".repeat(6_000);
    let chinese = "这是一个很长的句子，它没有空格。".repeat(400);
    for (text, end) in [(&sentences, "."), (&words, "word"), (&chinese, "。")] {
        let mut document = read(text.trim(), Format::Text);
        let chunks = cut(&mut document, 1_000).unwrap();
        assert!(4 < chunks.len());
        assert!(chunks.iter().all(|chunk| chunk.tokens <= 1_000));
        for segment in document.segments() {
            assert!(
                segment.source().ends_with(end),
                "…{:?}",
                segment.source().chars().rev().take(20).collect::<String>()
            );
        }
        let bytes = document.write(Layout::Translation, |_| Filling::Source).unwrap();
        assert_eq!(bytes, text.trim().as_bytes());
    }
    let both = read(sentences.trim(), Format::Text);
    let mut document = both.clone();
    cut(&mut document, 1_000).unwrap();
    let shown: Vec<String> =
        document.segments().map(|segment| segment.text().to_uppercase()).collect();
    let bytes = document.write(Layout::Bilingual, |number| Filling::Text(&shown[number])).unwrap();
    let expected = format!("{}\n\n{}", sentences.trim(), sentences.trim().to_uppercase());
    assert!(bytes == expected.as_bytes(), "both halves are whole");
}

#[test]
fn what_has_no_place_to_be_cut_stays_whole() {
    let mut document = read(&"x".repeat(20_000), Format::Text);
    let chunks = cut(&mut document, 1_000).unwrap();
    assert_eq!(chunks.len(), 1);
    assert_eq!(chunks[0].tokens, 5_000);
}

#[test]
fn a_size_out_of_bounds_is_refused() {
    for size in [0, CHUNK_TOKENS_MIN - 1, 65_537] {
        let error = cut(&mut read("x", Format::Text), size).unwrap_err();
        assert!(error.to_string().contains("50 to 65536"), "{error}");
    }
}

#[test]
fn fit_rpd_brings_65000_words_to_ten_chunks_of_about_ten_thousand_tokens() {
    let mut document = read(&prose(65_000), Format::Text);
    let most = size_max(&language("en"), &language("fr"));
    let size = fitting_size(&document, 10, most).unwrap();
    assert!((9_000..=11_500).contains(&size), "{size}");
    assert_eq!(cut(&mut document, size).unwrap().len(), 10);
    assert_eq!(fitting_size(&document, 1, most), None);
    assert_eq!(fitting_size(&document, 1_000, most), Some(CHUNK_TOKENS));
}

#[test]
fn halves_go_down_to_single_segments() {
    let document = read(&prose(3_000), Format::Text);
    let mut open = vec![Chunk::from_segments(&document, 0..document.len())];
    let mut single = Vec::new();
    while let Some(chunk) = open.pop() {
        match chunk.halves(&document) {
            Some([first, second]) => {
                assert_eq!(first.segments.end, second.segments.start);
                assert_eq!(first.tokens + second.tokens, chunk.tokens);
                assert_eq!(first, Chunk::from_segments(&document, first.segments.clone()));
                let larger = document.segments().map(|segment| segment.tokens()).max().unwrap();
                assert!(first.tokens.abs_diff(second.tokens) <= 2 * larger);
                open.extend([second, first]);
            }
            None => single.push(chunk.segments),
        }
    }
    assert_eq!(single, (0..document.len()).map(|number| number..number + 1).collect::<Vec<_>>());
}

fn document() -> impl Strategy<Value = String> {
    let pieces = vec![
        "word ",
        "Sentence here. ",
        "\n",
        "\n\n",
        "https://ex.org/a ",
        "{name} ",
        "日本語の文。",
        "ยาวมาก ",
        "123 ",
        "e\u{301}",
        "!? ",
        "longwordwithoutanyspace",
        "⟦",
        "😀",
        "\t",
    ];
    (proptest::collection::vec(select(pieces), 0..400), 1..4_usize)
        .prop_map(|(pieces, times)| pieces.concat().repeat(times))
}

proptest! {
    /// R003.1: nothing lost, nothing twice, in order, and within the size, unless a chunk is one word without a place to cut it.
    #[test]
    fn r003_1_chunking_loses_nothing_and_keeps_its_size(source in document(), size in 50_u64..400) {
        let mut document = Document::read(source.clone().into(), Format::Text).unwrap();
        let before: String = document.segments().map(|segment| segment.plain()).collect();
        let chunks = cut(&mut document, size).unwrap();
        let after: String = document.segments().map(|segment| segment.plain()).collect();
        let letters = |text: &str| text.split_whitespace().collect::<String>();
        prop_assert_eq!(letters(&before), letters(&after));
        let mut next = 0;
        for chunk in &chunks {
            prop_assert_eq!(chunk.segments.start, next);
            next = chunk.segments.end;
            let whole = chunk.len() == 1 && {
                let text = document.segment(chunk.segments.start).source();
                !text.trim().contains(char::is_whitespace)
            };
            prop_assert!(chunk.tokens <= size || whole, "{} tokens of {size}", chunk.tokens);
        }
        prop_assert_eq!(next, document.len());
        let same = document.write(Layout::Translation, |_| Filling::Source).unwrap();
        prop_assert_eq!(same, source.clone().into_bytes());
        // The same again, from the bytes alone.
        let mut again = Document::read(source.into(), Format::Text).unwrap();
        prop_assert_eq!(cut(&mut again, size).unwrap(), chunks);
    }

    /// R003.1: context is at most what was asked for, source alone, and the same whatever became of other chunks.
    #[test]
    fn r003_1_context_is_the_source_before_a_chunk(source in document(), size in 50_u64..400, context in 0_u64..100) {
        let mut document = Document::read(source.into(), Format::Text).unwrap();
        for chunk in cut(&mut document, size).unwrap() {
            let text = chunk.context(&document, context);
            prop_assert!(estimate::tokens(&text) <= context);
            let before: Vec<String> = (0..chunk.segments.start).map(|number| document.segment(number).plain()).collect();
            prop_assert!(before.join("\n").trim_end().ends_with(&text));
        }
    }
}
