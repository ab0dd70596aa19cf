//! Subjects and patterns of subjects, and which of them is the most specific for a subject.
//!
//! A text without `*` is a subject. A `*` matches any text, also none, so `eu-*` stands for every subject that begins with
//! `eu-`. A subject is looked up by itself, then by its beginnings, the longest first: the work depends on the number of
//! different lengths of such beginnings, not on the number of patterns.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;

use super::check_subject;
use crate::bounds::PATTERNS_PER_PREFIX_MAX;
use crate::error::Error;

/// Returns whether `text` is a pattern, that is, whether it has a `*`.
#[must_use]
pub fn is_pattern(text: &str) -> bool {
    text.contains('*')
}

/// Returns whether `text` matches `pattern`, in which each `*` matches any text.
///
/// ```
/// use tollgate_core::matches_pattern;
///
/// assert!(matches_pattern("eu-*", "eu-west"));
/// assert!(!matches_pattern("eu-*", "us-east"));
/// ```
#[must_use]
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let mut parts = rest.split('*');
    let end = parts.next_back().unwrap_or_default();
    for part in parts {
        match text.split_once(part) {
            Some((_, after)) => text = after,
            None => return false,
        }
    }
    text.ends_with(end)
}

/// How closely a subject or a pattern describes a subject that it matches; the larger is the more specific. A subject itself
/// comes first, then the longer text before the first `*`, then more text in total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Specificity {
    is_subject: bool,
    prefix: usize,
    literal: usize,
}

impl Specificity {
    const SUBJECT: Self = Self { is_subject: true, prefix: usize::MAX, literal: usize::MAX };

    /// Of what a caller proves about itself: it goes before every pattern.
    pub(crate) const CLAIM: Self = Self { is_subject: false, ..Self::SUBJECT };

    fn new(text: &str) -> Self {
        if !is_pattern(text) {
            return Self::SUBJECT;
        }
        let literal = text.bytes().filter(|byte| *byte != b'*').count();
        Self { is_subject: false, prefix: prefix(text).len(), literal }
    }
}

/// Returns the text before the first `*`.
fn prefix(pattern: &str) -> &str {
    pattern.split_once('*').map_or(pattern, |(prefix, _)| prefix)
}

/// Returns the text after the last `*`.
fn suffix(pattern: &str) -> &str {
    pattern.rsplit_once('*').map_or(pattern, |(_, suffix)| suffix)
}

/// Two subjects or patterns of a list that cannot both be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectClash {
    /// The index of the later one.
    pub index: usize,
    /// The index of the earlier one.
    pub other: usize,
    text: String,
}

impl fmt::Display for SubjectClash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Checks that no two of `texts` are equal, that no subject matches two patterns of the same specificity, and that no more than
/// [`PATTERNS_PER_PREFIX_MAX`] patterns begin alike.
///
/// Two patterns that begin alike and have as much text in total clash if the end of one is the end of the other: a text with
/// the middle parts of both between them matches both.
///
/// # Errors
/// If they do.
pub fn check_subjects<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<(), SubjectClash> {
    let mut indexes: HashMap<&str, usize> = HashMap::new();
    let mut patterns = Vec::new();
    for (index, text) in texts.into_iter().enumerate() {
        if let Some(other) = indexes.insert(text, index) {
            let text = format!("{text:?} is there twice; keep one");
            return Err(SubjectClash { index, other, text });
        }
        if is_pattern(text) {
            let end: Vec<u8> = suffix(text).bytes().rev().collect();
            patterns.push((prefix(text), Specificity::new(text).literal, end, index, text));
        }
    }
    // Among sorted texts, one that begins with another follows it, or follows one that does.
    patterns.sort_unstable();
    for pair in patterns.windows(2) {
        let [(start, literal, end, one, text), (other_start, other_literal, other_end, two, other)] =
            pair
        else {
            continue;
        };
        if (start, literal) == (other_start, other_literal) && other_end.starts_with(end) {
            let (index, first) = (*one.max(two), *one.min(two));
            let text = format!(
                "{text:?} and {other:?} are equally specific and match the same subjects; make one of them longer, or \
                 remove it"
            );
            return Err(SubjectClash { index, other: first, text });
        }
    }
    for alike in patterns.chunk_by(|one, other| one.0 == other.0) {
        if PATTERNS_PER_PREFIX_MAX < alike.len() {
            let newest = alike.iter().map(|pattern| pattern.3).max().unwrap_or(0);
            let text = format!(
                "{} patterns begin with {:?}; at most {PATTERNS_PER_PREFIX_MAX} may begin alike",
                alike.len(),
                alike[0].0
            );
            return Err(SubjectClash { index: newest, other: alike[0].3, text });
        }
    }
    Ok(())
}

