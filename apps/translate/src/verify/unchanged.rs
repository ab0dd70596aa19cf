//! Text that came back unchanged: legitimately, or untranslated.
//!
//! Commands, names, numbers and quotations in another language may stay. The rules err on that side, since prose that wrongly stays is
//! one paragraph, and a command that is wrongly requested again is a call for each chunk of a manual.

use whatlang::Detector;

use super::words::is_function_word;
use crate::language::Language;
use crate::prompt::Task;
use crate::script::{self, Script};

/// The fewest ordinary words of a text that must be translated.
const PLAIN_WORDS_MIN: usize = 3;

/// Letters of scripts without case that count as one word.
const LETTERS_PER_WORD: usize = 3;

/// The most words of a command without a function word.
const COMMAND_WORDS_MAX: usize = 8;

/// The letters needed to detect another language.
const DETECTED_LETTERS_MIN: usize = 40;

/// Characters of paths, options, variables and operators that are rare in prose.
const CODE_SIGNS: &[char] = &[
    '/', '\\', '_', '=', '<', '>', '|', '{', '}', '[', ']', '*', '$', '#', '@', '~', '^', '`', '+',
];

/// The prompts of shells and interpreters.
const PROMPTS: &[&str] = &["$", "#", "%", ">", ">>>", "...", "PS>"];

/// Returns whether both texts have the same words.
pub(super) fn has_same_words(source: &str, text: &str) -> bool {
    let words = |text| script::words(text).map(|word| word.text.to_lowercase());
    words(source).eq(words(text))
}

/// Returns whether a translation may leave `source` unchanged.
pub(super) fn may_stay(task: &Task, source: &str) -> bool {
    let words = script::words(source).count();
    let plain = plain_words(source);
    plain < PLAIN_WORDS_MIN
        || plain * 2 < words
        || is_code(source)
        || is_command(task, source)
        || is_in_another_language(task, source)
}

/// Counts words that begin with a small letter; letters without case count in groups.
fn plain_words(text: &str) -> usize {
    let words = script::words(text).filter(script::Word::is_plain).count();
    let without_case = |c: &char| c.is_alphabetic() && !c.is_lowercase() && !c.is_uppercase();
    words + text.chars().filter(without_case).count() / LETTERS_PER_WORD
}

/// Returns whether `text` begins with a shell prompt, or has at least a third of paths, options, numbers and operators. Ignores quoted
/// strings.
fn is_code(text: &str) -> bool {
    let outside = without_strings(text);
    let mut pieces = outside.split_whitespace();
    let Some(first) = pieces.next() else { return true };
    let is_prompt = PROMPTS.contains(&first)
        || (first.contains(['@', ':', '\\']) && first.ends_with(['$', '#', '>']));
    let rest = pieces.clone().count();
    if is_prompt && 0 < rest {
        return true;
    }
    let coded = std::iter::once(first).chain(pieces).filter(|piece| is_code_piece(piece)).count();
    rest < 3 * coded
}

fn without_strings(text: &str) -> String {
    let mut outside = String::new();
    let mut inside = None;
    for letter in text.chars() {
        match inside {
            Some(quote) if letter == quote => inside = None,
            Some(_) => {}
            None if letter == '"' => inside = Some(letter),
            None => outside.push(letter),
        }
    }
    outside
}

fn is_code_piece(piece: &str) -> bool {
    let inner = piece.trim_matches(|c: char| ",.;:!?\"'()“”‘’".contains(c));
    let mut letters = inner.chars().peekable();
    let begins_as_option =
        piece.starts_with('-') && piece[1..].starts_with(|c: char| c.is_alphanumeric() || c == '-');
    let is_number = inner.starts_with(|c: char| c.is_ascii_digit());
    // A dot, a colon or a bracket inside, as in `a.txt`, `host:80` and `printf(3)`, or a capital after a small letter.
    let mut joins = false;
    while let Some(letter) = letters.next() {
        let next = letters.peek().copied();
        joins |=
            ".:(".contains(letter) && next.is_some_and(char::is_alphanumeric) && 3 < inner.len();
        joins |= letter.is_lowercase()
            && next.is_some_and(|next| next.is_uppercase() || next.is_ascii_digit());
    }
    begins_as_option
        || is_number
        || joins
        || inner.contains(CODE_SIGNS)
        || piece == "&&"
        || piece.ends_with("()")
}

/// Returns whether `text` has few words, none of them a function word, and neither begins nor ends like a sentence.
fn is_command(task: &Task, text: &str) -> bool {
    let is_sentence = text.starts_with(char::is_uppercase)
        || text.trim_end().ends_with(['.', '!', '?', ':', '…', '。']);
    let function_words = script::words(text).filter(|word| is_function_word(word.text)).count();
    let words = text.split_whitespace().count();
    task.from.is_same_as(&Language::english())
        && !is_sentence
        && function_words == 0
        && words <= COMMAND_WORDS_MAX
}

/// Returns whether `text` is in the target language, in Latin, or in a script foreign to the source language.
fn is_in_another_language(task: &Task, text: &str) -> bool {
    let scripts = script::scripts_of(&task.from);
    let letters = text.chars().filter_map(Script::from_char);
    let (own, other): (Vec<Script>, Vec<Script>) =
        letters.partition(|script| scripts.contains(script));
    if own.len() < other.len() {
        return true;
    }
    let (Some(from), Some(to)) = (task.from.detected(), task.to.detected()) else { return false };
    let info = Detector::with_allowlist(vec![from, to, whatlang::Lang::Lat]).detect(text);
    DETECTED_LETTERS_MIN <= own.len()
        && info.is_some_and(|info| info.lang() != from && info.is_reliable())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_leaves_code_names_numbers_and_quotations() {
        let task = Task::new("en".parse().unwrap(), "de".parse().unwrap());
        for left in [
            "$ dpkg -l",
            "# apt-get update",
            "root@host:~# reboot the machine now",
            "sudo systemctl restart ssh",
            "apt-get install build-essential git curl",
            "ls -la /etc/apt",
            "for i in *.txt; do cp $i /tmp; done",
            "git commit -m \"Fix the typo in the manual\"",
            "mount -t ext4 /dev/sda1 /mnt",
            "deb http://deb.example.org/debian stable main contrib",
            "drwxr-xr-x 2 root root 4096 Jan 1 12:00 bin",
            "SELECT name FROM users WHERE id = 1;",
            "print(\"hello world of mine\")",
            "Linus Torvalds and Ian Murdock of the Free Software Foundation",
            "1, 2, 3 and 4",
            "Getting help",
            "",
            "Οι άνθρωποι έχουν δικαιώματα και αξιοπρέπεια",
            "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore",
            "Die Würde des Menschen ist unantastbar, und sie zu achten ist Pflicht aller staatlichen Gewalt",
        ] {
            assert!(may_stay(&task, left), "{left}");
        }
        for prose in [
            "to be or not to be",
            "Short one here today.",
            "The package manager keeps a list of files.",
            "a list of packages in /etc/apt that the machine should have",
            "Make sure that the disk has enough space before you begin.",
            "The file /etc/fstab names the disks that are mounted when the system starts.",
        ] {
            assert!(!may_stay(&task, prose), "{prose}");
        }
    }

    #[test]
    fn words_are_compared_without_case_and_signs() {
        assert!(has_same_words("to be or not to be", "To be, or not to be!"));
        assert!(!has_same_words("to be", "to bee"));
    }
}
