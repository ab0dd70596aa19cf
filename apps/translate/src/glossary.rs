//! A glossary: terms with prescribed translations, from CSV or JSON.
//!
//! Only the terms that occur in a chunk are sent with it, since a long glossary would cost more than the text.

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The maximum number of terms.
pub const TERMS_MAX: usize = 10_000;

/// A term and its translation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Term {
    /// The term in the source.
    pub source: String,
    /// Its translation.
    pub target: String,
    /// A note for the translator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Validated terms: none is empty, and none has two translations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Glossary {
    terms: Vec<Term>,
    /// The sources in lower case.
    #[serde(skip)]
    lower: Vec<String>,
}

impl Glossary {
    /// Returns a glossary of `terms`, without duplicates.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if a term is empty or has two translations, or if there are more than
    /// [`TERMS_MAX`].
    pub fn new(terms: impl IntoIterator<Item = Term>) -> Result<Self, Error> {
        Self::checked((1..).zip(terms).map(|(number, term)| (format!("term {number}"), term)))
    }

    /// Validates terms, each with its place in the file.
    fn checked(terms: impl Iterator<Item = (String, Term)>) -> Result<Self, Error> {
        let mut glossary = Self::default();
        let mut places = std::collections::HashMap::new();
        for (place, term) in terms {
            let term = term.trimmed();
            let wrong = |text: String| Error::invalid(format!("glossary, {place}: {text}"));
            if term.source.is_empty() || term.target.is_empty() {
                let side = if term.source.is_empty() { "source" } else { "target" };
                return Err(wrong(format!(
                    "the {side} is empty; give the term and its translation"
                )));
            }
            let lower = term.source.to_lowercase();
            match places.get(&lower) {
                Some(other) => {
                    let other: &Term = &glossary.terms[*other];
                    if other.target != term.target {
                        return Err(wrong(format!(
                            "{:?} is translated as {:?}, and before as {:?}; keep one of them",
                            term.source, term.target, other.target
                        )));
                    }
                }
                None if glossary.terms.len() == TERMS_MAX => {
                    return Err(wrong(format!(
                        "there are more than {TERMS_MAX} terms; leave out what is rare"
                    )));
                }
                None => {
                    places.insert(lower.clone(), glossary.terms.len());
                    glossary.terms.push(term);
                    glossary.lower.push(lower);
                }
            }
        }
        Ok(glossary)
    }

    /// Parses CSV: a term, its translation and an optional note on each line, separated by commas, semicolons or tabs, with an optional
    /// header `source,target,note`.
    ///
    /// # Errors
    /// Like [`new`](Self::new), and for an invalid line, with its number.
    pub fn from_csv(text: &str) -> Result<Self, Error> {
        let text = text.trim_start_matches('\u{feff}');
        let top = text.lines().next().unwrap_or_default();
        let separator =
            *[b'\t', b',', b';'].iter().find(|byte| top.as_bytes().contains(byte)).unwrap_or(&b',');
        let mut reader = csv::ReaderBuilder::new()
            .delimiter(separator)
            .has_headers(false)
            .flexible(true)
            .from_reader(text.as_bytes());
        let mut rows = Vec::new();
        for row in reader.records() {
            let row = row.map_err(|error| Error::invalid(format!("glossary: {error}")))?;
            let line = row.position().map_or(0, csv::Position::line);
            let fields: Vec<&str> = row.iter().map(str::trim).collect();
            let is_head = rows.is_empty()
                && fields.len() > 1
                && fields[0].eq_ignore_ascii_case("source")
                && fields[1].eq_ignore_ascii_case("target");
            let (source, target, note) = match fields.as_slice() {
                _ if is_head => continue,
                [source, target] => (*source, *target, None),
                [source, target, note] => (*source, *target, Some((*note).to_owned())),
                other => {
                    return Err(Error::invalid(format!(
                        "glossary, line {line}: there are {} fields; write a term, its translation and a note or none, as \
                         in dragon,dragon,masculine",
                        other.len()
                    )));
                }
            };
            let term = Term { source: source.to_owned(), target: target.to_owned(), note };
            rows.push((format!("line {line}"), term));
        }
        Self::checked(rows.into_iter())
    }

    /// Parses JSON: `{"dragon": "dragon", …}` or `[{"source": "dragon", "target": "dragon", "note": "masculine"}, …]`.
    ///
    /// # Errors
    /// Like [`new`](Self::new), and for JSON of another shape.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let wrong = |error: serde_json::Error| {
            Error::invalid(format!(
                "glossary: {error}; write {{\"term\": \"translation\"}} or [{{\"source\": …, \"target\": …}}]"
            ))
        };
        let text = text.trim_start_matches('\u{feff}').trim_start();
        if text.starts_with('{') {
            let terms: std::collections::BTreeMap<String, String> =
                serde_json::from_str(text).map_err(wrong)?;
            return Self::new(terms.into_iter().map(|(source, target)| Term {
                source,
                target,
                note: None,
            }));
        }
        let terms: Vec<Term> = serde_json::from_str(text).map_err(wrong)?;
        Self::new(terms)
    }

    /// Returns all terms.
    #[must_use]
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Returns the terms that occur in `text`, in the order of the glossary. Matches the beginning of words, ignoring case.
    pub fn occurring<'a>(&'a self, text: &str) -> Vec<&'a Term> {
        let text = text.to_lowercase();
        let found = self.terms.iter().zip(&self.lower).filter(|(_, lower)| occurs(&text, lower));
        found.map(|(term, _)| term).collect()
    }
}

impl Term {
    fn trimmed(self) -> Self {
        let trim = |text: String| text.trim().to_owned();
        let note = self.note.map(trim).filter(|note| !note.is_empty());
        Self { source: trim(self.source), target: trim(self.target), note }
    }
}

fn occurs(text: &str, term: &str) -> bool {
    // Scripts without spaces have no word boundaries.
    let begins_anywhere = term.starts_with(|c: char| !c.is_alphanumeric() || '\u{2e80}' <= c);
    text.match_indices(term).any(|(place, _)| {
        begins_anywhere || !text[..place].ends_with(|c: char| c.is_alphanumeric() && c < '\u{2e80}')
    })
}
