//! Words that a translation shares with its source, and English function words.

use std::collections::HashSet;

use crate::script::{self, Word};

/// English function words, without those that are also words of German, Dutch, French or Spanish.
const FUNCTION_WORDS: &[&str] = &[
    "about", "after", "and", "any", "are", "at", "be", "been", "before", "between", "but", "by",
    "can", "could", "did", "do", "does", "during", "each", "every", "for", "from", "had", "has",
    "have", "he", "her", "here", "his", "how", "if", "into", "is", "it", "its", "may", "might",
    "more", "must", "not", "of", "on", "only", "or", "other", "our", "over", "she", "should",
    "some", "such", "than", "that", "the", "their", "then", "there", "these", "they", "this",
    "those", "through", "to", "under", "until", "we", "were", "what", "when", "where", "which",
    "while", "who", "whose", "why", "with", "without", "would", "you", "your",
];

pub(super) fn is_function_word(word: &str) -> bool {
    FUNCTION_WORDS.binary_search(&word.to_lowercase().as_str()).is_ok()
}

/// The words of a text, in lower case.
#[derive(Debug)]
pub(super) struct Vocabulary(HashSet<String>);

impl Vocabulary {
    pub(super) fn from_text(source: &str) -> Self {
        Self(script::words(source).map(|word| word.text.to_lowercase()).collect())
    }

    pub(super) fn has(&self, word: &Word<'_>) -> bool {
        self.0.contains(&word.text.to_lowercase())
    }
}

/// Counts the characters of `text` outside of words of `other`, without white space.
pub(super) fn characters_besides(text: &str, other: &Vocabulary) -> u64 {
    let characters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).count() as u64;
    let kept = script::words(text).filter(|word| other.has(word));
    characters(text) - kept.map(|word| characters(word.text)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_words_are_sorted_so_that_they_can_be_searched() {
        assert!(FUNCTION_WORDS.is_sorted());
        assert!(is_function_word("The") && !is_function_word("disk"));
    }

    #[test]
    fn what_a_translation_keeps_is_not_counted() {
        let source = Vocabulary::from_text("Use apt-get for it");
        assert_eq!(characters_besides("apt-get を使う。", &source), 5);
    }
}
