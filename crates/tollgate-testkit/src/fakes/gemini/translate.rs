//! A deterministic pseudo-translation: a hash of each word selects a word of the target language of about its length.
//!
//! A missing, doubled or moved paragraph shows in a comparison with the expected document. Heads (⟦#3⟧), markers (⟦1⟧),
//! numbers, line breaks and punctuation are kept.

use std::collections::HashMap;
use std::sync::Arc;

use super::fault::Fault;

/// Human translations by segment; other segments get the pseudo-translation.
#[derive(Clone, Debug, Default)]
pub struct Phrases(Arc<HashMap<String, String>>);

impl FromIterator<(String, String)> for Phrases {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(phrases: T) -> Self {
        Self(Arc::new(phrases.into_iter().collect()))
    }
}

impl Phrases {
    fn lookup(&self, text: &str) -> Option<String> {
        let phrase = self.0.get(text.trim())?;
        Some(format!(" {phrase}\n"))
    }
}

const HEAD: &str = "⟦#";

const FRENCH: &str = "à y le de un et en il ne je son que une pas sur elle dans pour avec plus être était comme leurs \
     notre après encore maison toujours pendant quelque premier pourquoi beaucoup longtemps plusieurs \
     maintenant aujourd’hui quelquefois naturellement particulièrement";

const GERMAN: &str = "o er es in zu so der die und das ist nicht eine auch wird über durch haben wurde keine werden \
     können müssen zwischen während schließlich natürlich möglich Geschichte Menschen vielleicht \
     gegenüber verschieden außerdem insbesondere";

/// Counts tokens: pieces of words of up to five letters, digits two by two, and signs.
pub fn tokens_of(text: &str) -> u64 {
    let mut tokens = 0;
    let mut letters = 0_u64;
    for next in text.chars() {
        if next.is_alphabetic() {
            // A letter of an alphabet without spaces is a token.
            if '\u{2e80}' <= next {
                tokens += 1;
            } else {
                letters += 1;
            }
            continue;
        }
        tokens += letters.div_ceil(5);
        letters = 0;
        tokens += u64::from(!next.is_whitespace());
    }
    tokens + letters.div_ceil(5)
}

/// Returns the pseudo-translation of one segment into French.
pub fn translated(text: &str) -> String {
    words(text, FRENCH)
}