/// Values by subject and by pattern of subjects.
#[derive(Clone, Debug)]
pub(crate) struct SubjectMap<T> {
    subjects: HashMap<Box<str>, T>,
    /// By the text before the first `*`; the most specific first.
    patterns: HashMap<Box<str>, Vec<(Box<str>, T)>>,
    /// The lengths of the keys of `patterns`, the longest first.
    prefix_lengths: Vec<usize>,
}

impl<T> Default for SubjectMap<T> {
    fn default() -> Self {
        Self { subjects: HashMap::new(), patterns: HashMap::new(), prefix_lengths: Vec::new() }
    }
}

impl<T> SubjectMap<T> {
    /// Creates the map of `values`.
    ///
    /// # Errors
    /// If a text is not a valid subject, or as [`check_subjects`].
    pub(crate) fn new(values: Vec<(Box<str>, T)>) -> Result<Self, Error> {
        values.iter().try_for_each(|(text, _)| check_subject(text))?;
        check_subjects(values.iter().map(|(text, _)| &**text))
            .map_err(|clash| Error::invalid(clash.to_string()))?;
        let mut map = Self { subjects: HashMap::with_capacity(values.len()), ..Self::default() };
        for (text, value) in values {
            if is_pattern(&text) {
                map.patterns.entry(prefix(&text).into()).or_default().push((text, value));
            } else {
                map.subjects.insert(text, value);
            }
        }
        for alike in map.patterns.values_mut() {
            alike.sort_by_key(|(text, _)| Reverse(Specificity::new(text).literal));
        }
        map.prefix_lengths = map.patterns.keys().map(|prefix| prefix.len()).collect();
        map.prefix_lengths.sort_unstable_by_key(|length| Reverse(*length));
        map.prefix_lengths.dedup();
        Ok(map)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.subjects.is_empty() && self.patterns.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.subjects.len() + self.patterns.values().map(Vec::len).sum::<usize>()
    }

    /// Returns the value of the most specific text that matches `subject`.
    pub(crate) fn find(&self, subject: &str) -> Option<(Specificity, &T)> {
        if let Some(value) = self.subjects.get(subject) {
            return Some((Specificity::SUBJECT, value));
        }
        let starts = self.prefix_lengths.iter().filter_map(|length| subject.get(..*length));
        let alike = starts.filter_map(|start| self.patterns.get(start)).flatten();
        let found = alike.into_iter().find(|(pattern, _)| matches_pattern(pattern, subject));
        found.map(|(pattern, value)| (Specificity::new(pattern), value))
    }

    /// Returns the value of `text` itself, which may be a pattern.
    pub(crate) fn get(&self, text: &str) -> Option<&T> {
        if !is_pattern(text) {
            return self.subjects.get(text);
        }
        let alike = self.patterns.get(prefix(text))?;
        alike.iter().find(|(pattern, _)| **pattern == *text).map(|(_, value)| value)
    }

    /// Returns every text with its value, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        let subjects = self.subjects.iter().map(|(text, value)| (&**text, value));
        let patterns = self.patterns.values().flatten().map(|(text, value)| (&**text, value));
        subjects.chain(patterns)
    }
}

