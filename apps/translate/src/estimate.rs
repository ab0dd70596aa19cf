//! Token estimates without the provider's tokenizer, corrected by its reports.
//!
//! The rule by script is that of [`tollgate_providers::estimate`]. Reports of the provider correct it: a moving average of
//! reported / estimated per model and language, at least 1, so that a correction never lowers an estimate.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollgate_providers::estimate::{CORRECTION_MAX, PER_MILLE, corrected, learn};
pub use tollgate_providers::estimate::{quarters, reach, tokens};

use crate::language::Language;

/// The corrections per model and language of the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Calibration(BTreeMap<String, u64>);

impl Calibration {
    /// Returns the estimate `tokens`, corrected for this model and language, rounded up.
    #[must_use]
    pub fn corrected(&self, model: &str, language: &Language, tokens: u64) -> u64 {
        corrected(tokens, self.factor(model, language))
    }

    /// Learns that a request of `tokens` estimated tokens, before correction, was counted as `reported`.
    pub fn learn(&mut self, model: &str, language: &Language, tokens: u64, reported: u64) {
        let key = key(model, language);
        if let Some(average) = learn(self.0.get(&key).copied(), tokens, reported) {
            self.0.insert(key, average);
        }
    }

    /// Returns the average for this model and language, in thousandths.
    #[must_use]
    pub fn average(&self, model: &str, language: &Language) -> Option<u64> {
        self.0.get(&key(model, language)).copied()
    }

    /// Restores a stored average, unless there is a newer one.
    pub fn restore(&mut self, model: &str, language: &Language, average: u64) {
        self.0.entry(key(model, language)).or_insert(average);
    }

    /// Returns the correction in thousandths: at least 1,000.
    #[must_use]
    pub fn factor(&self, model: &str, language: &Language) -> u64 {
        self.average(model, language).unwrap_or(PER_MILLE).clamp(PER_MILLE, CORRECTION_MAX)
    }
}

fn key(model: &str, language: &Language) -> String {
    format!("{model} {language}")
}