fn words(text: &str, vocabulary: &str) -> String {
    let mut made = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if first == '⟦'
            && let Some(end) = rest.find('⟧')
        {
            let (marker, after) = rest.split_at(end + '⟧'.len_utf8());
            made.push_str(marker);
            rest = after;
        } else if first.is_alphabetic() {
            let end = rest.find(|next: char| !next.is_alphabetic()).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            push_word(&mut made, word, vocabulary);
            rest = after;
        } else {
            made.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    made
}

fn push_word(made: &mut String, word: &str, vocabulary: &str) {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in word.to_lowercase().bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    let length = word.chars().count();
    let distance = |other: &str| other.chars().count().abs_diff(length);
    let nearest = vocabulary.split(' ').map(distance).min().unwrap_or(0);
    let alike: Vec<&str> =
        vocabulary.split(' ').filter(|other| distance(other) <= nearest.max(1)).collect();
    let choice = usize::try_from((hash >> 32) % alike.len().max(1) as u64).unwrap_or(0);
    let chosen = alike.get(choice).copied().unwrap_or(word);
    if word.starts_with(char::is_uppercase) {
        let mut letters = chosen.chars();
        made.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        made.push_str(letters.as_str());
    } else {
        made.push_str(chosen);
    }
}

/// Returns head and text of each segment of a prompt. The text before the first head is not translated.
fn segments(prompt: &str) -> Vec<(&str, &str)> {
    let mut starts: Vec<usize> = prompt.match_indices(HEAD).map(|(at, _)| at).collect();
    starts.push(prompt.len());
    let parts = starts.windows(2).map(|pair| &prompt[pair[0]..pair[1]]);
    parts
        .filter_map(|part| {
            let (head, text) = part.split_at(part.find('⟧')? + '⟧'.len_utf8());
            head[HEAD.len()..]
                .starts_with(|next: char| next.is_ascii_digit())
                .then_some((head, text))
        })
        .collect()
}

/// Returns the prompt without terms and context.
pub(super) fn to_translate(prompt: &str) -> &str {
    prompt.find(HEAD).map_or("", |at| &prompt[at..])
}

pub(super) fn segments_in(prompt: &str) -> usize {
    segments(prompt).len()
}

/// Returns the answer to a prompt, damaged by `fault`.
pub(super) fn answer(
    system: &str,
    prompt: &str,
    fault: Option<Fault>,
    phrases: &Phrases,
) -> String {
    let vocabulary = if system.contains("German") { GERMAN } else { FRENCH };
    let mut parts = segments(prompt);
    match fault {
        Some(Fault::Dropped) => drop(parts.pop()),
        Some(Fault::Doubled) => parts.extend(parts.first().copied()),
        Some(Fault::Reordered) if !parts.is_empty() => parts.rotate_left(1),
        _ => {}
    }
    let mut made = String::new();
    for (place, (head, text)) in parts.iter().enumerate() {
        let is_merged = fault == Some(Fault::Merged) && place == 1;
        made.push_str(if is_merged { " " } else { head });
        let translated = || phrases.lookup(text).unwrap_or_else(|| words(text, vocabulary));
        match fault {
            Some(Fault::Untranslated) => made.push_str(text),
            Some(Fault::Emptied) => made.push('\n'),
            Some(Fault::Unmarked) => made.push_str(&unmarked(&translated())),
            _ => made.push_str(&translated()),
        }
    }
    made
}

/// `text` without its markers.
fn unmarked(text: &str) -> String {
    let mut pieces = text.split('⟦');
    let first = pieces.next().unwrap_or_default().to_owned();
    first + &pieces.filter_map(|piece| Some(piece.split_once('⟧')?.1)).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPT: &str = "Context: see ⟦1⟧.\n⟦#1⟧ One ⟦1⟧two⟦2⟧ 3,400.\n⟦#2⟧ Four\nfive!\n";

    #[test]
    fn heads_markers_numbers_and_lines_stay() {
        let answer = answer("", PROMPT, None, &Phrases::default());
        assert!(answer.starts_with("⟦#1⟧ "), "{answer}");
        for kept in ["⟦1⟧", "⟦2⟧ 3,400.\n⟦#2⟧ ", "\n", "!"] {
            assert!(answer.contains(kept), "{kept:?} in {answer}");
        }
        assert!(!answer.contains("Context") && !answer.contains("five"), "{answer}");
        assert_eq!(answer, super::answer("", PROMPT, None, &Phrases::default()), "always the same");
    }

    #[test]
    fn each_fault_shows() {
        let right = answer("", PROMPT, None, &Phrases::default());
        for fault in [
            Fault::Dropped,
            Fault::Doubled,
            Fault::Reordered,
            Fault::Merged,
            Fault::Untranslated,
            Fault::Emptied,
            Fault::Unmarked,
        ] {
            assert_ne!(answer("", PROMPT, Some(fault), &Phrases::default()), right, "{fault:?}");
        }
    }

    #[test]
    fn a_phrase_is_answered_as_it_was_translated() {
        let phrases: Phrases =
            [("Four\nfive!".to_owned(), "Vier\nfünf!".to_owned())].into_iter().collect();
        assert!(answer("", PROMPT, None, &phrases).ends_with("⟦#2⟧ Vier\nfünf!\n"));
    }

    #[test]
    fn tokens_are_pieces_of_words_and_signs() {
        assert_eq!(tokens_of("It is, naturally."), 1 + 1 + 1 + 2 + 1);
        assert_eq!(tokens_of("日本"), 2);
        assert_eq!(tokens_of(" \n"), 0);
    }
}
