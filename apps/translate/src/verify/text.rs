//! Checks of the language, the length and the numbers of a text.

use std::ops::RangeInclusive;

use whatlang::Detector;

use super::words::{Vocabulary, characters_besides};
use crate::document::Document;
use crate::language::Language;
use crate::prompt::Task;

/// The size of the sample for language detection, in bytes.
const SAMPLE_BYTES: usize = 20_000;

/// The fewest digits of a checked number: smaller ones are often written in words.
const DIGITS_MIN: usize = 2;

/// The fewest digits of a number that is hardly written in words, unless it is round.
const DIGITS_SURE_MIN: usize = 3;

/// Multipliers of Chinese, Japanese and Korean numbers.
const MYRIADS: &[char] = &['万', '萬', '億', '亿', '兆', '만', '억', '조', '千', '百'];

/// The zeros of scripts with digits of their own.
const ZEROS: [char; 8] = ['0', '٠', '۰', '०', '০', '๐', '０', '௦'];

/// The plausible lengths, in percent of the expected one, by the minimum length of the source. Short texts vary more.
const LENGTHS: [(u64, RangeInclusive<u64>); 3] = [(300, 40..=260), (120, 30..=350), (60, 20..=500)];

/// Detects the language of a document, if its text is long enough.
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
    Language::from_detected(info.lang())
}

/// Returns the actual and the expected length of `text` in characters, if they differ too much. Ignores words that source and
/// translation share, since those have the same length.
pub(super) fn wrong_length(task: &Task, source: &str, text: &str) -> Option<(u64, u64)> {
    let length = characters_besides(source, &Vocabulary::from_text(text));
    let (_, plausible) = LENGTHS.into_iter().find(|(from, _)| *from <= length)?;
    let expected = task.from.characters_in(&task.to, length).max(1);
    let characters = characters_besides(text, &Vocabulary::from_text(source));
    (!plausible.contains(&(characters * 100 / expected))).then_some((characters, expected))
}

/// A number that is missing from a translation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) number: String,
    /// Whether translators do not write it in words.
    pub(super) is_sure: bool,
}

/// Returns a number of `source` that is missing from `text`, in any digits and with any separators; prefers a certain one.
pub(super) fn lost_number(source: &str, text: &str) -> Option<Lost> {
    let kept = numbers(text, |c| ".,'’٫٬ \u{a0}\u{202f}\u{2009}:".contains(c));
    let kept: Vec<&str> = kept.iter().map(|number| number.digits.as_str()).collect();
    let (kept, shortened) = (kept.join("/"), text.contains(MYRIADS));
    let is_lost = |number: &Number| {
        DIGITS_MIN <= number.digits.len()
            && !kept.contains(number.digits.as_str())
            && !(shortened && number.digits.ends_with("00"))
    };
    let lost = numbers(source, |c| ".,'’٫٬".contains(c)).into_iter().filter(is_lost);
    let lost = lost.map(|number| Lost { is_sure: number.is_sure(), number: number.digits });
    lost.max_by_key(|lost| lost.is_sure)
}

/// A number in a text.
#[derive(Debug)]
struct Number {
    /// Without separators.
    digits: String,
    /// Whether a letter follows, as in 1990s.
    has_ending: bool,
}

impl Number {
    fn is_sure(&self) -> bool {
        let is_round = self.digits.trim_end_matches('0').len() < 2;
        DIGITS_SURE_MIN <= self.digits.len() && !is_round && !self.has_ending
    }
}

fn numbers(text: &str, is_separator: impl Fn(char) -> bool) -> Vec<Number> {
    let mut found: Vec<Number> = Vec::new();
    let mut gap = usize::MAX;
    for c in text.chars() {
        match digit(c) {
            Some(digit) => {
                match found.last_mut() {
                    Some(number) if gap < 2 => number.digits.push(digit),
                    _ => found.push(Number { digits: digit.to_string(), has_ending: false }),
                }
                gap = 0;
            }
            None if is_separator(c) => gap = gap.saturating_add(1),
            None => {
                if let Some(number) = found.last_mut().filter(|_| gap == 0) {
                    number.has_ending = c.is_alphabetic();
                }
                gap = usize::MAX;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_translators_write_in_words_is_not_surely_lost() {
        let rows = [
            ("12 disks", "zwölf Platten", Some(("12", false))),
            ("100 users and 2,000 files", "viele", Some(("2000", false))),
            ("in the 1990s", "in den Neunzigern", Some(("1990", false))),
            ("12 disks of 1984", "zwölf Platten", Some(("1984", true))),
            ("1,024 bytes", "1 024 Byte", None),
            ("About 1,500,000 people", "约150万人", None),
        ];
        for (source, text, wanted) in rows {
            let found = lost_number(source, text);
            let found = found.as_ref().map(|lost| (lost.number.as_str(), lost.is_sure));
            assert_eq!(found, wanted, "{source}");
        }
    }

    #[test]
    fn a_length_is_judged_without_what_is_kept() {
        let to = |tag: &str| Task::new(Language::english(), tag.parse().unwrap());
        let source = "See dpkg-reconfigure(8), update-alternatives(1), apt-listchanges(1) and debconf-set-selections(1) for it.";
        let text = "参见 dpkg-reconfigure(8)、update-alternatives(1)、apt-listchanges(1) 和 debconf-set-selections(1)。";
        assert_eq!(wrong_length(&to("zh"), source, text), None);
        let source = "The system administrator decides which of these services are started when the machine boots.";
        assert!(wrong_length(&to("zh"), source, "系统").is_some());
        assert_eq!(wrong_length(&to("zh"), source, "系统管理员决定机器启动时运行哪些服务。"), None);
    }
}
