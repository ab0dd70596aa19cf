//! The cache key of a translation: a hash of the model and the prompt.
//!
//! A prompt consists of the source, its context, the terms that occur, the languages and the instructions. No job, file name or
//! position is in it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::prompt::{PROMPT_VERSION, Prompt};

/// A content hash of a request; prints as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CacheKey([u8; 32]);

impl CacheKey {
    /// Returns the key of the request of `prompt` to `model`.
    #[must_use]
    pub fn for_prompt(model: &str, prompt: &Prompt) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"tollgate-translate");
        hash.update(PROMPT_VERSION.to_le_bytes());
        // The lengths keep the parts apart.
        for part in [model, &prompt.system, &prompt.prompt] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        Self(hash.finalize().into())
    }

    /// Returns the hash.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for CacheKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let digit = |index: usize| text.get(2 * index..2 * index + 2);
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let parsed = digit(index).and_then(|digits| u8::from_str_radix(digits, 16).ok());
            *byte = parsed.filter(|_| text.len() == 64).ok_or_else(|| {
                Error::invalid(format!(
                    "{text:?} is not a cache key, which has 64 hexadecimal digits"
                ))
            })?;
        }
        Ok(Self(bytes))
    }
}

crate::error::stored_as_text!(CacheKey);
