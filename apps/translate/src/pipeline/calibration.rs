//! The calibration of a model's token estimates, stored so that a new process need not learn it again.
//!
//! It is an entry of the cache under a key that no request has: every store has a cache, and a lost entry costs a few estimates.

use std::sync::{MutexGuard, PoisonError};

use sha2::{Digest, Sha256};

use super::Engine;
use super::prepared::PreparedDocument;
use crate::error::Result;
use crate::estimate::Calibration;

/// The cache key of the calibration of `model` in `language`.
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
    fn calibration(&self) -> MutexGuard<'_, Calibration> {
        self.calibration.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads the stored calibration for `prepared`, unless this process has one.
    pub(super) async fn load_calibration(&self, prepared: &PreparedDocument) -> Result<()> {
        let (model, language) = prepared.tokenizer();
        if self.calibration().average(model, language).is_some() {
            return Ok(());
        }
        let stored = self.store.cached(&key(model, language.tag())).await?.unwrap_or_default();
        if let Some(average) = stored.first().and_then(|text| text.parse().ok()) {
            self.calibration().restore(model, language, average);
        }
        Ok(())
    }

    /// Returns the estimate `tokens`, corrected by earlier reports of the provider.
    pub(super) fn calibrated(&self, prepared: &PreparedDocument, tokens: u64) -> u64 {
        let (model, language) = prepared.tokenizer();
        self.calibration().corrected(model, language, tokens)
    }

    /// Learns that the provider counted a request of `tokens` estimated tokens as `reported`.
    pub(super) async fn learn(&self, prepared: &PreparedDocument, tokens: u64, reported: u64) {
        let (model, language) = prepared.tokenizer();
        let (before, after) = {
            let mut calibration = self.calibration();
            let before = calibration.average(model, language);
            calibration.learn(model, language, tokens, reported);
            (before, calibration.average(model, language))
        };
        if let Some(after) = after.filter(|_| before != after) {
            let (key, now) = (key(model, language.tag()), self.clock.now());
            // Best effort: a failure must not cost a paid answer.
            drop(self.store.cache(&key, &[after.to_string()], now).await);
        }
    }
}