impl<T: PartialEq> PartialEq for SubjectMap<T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().all(|(text, value)| other.get(text) == Some(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(texts: &[&str]) -> SubjectMap<String> {
        let values = texts.iter().map(|text| ((*text).into(), (*text).to_owned()));
        SubjectMap::new(values.collect()).unwrap()
    }

    #[test]
    fn a_star_is_a_wildcard() {
        let rows = [
            ("team-a/*", "team-a/alice", true),
            ("team-a/*", "team-a/", true),
            ("team-a/*", "team-ab/alice", false),
            ("*", "", true),
            ("alice", "alice", true),
            ("alice", "alice2", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "ac", false),
            ("ab*ba", "aba", false),
        ];
        for (pattern, text, expected) in rows {
            assert_eq!(matches_pattern(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn the_most_specific_wins() {
        let map = map(&["*", "eu-*", "eu-west-*", "eu-*-prod", "eu-west-1", "*-test", "*-t", "ü*"]);
        let rows = [
            ("eu-west-1", "eu-west-1"),
            ("eu-west-2", "eu-west-*"),
            ("eu-west-2-prod", "eu-west-*"),
            ("eu-north-prod", "eu-*-prod"),
            ("eu-", "eu-*"),
            ("us-test", "*-test"),
            ("us-t", "*-t"),
            ("us", "*"),
            ("übung", "ü*"),
            ("é", "*"),
        ];
        for (subject, expected) in rows {
            assert_eq!(map.find(subject).map(|(_, text)| &**text), Some(expected), "{subject}");
        }
        assert_eq!(map.len(), 8);
        assert_eq!(map.get("eu-*").map(String::as_str), Some("eu-*"));
        assert_eq!(map.get("eu-*-dev"), None);
    }

    /// The order of the texts, and a linear search for the largest specificity, lead to the same value.
    #[test]
    fn the_index_finds_what_a_search_finds() {
        let texts =
            ["a*", "ab*", "ab*c", "a*c", "*c", "*bc", "b*b*b", "b*", "*", "abc", "b*a*", "*x*y"];
        let letters = ["", "a", "b", "c", "x", "y"];
        let map = map(&texts);
        let mut subjects = vec![String::new()];
        for _ in 0..5 {
            let longer = |text: &String| letters.map(|letter| format!("{text}{letter}"));
            subjects = subjects.iter().flat_map(longer).collect();
        }
        for subject in subjects {
            let all = texts.iter().filter(|text| matches_pattern(text, &subject));
            let best = all.max_by_key(|text| Specificity::new(text)).map(|text| (*text).to_owned());
            assert_eq!(map.find(&subject).map(|(_, text)| text.clone()), best, "{subject}");
        }
    }

    #[test]
    fn ties_are_refused_and_patterns_that_cannot_meet_are_not() {
        let clash = |texts: &[&str]| check_subjects(texts.iter().copied()).err();
        for texts in [
            &["a", "b", "a"][..],
            &["eu-*", "x", "eu-*"],
            &["eu-*a*", "x", "eu-*b*"],
            &["eu-*-ab", "eu-*", "eu-*a-*b"],
            &["*", "x", "**"],
        ] {
            let clash = clash(texts).expect("a clash");
            assert_eq!((clash.index, clash.other), (2, 0), "{texts:?}: {clash}");
        }
        for texts in [
            &["eu-*-a", "eu-*-b"][..],
            &["eu-*", "us-*"],
            &["eu-*", "eu-*-prod", "eu-1"],
            &["*-test", "*-prod"],
            &["a*", "*a"],
        ] {
            assert_eq!(clash(texts), None, "{texts:?}");
        }
        let many: Vec<String> =
            (0..=PATTERNS_PER_PREFIX_MAX).map(|number| format!("x*{number:05}")).collect();
        let clash = check_subjects(many.iter().map(String::as_str)).unwrap_err();
        assert_eq!(clash.index, PATTERNS_PER_PREFIX_MAX);
        assert!(clash.to_string().contains("1001 patterns begin with \"x\""), "{clash}");
    }
}
