//! The API key of a provider: read once, sent as a header, never printed.

use std::fmt;
use std::path::Path;

use tollgate::internal::edge;

use crate::error::Error;

/// An API key. `{:?}` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    text: String,
    /// Its origin, for errors.
    origin: Option<String>,
}

impl ApiKey {
    /// Returns the key `text`, trimmed.
    ///
    /// # Errors
    /// If it is empty, or not one word of ASCII.
    pub fn new(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        if text.is_empty() || text.contains(char::is_whitespace) || !text.is_ascii() {
            return Err(Error::invalid(
                "a key is one word of ASCII characters; check that it was copied whole",
            ));
        }
        Ok(Self { text: text.to_owned(), origin: None })
    }

    fn from_origin(text: &str, origin: String) -> Result<Self, Error> {
        match Self::new(text) {
            Ok(key) => Ok(Self { origin: Some(origin), ..key }),
            Err(error) => Err(Error::invalid(format!("{origin}: {error}"))),
        }
    }

    /// Reads the key from the first of the environment variables `names` that is set.
    ///
    /// # Errors
    /// If none is set, or the value is invalid.
    pub fn from_environment(names: &[&str]) -> Result<Self, Error> {
        // An empty variable counts as unset.
        let set = |name| edge::environment(name).filter(|text| !text.trim().is_empty());
        let found = names.iter().find_map(|name| Some((name, set(name)?)));
        match found {
            Some((name, text)) => {
                Self::from_origin(&text, format!("the environment variable {name}"))
            }
            None => Err(Error::invalid(format!(
                "no key for the provider: set the environment variable {}, or name a file with the key in it with --key-file",
                names.join(" or ")
            ))),
        }
    }

    /// Reads the key from the file at `path`.
    ///
    /// # Errors
    /// If the file is unreadable or has no valid key.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::invalid(format!(
                "the file with the key, {}, cannot be read: {error}",
                path.display()
            ))
        })?;
        Self::from_origin(&text, format!("the file {}", path.display()))
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the origin, if the key was looked up.
    pub(super) fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_word_and_is_never_shown() {
        let key = ApiKey::new(" secret\n").unwrap();
        assert_eq!(key.text(), "secret");
        assert!(!format!("{key:?}").contains("secret"));
        for wrong in ["", " \n", "two words", "clé"] {
            assert!(ApiKey::new(wrong).unwrap_err().to_string().contains("one word"), "{wrong:?}");
        }
        let wrong = ApiKey::from_origin("two words", "the environment variable X".to_owned());
        let error = wrong.unwrap_err().to_string();
        assert!(error.starts_with("the environment variable X: a key is one word"), "{error}");
        let error = ApiKey::from_environment(&["TOLLGATE_NO_SUCH_KEY"]).unwrap_err().to_string();
        assert!(error.contains("TOLLGATE_NO_SUCH_KEY"), "{error}");
    }
}
