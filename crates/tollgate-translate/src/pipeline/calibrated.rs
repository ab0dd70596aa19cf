//! What was learnt about a model's tokens, kept beside the cache, so that a process that starts cold need not learn it again.
//!
//! It is one more entry of the cache, under a key that no request has: every store keeps those already, and an entry that is
//! lost costs a few estimates.

use sha2::{Digest, Sha256};
use std::sync::PoisonError;

use super::Engine;
use super::book::Book;
use crate::error::Error;

/// The key of what is known about the tokens of `model` in `language`.
fn key(model: &str, language: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"tollgate-translate calibration 1");
    for part in [model, language] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

impl Engine {
    /// Takes up what other processes learnt about the model of `book`, if nothing is known here.
    pub(super) async fn take_up(&self, book: &Book) -> Result<(), Error> {
        let (model, language) = book.tokenized();
        let is_known = {
            let calibration = self.calibration.lock().unwrap_or_else(PoisonError::into_inner);
            calibration.learnt(model, language).is_some()
        };
        if is_known {
            return Ok(());
        }
        let kept = self.store.recall(&key(model, language.tag())).await?.unwrap_or_default();
        if let Some(kept) = kept.first().and_then(|text| text.parse().ok()) {
            let mut calibration = self.calibration.lock().unwrap_or_else(PoisonError::into_inner);
            calibration.take_up(model, language, kept);
        }
        Ok(())
    }

    /// The tokens of a request, corrected by what the provider reported before.
    pub(super) fn corrected(&self, book: &Book, tokens: u64) -> u64 {
        let (model, language) = book.tokenized();
        let calibration = self.calibration.lock().unwrap_or_else(PoisonError::into_inner);
        calibration.corrected(model, language, tokens)
    }

    /// Takes in that a request of `tokens` by the rule was counted as `reported`.
    pub(super) async fn learn(&self, book: &Book, tokens: u64, reported: u64) {
        let (model, language) = book.tokenized();
        let (before, after) = {
            let mut calibration = self.calibration.lock().unwrap_or_else(PoisonError::into_inner);
            let before = calibration.learnt(model, language);
            calibration.learn(model, language, tokens, reported);
            (before, calibration.learnt(model, language))
        };
        if let Some(after) = after.filter(|_| before != after) {
            let (key, now) = (key(model, language.tag()), self.clock.now());
            // Worth keeping, and not worth an answer that is paid.
            drop(self.store.remember(&key, &[after.to_string()], now).await);
        }
    }
}
