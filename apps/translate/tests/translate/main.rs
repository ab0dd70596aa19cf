//! Translation: documents, chunks, prompts, checks and plans need no network and no clock; jobs run on a fake provider.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod budget;
mod child_process;
mod chunks;
mod crash;
mod daily_quota;
mod drafts;
mod epub;
mod estimates;
mod formats;
mod harness;
mod human_translation;
mod job_store_suite;
mod job_stores;
mod markup;
mod pauses;
mod pipeline;
mod plans;
mod postgres_outages;
mod prompts;
mod providers;
mod quota;
mod quota_store_outages;
mod round_trip;
mod scripts;
mod useless_answers;
mod verification;
mod windows;
mod workers;

use tollgate_translate::{Document, Filling, Format, Language, Layout, Task};

fn read(source: &str, format: Format) -> Document {
    Document::read(source.as_bytes().to_vec(), format).unwrap()
}

fn texts(document: &Document) -> Vec<String> {
    document.segments().map(|segment| segment.text()).collect()
}

/// The document with each segment's text changed.
fn written(document: &Document, layout: Layout, change: impl Fn(&str) -> String) -> Vec<u8> {
    let changed: Vec<String> = texts(document).iter().map(|text| change(text)).collect();
    document.write(layout, |number| Filling::Text(&changed[number])).unwrap()
}

fn task(from: &str, to: &str) -> Task {
    Task::new(language(from), language(to))
}

fn language(tag: &str) -> Language {
    tag.parse().unwrap()
}

/// Letters turned by thirteen places outside of markers: a "translation" that shows every letter it was given, and is
/// undone by itself.
fn rot13(text: &str) -> String {
    let turn = |c: char, first: u8| char::from(first + (c as u8 - first + 13) % 26);
    let one = |c: char| match c {
        'a'..='z' => turn(c, b'a'),
        'A'..='Z' => turn(c, b'A'),
        other => other,
    };
    text.chars().map(one).collect()
}

/// About so many words of English, in paragraphs.
fn prose(words: usize) -> String {
    let lexicon = [
        "the",
        "river",
        "ran",
        "between",
        "old",
        "houses",
        "and",
        "nobody",
        "knew",
        "where",
        "it",
        "came",
        "from",
        "although",
        "people",
        "often",
        "talked",
        "about",
        "its",
        "source",
        "in",
        "winter",
        "evenings",
        "by",
        "firelight",
    ];
    let mut text = String::new();
    let mut state = 7_u64;
    for number in 0..words {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = lexicon[usize::try_from(state >> 33).unwrap() % lexicon.len()];
        let place = number % 96;
        let (first, rest) = word.split_at(1);
        let begins = matches!(place, 0 | 12 | 31 | 48 | 71);
        text.push_str(&if begins { first.to_uppercase() } else { first.to_owned() });
        text.push_str(rest);
        text.push_str(match place {
            95 => ".\n\n",
            11 | 30 | 47 | 70 => ". ",
            _ => " ",
        });
    }
    text
}
