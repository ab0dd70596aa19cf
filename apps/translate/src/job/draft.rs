//! The translations of a chunk's segments so far, so that a bad segment does not cost the good ones.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The translation of one segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Draft {
    /// Its text.
    pub text: String,
    /// A doubt about the text.
    pub warning: Option<String>,
    /// Whether it is accepted. A doubtful draft is requested again.
    pub is_settled: bool,
}

/// The stored form: a plain text, or a text with attributes.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Stored {
    Text(String),
    Noted {
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warning: Option<String>,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        open: bool,
    },
}

impl From<Stored> for Draft {
    fn from(stored: Stored) -> Self {
        match stored {
            Stored::Text(text) => Self { text, warning: None, is_settled: true },
            Stored::Noted { text, warning, open } => Self { text, warning, is_settled: !open },
        }
    }
}

impl From<Draft> for Stored {
    fn from(draft: Draft) -> Self {
        let Draft { text, warning, is_settled } = draft;
        match warning {
            None if is_settled => Self::Text(text),
            warning => Self::Noted { text, warning, open: !is_settled },
        }
    }
}

/// The translation of a whole chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Texts {
    /// The text of each segment.
    pub texts: Vec<String>,
    /// Doubts about them, by index.
    pub warnings: Vec<(u32, String)>,
}

/// The drafts of a chunk, one entry for each segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drafts(Vec<Option<Draft>>);

impl Drafts {
    /// Returns no draft for each of `segments` segments.
    #[must_use]
    pub fn none(segments: u32) -> Self {
        Self(vec![None; segments as usize])
    }

    /// Returns a settled draft for each text.
    #[must_use]
    pub fn settled(texts: impl IntoIterator<Item = String>) -> Self {
        let draft = |text| Some(Draft { text, warning: None, is_settled: true });
        Self(texts.into_iter().map(draft).collect())
    }

    /// Returns the indices of the segments that are not settled, in order.
    #[must_use]
    pub fn open(&self) -> Vec<u32> {
        let is_open = |draft: &Option<Draft>| !draft.as_ref().is_some_and(|draft| draft.is_settled);
        (0..).zip(&self.0).filter(|(_, draft)| is_open(draft)).map(|(index, _)| index).collect()
    }

    /// Returns the draft at an index.
    #[must_use]
    pub fn at(&self, index: u32) -> Option<&Draft> {
        self.0.get(index as usize)?.as_ref()
    }

    /// Sets the draft at an index.
    pub fn put(&mut self, index: u32, draft: Draft) {
        if let Some(there) = self.0.get_mut(index as usize) {
            *there = Some(draft);
        }
    }

    /// Returns the drafts of some of the segments.
    #[must_use]
    pub fn part(&self, indices: Range<u32>) -> Self {
        let part = self.0.get(indices.start as usize..indices.end as usize);
        Self(part.unwrap_or_default().to_vec())
    }

    /// Returns the texts, if every segment is settled.
    #[must_use]
    pub fn whole(self) -> Option<Texts> {
        let mut whole = Texts::default();
        for (index, draft) in (0..).zip(self.0) {
            let Draft { text, warning, .. } = draft.filter(|draft| draft.is_settled)?;
            whole.texts.push(text);
            whole.warnings.extend(warning.map(|warning| (index, warning)));
        }
        Some(whole)
    }

    /// Serializes the drafts; `None` without any draft.
    #[must_use]
    pub fn to_json(&self) -> Option<String> {
        let is_there = self.0.iter().any(Option::is_some);
        is_there.then(|| serde_json::json!(self.0).to_string())
    }

    /// Parses the stored drafts of a chunk of `segments` segments.
    ///
    /// # Errors
    /// If [`to_json`](Self::to_json) did not write them for as many segments.
    pub fn from_json(stored: Option<&str>, segments: u32) -> Result<Self> {
        let Some(stored) = stored else { return Ok(Self::none(segments)) };
        let drafts: Vec<Option<Draft>> =
            serde_json::from_str(stored).map_err(|error| unreadable(&error))?;
        match drafts.len() == segments as usize {
            true => Ok(Self(drafts)),
            false => Err(Error::store(format!(
                "{} translations are stored for a chunk of {segments} segments",
                drafts.len()
            ))),
        }
    }
}

/// Parses cached texts, a JSON array of strings.
///
/// # Errors
/// If they are something else.
pub fn parse_texts(stored: &str) -> Result<Vec<String>> {
    serde_json::from_str(stored).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> Error {
    Error::store(format!("a stored translation cannot be parsed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_stored_and_read_back_and_old_texts_are_settled() {
        let mut drafts = Drafts::none(3);
        assert_eq!(drafts.to_json(), None);
        drafts.put(0, Draft { text: "un".to_owned(), warning: None, is_settled: true });
        let warning = Some("it lacks the number 12".to_owned());
        drafts.put(2, Draft { text: "trois".to_owned(), warning, is_settled: false });
        let json = drafts.to_json().unwrap();
        assert_eq!(
            json,
            r#"["un",null,{"open":true,"text":"trois","warning":"it lacks the number 12"}]"#
        );
        assert_eq!(Drafts::from_json(Some(&json), 3).unwrap(), drafts);
        assert_eq!(drafts.open(), [1, 2]);
        assert!(drafts.whole().is_none());
        let old = Drafts::from_json(Some(r#"["a","b"]"#), 2).unwrap();
        assert_eq!(old.whole().unwrap().texts, ["a", "b"]);
        assert!(Drafts::from_json(Some("[]"), 1).is_err());
    }
}
