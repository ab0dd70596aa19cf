//! What can be said about a text without understanding it: its length, its numbers, its language.

use whatlang::Detector;

use crate::document::Document;
use crate::language::Language;

/// From how many letters on a language is recognised well enough to act on it.
const DETECTED_LETTERS_MIN: usize = 120;

/// How much of a document is looked at to find its language, in bytes.
const SAMPLE_BYTES: usize = 20_000;

/// How many words a segment must have that are no names, before it can count as untranslated.
const PLAIN_WORDS_MIN: usize = 3;

/// Letters of scripts without case that count as one word for that.
const LETTERS_PER_WORD: usize = 3;

/// The fewest digits of a number that must be found again: smaller ones are often written in words.
const DIGITS_MIN: usize = 2;

/// Signs by which Chinese, Japanese and Korean shorten large numbers.
const MYRIADS: &[char] = &['万', '萬', '億', '亿', '兆', '만', '억', '조', '千', '百'];

/// The zeros of scripts that write digits of their own.
const ZEROS: [char; 8] = ['0', '٠', '۰', '०', '০', '๐', '０', '௦'];

/// The language of the document, if its text is long enough to tell.
#[must_use]
pub fn detect(document: &Document) -> Option<Language> {
    let mut sample = String::new();
    for segment in document.segments() {
        sample.push_str(&segment.plain());
        sample.push('\n');
        if SAMPLE_BYTES < sample.len() {
            break;
        }
    }
    let info = Detector::new().detect(&sample).filter(whatlang::Info::is_reliable)?;
    Language::of_detected(info.lang())
}

pub(super) fn characters(text: &str) -> u64 {
    text.chars().filter(|c| !c.is_whitespace()).count() as u64
}

/// The language of `text` if it is the source's, or English, and not the target's.
pub(super) fn other_language(from: &Language, to: &Language, text: &str) -> Option<Language> {
    if text.chars().filter(|c| c.is_alphabetic()).take(DETECTED_LETTERS_MIN).count()
        < DETECTED_LETTERS_MIN
    {
        return None;
    }
    // Among two or three languages a short text is told apart well; among seventy it is not.
    let target = to.detected()?;
    let mut candidates = vec![target, from.detected()?];
    candidates.extend(Language::english().detected());
    let info = Detector::with_allowlist(candidates).detect(text)?;
    let found = Some(info).filter(|info| info.lang() != target && info.is_reliable())?;
    Language::of_detected(found.lang())
}

/// Whether `text` has the words of `source`, and they are more than names and numbers.
pub(super) fn is_untranslated(source: &str, text: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        words.map(str::to_lowercase).collect()
    };
    plain_words(source) >= PLAIN_WORDS_MIN && words(source) == words(text)
}

/// How many words begin with a small letter; letters without case count by the group.
fn plain_words(text: &str) -> usize {
    let small = |word: &&str| word.chars().count() > 1 && word.starts_with(char::is_lowercase);
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(small).count();
    let without_case = |c: &char| c.is_alphabetic() && !c.is_lowercase() && !c.is_uppercase();
    words + text.chars().filter(without_case).count() / LETTERS_PER_WORD
}

/// The first number of `source` that `text` does not have, in any digits and with any separators.
pub(super) fn missing_number(source: &str, text: &str) -> Option<String> {
    let kept = numbers(text, |c| ".,'’٫٬ \u{a0}\u{202f}\u{2009}:".contains(c)).join("/");
    let shortened = text.contains(MYRIADS);
    let is_lost = |number: &String| {
        DIGITS_MIN <= number.len()
            && !kept.contains(number.as_str())
            && !(shortened && number.ends_with("00"))
    };
    numbers(source, |c| ".,'’٫٬".contains(c)).into_iter().find(is_lost)
}

/// The digits of each number in `text`, without the separators inside it.
fn numbers(text: &str, is_separator: impl Fn(char) -> bool) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut gap = usize::MAX;
    for c in text.chars() {
        match digit(c) {
            Some(digit) => {
                match found.last_mut() {
                    Some(number) if gap < 2 => number.push(digit),
                    _ => found.push(digit.to_string()),
                }
                gap = 0;
            }
            None if is_separator(c) => gap = gap.saturating_add(1),
            None => gap = usize::MAX,
        }
    }
    found
}

fn digit(c: char) -> Option<char> {
    let value = ZEROS.iter().find_map(|zero| {
        let value = u32::from(c).checked_sub(u32::from(*zero))?;
        (value < 10).then_some(value)
    })?;
    char::from_digit(value, 10)
}
